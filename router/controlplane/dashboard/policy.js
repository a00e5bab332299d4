// The policy in force, what became of the last attempt to change it, what the router learns from, and the shadow.

import { h, memo, say } from "./dom.js";
import { ago, count, ms, percent } from "./format.js";
import { lever } from "./levers.js";
import { Table, kindTag, panel, replicaLink, sessionLink } from "./parts.js";

const yes = (well, text) => h("span", { class: well ? "health good" : "health bad" }, text);

const BREAKERS = { closed: "closed: pulled from", open: "open: not pulled from, for now", returning: "returning: one pull may be tried" };

export function policy({ poll }) {
  const file = h("pre", { class: "file", tabindex: "0", "aria-label": "Policies in force, YAML" });
  const last = h("div");
  const drawLast = memo(last, (reload) => {
    if (!reload) return h("p", { class: "empty" }, "The settings are those of the start.");
    const text = { applied: "in force since", unchanged: "nothing had changed", refused: "refused" }[reload.outcome];
    return [
      h("p", {}, yes(reload.outcome !== "refused", `${text}, ${ago(reload.age)} ago`), h("span", { class: "quiet" }, ` · ${reload.cause}`)),
      reload.faults.length ? [h("h3", {}, "Faults: the settings before stay in force"), h("ul", { class: "faults" }, reload.faults.map((fault) => h("li", {}, fault)))] : null,
      reload.changes.length ? [h("h3", {}, reload.faults.length ? "What it would have changed" : "What it changed"), h("ul", { class: "changes" }, reload.changes.map((change) => h("li", {}, change)))] : null,
    ];
  });
  const again = h("button", { type: "button", onclick: () => lever({ title: "Read all files again?", text: "Config, policies, keys and the files that they name are checked, compared, and taken up whole. One fault, and nothing changes.", action: "Read again", method: "POST", path: "/api/reload", done: poll }) }, "Read files again…");
  const sources = new Table({
    label: "Discovery",
    keyOf: (source) => source.source,
    empty: "Replicas are those that the config lists.",
    columns: [
      { label: "Source", value: (s) => s.source },
      { label: "State", value: (s) => s.fault, cell: (s) => yes(!s.fault, s.fault || "well") },
      { label: "Replicas", num: true, value: (s) => count(s.replicas) },
      { label: "Answered", num: true, value: (s) => (s.age_s === null ? "never" : `${ago(s.age_s)} ago`) },
      { label: "Faults", num: true, value: (s) => count(s.faults) },
    ],
  });
  const feeds = new Table({
    label: "KV events",
    keyOf: (feed) => feed.replica,
    empty: "No replica's KV events are followed: the router goes by its own books.",
    columns: [
      { label: "Replica", value: (f) => f.replica, cell: (f) => replicaLink(f.replica) },
      { label: "State", value: (f) => [f.live, f.why], cell: (f) => yes(f.live, f.live ? "followed" : f.why) },
      { label: "Blocks known", num: true, value: (f) => count(f.blocks) },
      { label: "Batches", num: true, minor: true, value: (f) => count(f.batches) },
      { label: "Gaps", num: true, minor: true, value: (f) => count(f.gaps) },
      { label: "Lost", num: true, value: (f) => count(f.losses) },
    ],
  });
  const agents = new Table({
    label: "KV agents",
    keyOf: (agent) => agent.agent,
    empty: "There is no KV agent: nothing is pulled.",
    columns: [
      { label: "Agent", value: (a) => a.agent },
      { label: "State", value: (a) => [a.up, a.why], cell: (a) => yes(a.up, a.up ? "answers" : a.why) },
    ],
  });
  const breakers = new Table({
    label: "Pulls by source",
    keyOf: (breaker) => `${breaker.source} ${breaker.state}`,
    empty: "Nothing was pulled yet, nor could have been.",
    columns: [
      { label: "From", value: (b) => b.source },
      { label: "Breaker", value: (b) => b.state, cell: (b) => yes(b.state === "closed", BREAKERS[b.state] ?? b.state) },
    ],
  });
  const names = h("p", { class: "note" });
  return {
    title: "Policy",
    element: h(
      "div",
      { class: "fade" },
      h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Policy"), names, h("span", { class: "fill" }), again),
      h(
        "div",
        { class: "grid" },
        panel("Last change", {}, last),
        mark(panel("In force", { note: "with every default filled in" }, file), "half"),
        mark(h("div", {}, panel("Discovery", { note: "how replicas are found" }, sources.element), panel("KV events", { note: "what replicas say of their caches" }, feeds.element), panel("KV agents", { note: "who can be pulled from" }, agents.element), panel("Pulls by source", { note: "who is pulled from" }, breakers.element)), "half"),
      ),
    ),
    requests: () => ({
      policy: { path: "/api/policy", every: 5 },
      reload: { path: "/api/reload" },
      discovery: { path: "/api/discovery" },
      feeds: { path: "/api/kv-events" },
      agents: { path: "/api/kv-agents" },
    }),
    update({ overview, policy: text, reload, discovery, feeds: followed, agents: listened }) {
      say(names, overview.policies.length > 1 ? `${overview.policies[0]} is the default; routes name ${overview.policies.slice(1).join(", ")}` : (overview.policies[0] ?? ""));
      say(file, text);
      drawLast(reload.last && { ...reload.last, age_s: undefined, age: Math.floor(reload.last.age_s) });
      sources.update(discovery.sources);
      feeds.update(followed.feeds);
      agents.update(listened.agents);
      breakers.update(listened.breakers);
    },
  };
}

function mark(element, name) {
  element.classList.add(name);
  return element;
}

export function shadow() {
  const lead = h("p", { class: "note" });
  const courses = new Table({
    label: "The two courses",
    keyOf: (row) => row.name,
    columns: [
      { label: "", value: (r) => r.name },
      { label: "In force", num: true, value: (r) => r.live },
      { label: "Shadow", num: true, value: (r) => r.shadow },
      { label: "The shadow's gain", num: true, value: (r) => r.gain },
    ],
  });
  const kinds = new Table({
    label: "Decisions by kind",
    keyOf: (row) => `${row.live} ${row.shadow}`,
    empty: "No turn yet.",
    columns: [
      { label: "In force", value: (k) => k.live, cell: (k) => kindTag(k.live) },
      { label: "Shadow", value: (k) => k.shadow, cell: (k) => kindTag(k.shadow) },
      { label: "Turns", num: true, value: (k) => count(k.turns) },
    ],
  });
  const apart = new Table({
    label: "The latest disagreements",
    keyOf: (row) => row.key,
    empty: "None: both would have done the same.",
    columns: [
      { label: "Session", value: (d) => d.session, cell: (d) => sessionLink(d.session) },
      { label: "Prompt", num: true, minor: true, value: (d) => count(d.prompt_tokens) },
      { label: "In force", value: (d) => [d.live.replica, d.live.kind], cell: (d) => [replicaLink(d.live.replica), " ", kindTag(d.live.kind)] },
      { label: "Shadow", value: (d) => [d.shadow.replica, d.shadow.kind], cell: (d) => [replicaLink(d.shadow.replica), " ", kindTag(d.shadow.kind)] },
      { label: "Gain", num: true, value: (d) => ms(d.gain_ms), hint: "of expected time to the first token; above 0 the shadow is better" },
      { label: "Cached", num: true, minor: true, value: (d) => count(d.gain_tokens), hint: "tokens that the shadow expects to be cached beyond what was" },
      { label: "Its reason", class: "why", minor: true, value: (d) => d.shadow.reason },
    ],
  });
  const body = h("div", {}, panel("The two courses", { note: "expected, by the router's own books" }, courses.element), panel("Decisions by kind", {}, kinds.element), panel("The latest disagreements", {}, apart.element));
  const absent = h("p", { class: "empty", hidden: true }, "No policy decides in the shadow. Name one with 'shadow:' in the config, and what it would have done is shown here.");
  return {
    title: "Shadow",
    element: h("div", { class: "fade" }, h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Shadow"), lead), absent, body),
    requests: () => ({ shadow: { path: "/api/shadow?limit=50", optional: true } }),
    update({ shadow: told }) {
      absent.hidden = Boolean(told);
      body.hidden = !told;
      if (!told) {
        say(lead, "");
        return;
      }
      say(lead, `${told.policy} would have sent ${percent(told.turns ? told.disagreed / told.turns : null, 1)} of ${count(told.turns)} turns elsewhere`);
      const { cached_tokens: cached, mean_expected_ttft_ms: ttft } = told;
      courses.update([
        { name: "Mean expected time to first token", live: ms(ttft.live), shadow: ms(ttft.shadow), gain: ms(ttft.gain) },
        { name: "Expected hit rate", live: percent(cached.of ? cached.live / cached.of : null, 1), shadow: percent(cached.of ? cached.shadow / cached.of : null, 1), gain: `${count(cached.gain)} tokens` },
        { name: "Moves of sessions", live: count(told.moves.live), shadow: count(told.moves.shadow), gain: count(told.moves.live - told.moves.shadow) },
        { name: "Turns refused", live: count(told.refused.live), shadow: count(told.refused.shadow), gain: count(told.refused.live - told.refused.shadow) },
      ]);
      kinds.update(told.kinds);
      apart.update(told.disagreements.map((each, at) => ({ ...each, key: `${at} ${each.session} ${each.live.replica} ${each.shadow.replica}` })));
    },
  };
}

