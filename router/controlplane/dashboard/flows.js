// Who gave what to whom: KV that was pulled, turns that left home, and the latest of them one by one.

import { flowsChart } from "./charts.js";
import { h, memo, say } from "./dom.js";
import { count, ms, percent, plural } from "./format.js";
import { Table, kindTag, legend, panel, replicaLink, sessionLink, time } from "./parts.js";

export function flows() {
  const note = h("p", { class: "note num" });
  const drawing = h("div");
  const draw = memo(drawing, (list) => (list.length ? [flowsChart(list), legend(["pull", "spill", "failover"])] : h("p", { class: "empty" }, "Every session stayed at home.")));
  const pairs = new Table({
    label: "Flows",
    keyOf: (flow) => JSON.stringify([flow.source, flow.target]),
    empty: "Nothing went from one replica to another.",
    most: 30,
    columns: [
      { label: "From", value: (f) => f.source, cell: (f) => replicaLink(f.source) },
      { label: "To", value: (f) => f.target, cell: (f) => replicaLink(f.target) },
      { label: "Pulls", num: true, value: (f) => count(f.pulls) },
      { label: "under way", num: true, minor: true, value: (f) => count(f.under_way) },
      { label: "Short", num: true, minor: true, value: (f) => count(f.short), hint: "brought less than they were sent for" },
      { label: "KV came", num: true, value: (f) => (f.asked_tokens ? `${count(f.came_tokens)} (${percent(f.came_tokens / f.asked_tokens)})` : "–"), hint: "tokens, and their share of those asked for" },
      { label: "Spills", num: true, value: (f) => count(f.spills) },
      { label: "Failovers", num: true, value: (f) => count(f.failovers) },
    ],
  });
  const moves = new Table({
    label: "The latest moves",
    keyOf: (move) => `${move.time} ${move.session} ${move.target}`,
    empty: "None yet.",
    columns: [
      { label: "At", value: (m) => m.time, cell: (m) => time(m.time) },
      { label: "Session", value: (m) => m.session, cell: (m) => sessionLink(m.session) },
      { label: "Kind", value: (m) => m.kind, cell: (m) => kindTag(m.kind) },
      { label: "From", value: (m) => m.source, cell: (m) => replicaLink(m.source) },
      { label: "To", value: (m) => m.target, cell: (m) => replicaLink(m.target) },
      { label: "KV came", num: true, value: (m) => (m.asked_tokens === null ? "–" : `${count(m.came_tokens)} of ${count(m.asked_tokens)}`) },
      { label: "Prompt", num: true, minor: true, value: (m) => count(m.prompt_tokens) },
      { label: "First token", num: true, value: (m) => ms(m.ttft_ms) },
      { label: "Why", value: (m) => m.reason, class: "why", minor: true },
    ],
  });
  return {
    title: "Flows",
    element: h(
      "div",
      { class: "fade" },
      h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Flows"), note),
      panel("Between replicas", { note: "the last 15 minutes; wide where there were many turns" }, drawing),
      panel("Pair by pair", {}, pairs.element),
      panel("The latest moves", { note: "and why" }, moves.element),
    ),
    requests: () => ({ moves: { path: "/api/moves?limit=60" } }),
    update({ moves: told }) {
      const sum = (field) => told.flows.reduce((whole, flow) => whole + flow[field], 0);
      say(note, `${plural(sum("pulls"), "pull")} (${count(sum("came_tokens"))} tokens came), ${plural(sum("spills"), "spill")}, ${plural(sum("failovers"), "failover")}`);
      draw(told.flows.slice(0, 16));
      pairs.update(told.flows);
      moves.update(told.moves);
    },
  };
}
