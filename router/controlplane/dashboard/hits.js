// Why the hit rate is what it is: which kinds of turns miss, and which prompts break off from their last.

import { areaChart, joined, shares } from "./charts.js";
import { h, memo, say } from "./dom.js";
import { ago, count, percent, plural } from "./format.js";
import { KINDS, Table, kindTag, meter, panel, sessionLink } from "./parts.js";

const PARTS = { parameters: "what renders the prompt", tools: "tool list", system: "system prompt", message: "a message", prompt: "prompt" };
const CAUSES = {
  digits: ["only its digits differ", "A date, a time or a counter: put it at the end of the prompt, or leave it out."],
  changed: ["another text in its place", "Something is rendered anew, or a list was added to: keep what was sent before as it was."],
  inserted: ["something stands before it that did not", "Add to the end of the history, not into it."],
  removed: ["it is gone, and what followed moved up", "A window that slides over the history costs all behind it: cut seldom, and much."],
  reordered: ["all of it is there in another order", "Keep tools and messages in one order."],
  compacted: ["a shorter history replaced it", "Meant: agents do so whose context is full."],
  rewound: ["taken up again from an earlier point", "Meant."],
  other: ["another conversation under the same id", "Give each conversation an id of its own."],
  unknown: ["too far into the prompt to tell", "It lies beyond what is kept of a prompt."],
};

export function hits() {
  const note = h("p", { class: "note num" });
  const chart = h("div");
  const draw = memo(chart, (points) => (points.some((point) => point !== null) ? areaChart(points, 60) : h("p", { class: "empty" }, "No replica has told cached tokens yet. vLLM does with --enable-prompt-tokens-details.")));
  const kinds = new Table({
    label: "Prompt tokens by kind",
    keyOf: (row) => row.kind,
    empty: "No turn in the last five minutes.",
    columns: [
      { label: "Kind", value: (k) => k.kind, cell: (k) => kindTag(k.kind) },
      { label: "Turns", num: true, value: (k) => count(k.turns) },
      { label: "Prompt", num: true, value: (k) => count(k.prompt_tokens) },
      { label: "Cached", num: true, value: (k) => count(k.cached_tokens) },
      { label: "Hit rate", value: (k) => k.hit_rate, cell: (k) => meter(k.hit_rate, { text: percent(k.hit_rate, 1), tone: "good" }) },
      { label: "Share of all misses", value: (k) => k.missed, cell: (k) => meter(k.missed, { tone: "plain" }), hint: "of the tokens that were computed, how many were this kind's" },
      { label: "Expected, not found", num: true, minor: true, value: (k) => count(Math.max(0, k.predicted_cached_tokens - k.cached_tokens)), hint: "tokens believed to be cached that were not: evicted, or never there" },
      { label: "Means", minor: true, class: "why", value: (k) => KINDS[k.kind] },
    ],
  });
  const causes = new Table({
    label: "Broken chains by cause",
    keyOf: (row) => `${row.part} ${row.cause}`,
    empty: "Every prompt went on from the one before it.",
    columns: [
      { label: "What differs first", value: (b) => PARTS[b.part] ?? b.part },
      { label: "What became of it", value: (b) => CAUSES[b.cause]?.[0] ?? b.cause },
      { label: "Turns", num: true, value: (b) => count(b.turns) },
      { label: "Tokens lost", num: true, value: (b) => count(b.lost_tokens), hint: "that would have been cached, had the prompt gone on" },
      { label: "What to do", class: "why", minor: true, value: (b) => CAUSES[b.cause]?.[1] ?? "–" },
    ],
  });
  const latest = new Table({
    label: "Sessions whose chain broke last",
    keyOf: (row) => row.session,
    empty: "None.",
    columns: [
      { label: "Session", value: (b) => b.session, cell: (b) => sessionLink(b.session) },
      { label: "When", num: true, value: (b) => `${ago(b.age_s)} ago` },
      { label: "Tokens lost", num: true, value: (b) => count(b.lost_tokens) },
      { label: "Why", class: "why", value: (b) => b.why },
    ],
  });
  const silent = h("p", { class: "note", hidden: true });
  return {
    title: "Hit rate",
    element: h(
      "div",
      { class: "fade" },
      h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Hit rate"), note),
      panel("Of prompt tokens, cached", { note: "a minute each" }, chart),
      panel("Who misses", { note: "the last five minutes, by what the router decided" }, kinds.element, silent),
      panel("Broken chains", { note: "prompts that did not go on from the one before, since the start" }, causes.element),
      panel("Where it happened last", {}, latest.element),
    ),
    requests: () => ({ history: { path: "/api/history", every: 10 }, breaks: { path: "/api/breaks?limit=20", every: 4 } }),
    update({ overview: { lately }, history, breaks }) {
      say(note, `${percent(lately.hit_rate, 1)} in the last five minutes: ${count(lately.cached_tokens)} of ${count(lately.prompt_tokens)} tokens${lately.hit_rate === null ? "" : `. Back to source: ${percent(1 - lately.hit_rate, 1)}, which replicas computed`}`);
      draw(shares(joined(history.cached_tokens, 6), joined(history.prompt_tokens, 6)));
      const misses = lately.prompt_tokens - lately.cached_tokens;
      const rows = Object.entries(lately.kinds ?? {}).map(([kind, told]) => ({ kind, ...told, missed: misses ? (told.prompt_tokens - told.cached_tokens) / misses : null }));
      kinds.update(rows.sort((one, other) => (other.missed ?? 0) - (one.missed ?? 0)));
      silent.hidden = !lately.unreported;
      say(silent, `${plural(lately.unreported, "turn")} left out: the replica told no cached tokens. vLLM does with --enable-prompt-tokens-details.`);
      causes.update(breaks.totals);
      latest.update(breaks.latest);
    },
  };
}
