// Sessions: a page of them at a time, found by the router; and one, with where it lies and where it lived.

import { path } from "./api.js";
import { lanes, turnStrip } from "./charts.js";
import { h, memo, say } from "./dom.js";
import { ago, count, ms, percent, plural } from "./format.js";
import { lever } from "./levers.js";
import { decisionColumns } from "./decisions.js";
import { Table, facts, kindTag, meter, none, panel, replicaLink, sessionLink, time } from "./parts.js";

const PAGE = 50;
const ORDERS = { recent: "latest turn", tokens: "most KV", turns: "most turns", moves: "most moves" };
const TOLD = { events: "the replica's KV events", agent: "its KV agent" };

const broken = (session) => Object.values(session.breaks ?? {}).reduce((sum, number) => sum + number, 0);

export const sessionColumns = [
  { label: "Session", value: (s) => s.key, cell: (s) => sessionLink(s.key) },
  { id: "home", label: "Home", value: (s) => s.home, cell: (s) => replicaLink(s.home) },
  { label: "KV there", num: true, value: (s) => count(s.resident_tokens), hint: "tokens of its last prompt and reply" },
  { label: "Turns", num: true, value: (s) => count(s.turns) },
  { label: "Moves", num: true, value: (s) => count(s.moves) },
  { label: "Broken chains", num: true, minor: true, value: broken, hint: "turns that did not go on from the one before" },
  { label: "Latest turn", num: true, value: (s) => `${ago(s.idle_s)} ago` },
  { label: "Age", num: true, minor: true, value: (s) => ago(s.age_s) },
  { label: "Model", minor: true, value: (s) => s.model },
  { label: "Tenant", minor: true, value: (s) => s.tenant || "–" },
];

export function sessions({ query, go }) {
  const wish = { find: query.get("find") ?? "", home: query.get("home") ?? "", order: query.get("order") ?? "recent", page: Math.max(0, Number.parseInt(query.get("page") ?? "0", 10) || 0) };
  const find = h("input", { type: "search", name: "find", value: wish.find, placeholder: "part of key, model or tenant", autocomplete: "off", spellcheck: "false" });
  const home = h("select", { name: "home" }, h("option", { value: "" }, "any replica"));
  const order = h("select", { name: "order" }, Object.entries(ORDERS).map(([value, text]) => h("option", { value, selected: value === wish.order }, text)));
  const table = new Table({ label: "Sessions", keyOf: (s) => s.key, empty: "No session is like that.", columns: sessionColumns });
  const note = h("p", { class: "note num" });
  const back = h("button", { type: "button", onclick: () => turn(wish.page - 1) }, "Newer");
  const on = h("button", { type: "button", onclick: () => turn(wish.page + 1) }, "Older");
  const range = h("span", { class: "note num", role: "status" });
  const show = () => go(path("#/sessions", { find: find.value.trim(), home: home.value, order: order.value === "recent" ? "" : order.value }), true);
  const turn = (page) => go(path("#/sessions", { find: wish.find, home: wish.home, order: wish.order === "recent" ? "" : wish.order, page: page || "" }), true);
  const form = h("form", { class: "tools", role: "search", onsubmit: (event) => { event.preventDefault(); show(); } }, h("label", {}, "Find", find), h("label", {}, "Lives on", home), h("label", {}, "Order by", order), h("button", { type: "submit" }, "Find"));
  home.addEventListener("change", show);
  order.addEventListener("change", show);
  let filled = "";
  return {
    title: "Sessions",
    element: h("div", { class: "fade" }, h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Sessions"), note), form, h("section", { class: "panel", "aria-label": "Sessions" }, table.element, h("div", { class: "pages" }, back, on, range))),
    requests: () => ({
      sessions: { path: path("/api/sessions", { find: wish.find, home: wish.home, order: wish.order, limit: PAGE, offset: wish.page * PAGE || "" }) },
      replicas: { path: "/api/replicas", every: 10 },
    }),
    update({ sessions: found, replicas }) {
      const names = replicas.replicas.map((replica) => replica.name);
      if (wish.home && !names.includes(wish.home)) names.unshift(wish.home);
      if (filled !== JSON.stringify(names)) {
        filled = JSON.stringify(names);
        home.replaceChildren(h("option", { value: "" }, "any replica"), ...names.map((name) => h("option", { value: name, selected: name === wish.home }, name)));
      }
      table.update(found.sessions);
      const first = wish.page * PAGE;
      const everything = !wish.find && !wish.home && wish.order === "recent";
      const of = everything ? found.total : found.matching;
      say(note, `${plural(found.total, "session")}${found.searched < found.total && !everything ? `, the latest ${count(found.searched)} searched` : ""}`);
      say(range, found.sessions.length ? `${count(first + 1)} to ${count(first + found.sessions.length)} of ${count(of)}` : "");
      back.disabled = wish.page === 0;
      on.disabled = first + PAGE >= of;
    },
  };
}

export function session({ key, go }) {
  const known = h("div");
  const drawKnown = memo(known, (list) =>
    list.length === 0
      ? h("p", { class: "empty" }, "It has ended, or was idle for too long: what is below is what it was.")
      : list.map((s) => [
          list.length > 1 ? h("h3", {}, s.model) : null,
          facts(["Home", replicaLink(s.home)], ["KV at home", `${count(s.resident_tokens)} tokens`], ["Turns", count(s.turns)], ["Moves", count(s.moves)], ["Latest turn", `${ago(s.idle_s)} ago`], ["Age", ago(s.age_s)], ["Model", s.model], ["Tenant", s.tenant || "–"], ["Known by", s.source]),
          s.last_break ? h("p", { class: "note" }, `${plural(broken(s), "broken chain")}. The last, ${ago(s.last_break.age_s)} ago: ${s.last_break.why}. It cost some ${count(s.last_break.lost_tokens)} tokens.`) : null,
        ]),
  );
  const lies = new Table({
    label: "Where it lies",
    keyOf: (where) => `${where.place} ${where.told_by}`,
    empty: "No replica and no agent says what it holds of this session; the router goes by its own books.",
    columns: [
      { label: "Place", value: (w) => w.place, cell: (w) => replicaLink(w.place) },
      { label: "Tokens", num: true, value: (w) => count(w.tokens) },
      { label: "Told by", value: (w) => TOLD[w.told_by] ?? w.told_by },
    ],
  });
  const drawing = h("div");
  const drawStays = memo(drawing, (stays) => (stays.length ? [lanes(stays), h("p", { class: "note" }, "Bars are stays, in the colour of what they began with; left is earlier.")] : null));
  const stays = new Table({
    label: "Stays",
    keyOf: (stay) => stay.since,
    empty: "No turn of it has ended yet.",
    columns: [
      { label: "Replica", value: (s) => s.replica, cell: (s) => replicaLink(s.replica) },
      { label: "From", value: (s) => s.since, cell: (s) => time(s.since) },
      { label: "Until", value: (s) => s.until, cell: (s) => time(s.until), minor: true },
      { label: "Turns", num: true, value: (s) => count(s.turns) },
      { label: "Hit rate", num: true, value: (s) => percent(s.prompt_tokens ? s.cached_tokens / s.prompt_tokens : null, 1) },
      { label: "Began as", value: (s) => [s.kind, s.pulled_from], cell: (s) => [kindTag(s.kind), s.pulled_from ? [" from ", replicaLink(s.pulled_from)] : null] },
      { label: "Why", value: (s) => s.reason, class: "why" },
    ],
  });
  const strip = h("div");
  const drawStrip = memo(strip, (turns) => (turns.length ? turnStrip(turns) : null));
  const turns = new Table({
    label: "Last turns",
    keyOf: (turn) => turn.time,
    empty: "None has ended yet.",
    columns: [
      { label: "At", value: (t) => t.time, cell: (t) => time(t.time) },
      { label: "Replica", value: (t) => t.replica, cell: (t) => replicaLink(t.replica) },
      { label: "Kind", value: (t) => t.kind, cell: (t) => kindTag(t.kind) },
      { label: "Prompt", num: true, value: (t) => count(t.prompt_tokens) },
      { label: "Expected cached", num: true, minor: true, value: (t) => count(t.predicted_cached_tokens) },
      { label: "Cached", num: true, value: (t) => count(t.delivered_cached_tokens) },
      { label: "Hit", value: (t) => (t.delivered_cached_tokens === null ? null : t.prompt_tokens ? t.delivered_cached_tokens / t.prompt_tokens : 0), cell: (t) => (t.delivered_cached_tokens === null ? none("not told") : meter(t.prompt_tokens ? t.delivered_cached_tokens / t.prompt_tokens : 0, { tone: "good" })) },
      { label: "Waited", num: true, minor: true, value: (t) => ms(t.waited_ms) },
      { label: "First token", num: true, value: (t) => ms(t.ttft_ms) },
      { label: "End", minor: true, value: (t) => t.outcome },
    ],
  });
  const bills = new Table({ label: "Decisions about it", keyOf: (d) => d.id, empty: "None is among the latest that are kept.", columns: decisionColumns.filter((column) => column.id !== "session") });
  const end = h("button", { type: "button" }, "Forget session…");
  end.addEventListener("click", () =>
    lever({ title: "Forget this session?", text: "Its next turn is placed anew, as if it were the first, and agents let go of its KV.", action: "Forget", danger: true, method: "DELETE", path: `/api/sessions/${encodeURIComponent(key)}`, done: () => go("#/sessions") }),
  );
  return {
    title: "Session",
    element: h(
      "div",
      { class: "fade" },
      h("p", { class: "crumb" }, h("a", { href: "#/sessions" }, "Sessions")),
      h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Session ", h("span", { class: "key" }, key)), h("span", { class: "fill" }), end),
      h(
        "div",
        { class: "grid" },
        add(panel("What is known", {}, known), "two"),
        add(panel("Where it lies", { note: "what others say" }, lies.element), "third"),
        panel("Timeline", { note: "where it lived, and why it moved" }, drawing, stays.element),
        panel("Last turns", { note: "bars: the prompt's length; coloured: what was cached" }, strip, turns.element),
        panel("Decisions about it", { note: "with their bills" }, bills.element),
      ),
    ),
    requests: () => ({
      session: { path: `/api/sessions/${encodeURIComponent(key)}` },
      decisions: { path: path("/api/decisions", { session: key, limit: 25, brief: 1 }) },
    }),
    update({ session: told, decisions }) {
      drawKnown(told.sessions.map((each) => ({ ...each, idle_s: Math.floor(each.idle_s), age_s: Math.floor(each.age_s) })));
      end.hidden = told.sessions.length === 0;
      lies.update(told.whereabouts);
      const timeline = told.timeline ?? { stays: [], turns: [] };
      drawStays(timeline.stays);
      stays.update([...timeline.stays].reverse());
      drawStrip(timeline.turns);
      turns.update([...timeline.turns].reverse());
      bills.update(decisions.decisions);
    },
  };
}

function add(element, name) {
  element.classList.add(name);
  return element;
}
