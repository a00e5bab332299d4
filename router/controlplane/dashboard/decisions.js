// Decisions as they happen, and the bill of one: what each option would have cost, in milliseconds.

import { path } from "./api.js";
import { h, memo, say } from "./dom.js";
import { count, ms, percent, plural } from "./format.js";
import { KINDS, Table, facts, kindTag, none, panel, replicaLink, sessionLink, time } from "./parts.js";

const MOST = 100;

const cachedOf = (d) => (d.delivered_cached_tokens === null || d.delivered_cached_tokens === undefined ? null : d.delivered_cached_tokens);

export const decisionColumns = [
  { label: "At", value: (d) => [d.id, d.time], cell: (d) => h("a", { href: `#/decisions/${d.id}`, "aria-label": `Bill of decision ${d.id}` }, time(d.time)) },
  { id: "session", label: "Session", value: (d) => d.session, cell: (d) => sessionLink(d.session) },
  { label: "Kind", value: (d) => d.kind, cell: (d) => kindTag(d.kind) },
  { id: "replica", label: "Replica", value: (d) => d.replica ?? null, cell: (d) => replicaLink(d.replica) },
  { label: "Prompt", num: true, value: (d) => count(d.delivered_prompt_tokens ?? d.prompt_tokens) },
  { label: "Cached", num: true, value: (d) => count(cachedOf(d) ?? d.predicted_cached_tokens), sign: (d) => [cachedOf(d), d.predicted_cached_tokens], cell: (d) => (cachedOf(d) === null ? h("span", { class: "quiet", title: "expected" }, d.predicted_cached_tokens === undefined ? "–" : `≈ ${count(d.predicted_cached_tokens)}`) : count(cachedOf(d))), hint: "tokens; ≈ as expected, while the replica has not told" },
  { label: "Waited", num: true, minor: true, value: (d) => (d.waited_ms ? ms(d.waited_ms) : "–"), hint: "held by the router" },
  { label: "First token", num: true, value: (d) => ms(d.ttft_ms) },
  { label: "End", minor: true, value: (d) => d.outcome ?? (d.kind === "refused" ? d.refused : "running") },
  { label: "Why", value: (d) => d.reason, class: "why", minor: true },
];

export function decisions({ query, go }) {
  const kind = query.get("kind") ?? "";
  const choose = h("select", { name: "kind" }, h("option", { value: "" }, "all kinds"), Object.keys(KINDS).map((each) => h("option", { value: each, selected: each === kind }, each)));
  choose.addEventListener("change", () => go(path("#/decisions", { kind: choose.value }), true));
  const hold = h("button", { type: "button", "aria-pressed": "false" }, "Hold still");
  const missed = h("span", { class: "note num" });
  const table = new Table({ label: "Decisions", keyOf: (d) => d.id, empty: kind ? `None of the latest is of the kind ${kind}.` : "No turn yet.", columns: decisionColumns });
  let still = false;
  let last = 0;
  hold.addEventListener("click", () => {
    still = !still;
    hold.setAttribute("aria-pressed", String(still));
    say(missed, "");
  });
  return {
    title: "Decisions",
    element: h(
      "div",
      { class: "fade" },
      h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Decisions"), h("p", { class: "note" }, "the latest first; the time leads to the bill")),
      h("div", { class: "tools" }, h("label", {}, "Kind", choose), hold, missed),
      h("section", { class: "panel", "aria-label": "Decisions" }, table.element),
    ),
    requests: () => ({ decisions: { path: path("/api/decisions", { limit: MOST, brief: 1, kind }) } }),
    update({ decisions: { decisions: latest } }) {
      const newest = latest[0]?.id ?? 0;
      if (still) {
        say(missed, newest > last ? `${plural(newest - last, "newer one")}` : "");
        return;
      }
      last = newest;
      table.update(latest);
    },
  };
}

const TERMS = [
  ["wait_ms", "Wait", "until the replica has prefilled what was sent there before, and has a place and KV blocks"],
  ["fetch_ms", "Fetch", "by how much fetching KV, from its host or another replica, outlasts that wait"],
  ["compute_ms", "Compute", "the tokens that lie nowhere, at the length of their context"],
  ["crowd_ms", "Crowd", "what other turns there lose by it"],
  ["displacement_ms", "Displacement", "what must be forgotten for it and is still wanted"],
  ["move_ms", "Move", "for leaving home"],
  ["residue_ms", "Residue", "what is left behind there, and keeps the place of what is wanted"],
  ["risk_ms", "Risk", "the chance that a pull fails, times what that would cost"],
];

const FACTS = [
  ["cached_tokens", "Cached there", count],
  ["host_tokens", "of it on the host", count],
  ["in_flight", "Turns running", count],
  ["pending_tokens", "Tokens to prefill", count],
  ["held_tokens", "Tokens waiting here", count],
  ["free_tokens", "KV free", count],
];

export function bill({ id }) {
  const head = h("h1", { tabindex: "-1" }, `Decision ${id}`);
  const known = h("div");
  const table = h("div");
  let all = false;
  let over = false;
  let shown = null;
  const draw = () => table.replaceChildren(shown.options?.length ? billTable(shown, all, () => { all = true; draw(); }) : priceTable(shown));
  const drawKnown = memo(known, (d) => [
    facts(
      ["Kind", kindTag(d.kind)],
      d.kind === "refused" ? ["Refused", d.refused] : ["Replica", replicaLink(d.replica)],
      ["At", time(d.time)],
      ["Session", sessionLink(d.session)],
      ["Home", replicaLink(d.home)],
      d.pull ? ["Pulled", h("span", {}, `${count(d.pull.tokens)} tokens from `, replicaLink(d.pull.source))] : null,
      ["Prompt", `${count(d.delivered_prompt_tokens ?? d.prompt_tokens)} tokens`],
      ["Expected cached", `${count(d.predicted_cached_tokens)} tokens`],
      ["Cached, as told", d.delivered_cached_tokens === null || d.delivered_cached_tokens === undefined ? "–" : `${count(d.delivered_cached_tokens)} tokens (${percent(d.delivered_prompt_tokens ? d.delivered_cached_tokens / d.delivered_prompt_tokens : null)})`],
      ["Held by the router", ms(d.waited_ms)],
      ["First token after", ms(d.ttft_ms)],
      ["Whole turn", ms(d.duration_ms)],
      ["End", d.outcome ?? (d.kind === "refused" ? "refused" : "running")],
      ["Policy", d.policy],
      ["Attempt", d.attempt === undefined ? "–" : d.attempt + 1],
      ["Model", d.model],
      ["Tenant", d.tenant || "–"],
      ["Path", d.path],
    ),
  ]);
  const why = h("p", { class: "lead" });
  return {
    title: `Decision ${id}`,
    element: h(
      "div",
      { class: "fade" },
      h("p", { class: "crumb" }, h("a", { href: "#/decisions" }, "Decisions")),
      h("div", { class: "head" }, head, why),
      panel("The bill", { note: "options in columns, milliseconds in rows; the cheapest left" }, table, explained()),
      panel("What came of it", {}, known),
    ),
    // Once it is over nothing of it changes, and it need not be kept any longer.
    requests: () => ({ decision: { path: `/api/decisions/${id}`, every: over ? Infinity : 0 } }),
    update({ decision }) {
      over = decision.kind === "refused" || decision.outcome !== null;
      say(why, decision.reason === decision.kind ? decision.reason : `${decision.kind}: ${decision.reason}`);
      drawKnown(decision);
      if (shown === null) {
        shown = decision;
        draw();
      }
    },
  };
}

const explained = () => h("details", {}, h("summary", {}, "What the terms mean"), h("dl", { class: "terms" }, TERMS.flatMap(([, name, text]) => [h("dt", {}, name), h("dd", {}, text)])));

const same = (option, decision) => option.replica === decision.replica && option.source === (decision.pull?.source ?? null);

function billTable(decision, all, showAll) {
  const sorted = [...decision.options].sort((one, other) => one.price_ms - other.price_ms);
  const cheapest = sorted[0];
  const few = sorted.filter((option, at) => at < 5 || same(option, decision) || (option.replica === decision.home && option.way === "local"));
  const shown = all ? sorted : few;
  const candidates = new Map(decision.candidates.map((candidate) => [candidate.replica, candidate]));
  const most = Math.max(1e-9, ...shown.flatMap((option) => TERMS.map(([field]) => option[field])));
  const classOf = (option) => (same(option, decision) ? "opt chosen" : "opt");
  const columns = shown.map((option) =>
    h(
      "th",
      { scope: "col", class: classOf(option) },
      h("span", { class: "mark" }, [same(option, decision) && "chosen", option === cheapest && "cheapest", option.replica === decision.home && "home"].filter(Boolean).join(" · ")),
      replicaLink(option.replica),
      h("span", { class: "way" }, option.way === "pull" ? `pull ${count(option.pulled_tokens)} from ${option.source}` : "with what lies there"),
    ),
  );
  const rows = TERMS.map(([field, name, text]) =>
    h(
      "tr",
      {},
      h("th", { scope: "row", title: text }, name),
      shown.map((option) => {
        const bar = h("i");
        bar.style.width = `${(100 * option[field]) / most}%`;
        return h("td", { class: `${classOf(option)}${option[field] ? "" : " zero"}` }, exact(option[field]), h("span", { class: "amount", "aria-hidden": "true" }, bar));
      }),
    ),
  );
  const sum = h("tr", { class: "sum" }, h("th", { scope: "row" }, "Price"), shown.map((option) => h("td", { class: classOf(option) }, exact(option.price_ms))));
  const asides = FACTS.map(([field, name, format]) => h("tr", { class: "aside" }, h("th", { scope: "row" }, name), shown.map((option) => h("td", { class: classOf(option) }, format(candidates.get(option.replica)?.[field])))));
  const limits = shown.some((option) => candidates.get(option.replica)?.over)
    ? h("tr", { class: "aside" }, h("th", { scope: "row" }, "Over a limit"), shown.map((option) => h("td", { class: classOf(option) }, candidates.get(option.replica)?.over ?? "–")))
    : null;
  return h(
    "div",
    {},
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "The bill" },
      h("table", { class: "bill" }, h("caption", { class: "unseen" }, "Options in columns, terms of the price in rows, milliseconds"), h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "ms"), columns)), h("tbody", {}, rows, sum, asides, limits)),
    ),
    shown.length < sorted.length ? h("p", {}, h("button", { type: "button", class: "link", onclick: showAll }, `Show all ${sorted.length} options`)) : null,
    same(cheapest, decision) || !shown.some((option) => same(option, decision)) ? null : h("p", { class: "note" }, `The cheapest was not chosen: ${decision.reason}.`),
  );
}

/** Milliseconds with a digit behind the point, so that columns line up. */
const exact = (value) => value.toLocaleString("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

/** What a strategy compared that does not price in milliseconds. */
function priceTable(decision) {
  if (!decision.candidates) return h("p", { class: "empty" }, "Nothing was priced.");
  const list = new Table({
    label: "Candidates",
    keyOf: (candidate) => candidate.replica,
    sort: "price",
    down: false,
    columns: [
      { id: "replica", label: "Replica", value: (c) => c.replica, sign: (c) => [c.replica, c.replica === decision.replica], cell: (c) => [replicaLink(c.replica), c.replica === decision.replica ? h("strong", {}, " chosen") : null] },
      { id: "price", label: "Figure", num: true, value: (c) => c.price, cell: (c) => (c.price === null ? none() : c.price.toFixed(1)), hint: "in the strategy's own unit; less is better" },
      ...FACTS.map(([field, name, format]) => ({ id: field, label: name, num: true, value: (c) => c[field], cell: (c) => format(c[field]) })),
      { id: "over", label: "Over a limit", value: (c) => c.over ?? "–" },
    ],
  });
  list.update(decision.candidates);
  return list.element;
}
