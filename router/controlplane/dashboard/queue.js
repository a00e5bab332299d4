// Turns that the router holds: for whom they wait, for how long, and until when.

import { h, say } from "./dom.js";
import { bytes, count, plural, seconds } from "./format.js";
import { Table, kindTag, replicaLink, sessionLink } from "./parts.js";

const MOST = 200;

export function queue() {
  const note = h("p", { class: "note num" });
  const table = new Table({
    label: "Held turns",
    keyOf: (turn) => turn.key,
    empty: "No turn waits: every replica has room for what comes.",
    columns: [
      { label: "Session", value: (t) => t.session, cell: (t) => sessionLink(t.session) },
      { label: "Waits since", num: true, value: (t) => seconds(t.waited_s) },
      { label: "Would go to", value: (t) => t.replica, cell: (t) => replicaLink(t.replica), hint: "as things are: it is bound when it goes" },
      { label: "As", value: (t) => t.kind, cell: (t) => kindTag(t.kind) },
      { label: "To compute", num: true, value: (t) => count(t.missing_tokens), hint: "tokens of its prompt that are not cached there" },
      { label: "Prompt", num: true, minor: true, value: (t) => count(t.prompt_tokens) },
      { label: "Due", num: true, minor: true, value: (t) => (t.due_in_s > 0 ? `in ${seconds(t.due_in_s)}` : "now"), hint: "from then on, none with less to compute passes it" },
      { label: "Refused in", num: true, value: (t) => seconds(Math.max(0, t.deadline_in_s)) },
      { label: "Tenant", minor: true, value: (t) => t.tenant || "–" },
      { label: "Body", num: true, minor: true, value: (t) => bytes(t.body_bytes) },
      { label: "Why there", value: (t) => t.reason, class: "why", minor: true },
    ],
  });
  return {
    title: "Queue",
    element: h("div", { class: "fade" }, h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Queue"), note), h("section", { class: "panel", "aria-label": "Held turns" }, table.element)),
    requests: () => ({ held: { path: `/api/held?limit=${MOST}` } }),
    update({ held: { held, total } }) {
      say(note, total > held.length ? `the ${held.length} of ${count(total)} that have waited longest` : plural(total, "turn waits", "turns wait"));
      const seen = new Map();
      table.update(
        held.map((turn) => {
          // A session may have several: told apart by their place among them.
          const name = `${turn.session} ${turn.tenant} ${turn.prompt_tokens}`;
          seen.set(name, (seen.get(name) ?? 0) + 1);
          return { ...turn, key: `${name} ${seen.get(name)}` };
        }),
      );
    },
  };
}
