// The replicas: all of them in one table, and one of them with all that is known of it.

import { path } from "./api.js";
import { h, memo } from "./dom.js";
import { ago, count, percent, seconds } from "./format.js";
import { lever } from "./levers.js";
import { decisionColumns } from "./decisions.js";
import { Table, facts, health, meter, panel, replicaLink } from "./parts.js";
import { sessionColumns } from "./sessions.js";

const share = (part, whole) => (whole ? part / whole : null);

export function fleet() {
  const table = new Table({
    label: "Replicas",
    sort: "load",
    keyOf: (replica) => replica.name,
    empty: "There are no replicas: add them to the config, or pass --replica.",
    columns: [
      { id: "name", label: "Replica", value: (r) => r.name, cell: (r) => replicaLink(r.name) },
      { id: "health", label: "State", value: (r) => (r.draining ? "draining" : r.health), sign: (r) => [r.health, r.draining, r.leaving, r.why], cell: health },
      { id: "load", label: "Running", num: true, value: (r) => r.in_flight },
      { id: "held", label: "Waiting here", num: true, value: (r) => r.held, hint: "turns that wait in the router to go there" },
      { id: "pending", label: "To prefill", num: true, minor: true, value: (r) => r.pending_tokens, cell: (r) => count(r.pending_tokens), hint: "tokens sent there and not yet prefilled" },
      { id: "usage", label: "KV in use", value: (r) => r.report?.kv_usage ?? null, cell: (r) => meter(r.report?.kv_usage), hint: "as the replica reports it" },
      { id: "living", label: "KV of living sessions", minor: true, value: (r) => share(r.working_set_tokens, r.capacity_tokens), cell: (r) => meter(share(r.working_set_tokens, r.capacity_tokens)) },
      { id: "sessions", label: "Sessions", num: true, value: (r) => r.sessions },
      { id: "hits", label: "Hit rate", num: true, value: (r) => r.lately?.hit_rate ?? null, cell: (r) => percent(r.lately?.hit_rate, 1), hint: "of prompt tokens, in the last five minutes" },
      { id: "turns", label: "Turns, 5 min", num: true, minor: true, value: (r) => r.lately?.turns ?? 0 },
      { id: "trust", label: "Trust", num: true, minor: true, value: (r) => r.trust, cell: (r) => percent(r.trust), hint: "cached tokens that it delivers for each one that it is believed to hold" },
      { id: "restarts", label: "Restarts", num: true, minor: true, value: (r) => r.restarts },
      { id: "seen", label: "Reported", num: true, minor: true, value: (r) => r.report_age_s, sign: (r) => ago(r.report_age_s), cell: (r) => (r.report_age_s === null ? "never" : `${ago(r.report_age_s)} ago`) },
    ],
  });
  const note = h("p", { class: "note num" });
  return {
    title: "Fleet",
    element: h("div", { class: "fade" }, h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Fleet"), note), h("section", { class: "panel" }, table.element)),
    requests: () => ({ replicas: { path: "/api/replicas" } }),
    update({ overview, replicas }) {
      const { health: states, draining, capacity_tokens: capacity, working_set_tokens: living } = overview.fleet;
      const said = Object.entries(states).filter(([, number]) => number).map(([state, number]) => `${number} ${state}`);
      if (draining) said.push(`${draining} of them draining`);
      note.textContent = `${said.join(", ")} · ${count(living)} tokens of living sessions${capacity ? ` of ${count(capacity)} that fit` : ""}`;
      table.update(replicas.replicas);
    },
  };
}

export function replica({ name, poll }) {
  const known = h("div");
  const draw = memo(known, (r, drawnAgo) => [
    facts(
      ["State", health(r)],
      ["Why", r.why || "–"],
      ["Address", r.url],
      ["Turns running", count(r.in_flight)],
      ["Waiting here to go there", count(r.held)],
      ["Tokens to prefill", count(r.pending_tokens)],
      ["Prefill before turns wait", `${count(r.horizon_tokens)} tokens`],
      ["KV in use", meter(r.report?.kv_usage)],
      ["KV free", r.free_tokens === null ? "–" : `${count(r.free_tokens)} tokens`],
      ["KV capacity", r.capacity_tokens === null ? "not told" : `${count(r.capacity_tokens)} tokens`],
      ["Host tier", r.report?.host_kv_tokens ? `${count(r.report.host_kv_tokens)} tokens` : "–"],
      ["Living sessions", `${count(r.sessions)}, ${count(r.working_set_tokens)} tokens`],
      ["Hit rate, 5 min", percent(r.lately?.hit_rate, 1)],
      ["Turns, 5 min", count(r.lately?.turns ?? 0)],
      ["Trust in its cache", percent(r.trust, 1)],
      ["Its own queue", r.report ? `${count(r.report.running)} running, ${count(r.report.waiting)} waiting` : "–"],
      ["Failures lately", r.recent_failures ? r.recent_failures.toFixed(1) : "none"],
      ["Restarts seen", count(r.restarts)],
      ["Last report", drawnAgo],
      ["Models", (r.models ?? ["any"]).join(", ")],
    ),
  ]);
  const sessions = new Table({ label: "Sessions that live there", keyOf: (s) => s.key, empty: "No session lives there.", columns: sessionColumns.filter((column) => column.id !== "home") });
  const decisions = new Table({ label: "Latest decisions for it", keyOf: (d) => d.id, empty: "None of the latest decisions went there.", columns: decisionColumns.filter((column) => column.id !== "replica") });
  const gone = h("p", { class: "empty", hidden: true }, "No source names this replica any more.");
  const drain = h("button", { type: "button", hidden: true });
  let draining = false;
  drain.addEventListener("click", () =>
    lever({
      title: draining ? `Give ${name} turns again?` : `Drain ${name}?`,
      text: draining ? "It gets new turns from now on." : "It gets no new turns. Those that run there end as they would, and its sessions go elsewhere with their next turn.",
      action: draining ? "Give turns again" : "Drain",
      method: "POST",
      path: `/api/replicas/${encodeURIComponent(name)}/drain`,
      body: { on: !draining },
      done: poll,
    }),
  );
  return {
    title: name,
    element: h(
      "div",
      { class: "fade" },
      h("p", { class: "crumb" }, h("a", { href: "#/fleet" }, "Fleet")),
      h("div", { class: "head" }, h("h1", { tabindex: "-1" }, name), h("span", { class: "fill" }), drain),
      panel("What is known", {}, gone, known),
      panel("Sessions that live there", { note: h("a", { href: path("#/sessions", { home: name }) }, "all of them") }, sessions.element),
      panel("Latest decisions for it", {}, decisions.element),
    ),
    requests: () => ({
      replicas: { path: "/api/replicas" },
      sessions: { path: path("/api/sessions", { home: name, limit: 10 }), every: 4 },
      decisions: { path: path("/api/decisions", { replica: name, limit: 15, brief: 1 }) },
    }),
    update(answers) {
      const found = answers.replicas.replicas.find((each) => each.name === name);
      gone.hidden = Boolean(found);
      drain.hidden = !found || found.leaving;
      if (found) {
        const { report_age_s: age, ...rest } = found;
        draw(rest, age === null ? "never" : `${seconds(Math.floor(age))} ago`);
        draining = found.draining;
        drain.textContent = draining ? "Give turns again" : "Drain…";
      }
      sessions.update(answers.sessions.sessions);
      decisions.update(answers.decisions.decisions);
    },
  };
}

