// The first look: what needs somebody, how it goes, where turns went, who is busy, what moved and why.

import { homes, joined, shares, stackedBars } from "./charts.js";
import { h, keyed, memo, say } from "./dom.js";
import { count, ms, percent, plural, rate } from "./format.js";
import { KINDS, Table, health, kindTag, meter, panel, replicaLink, sessionLink, tile, time } from "./parts.js";

const WHERE = { replicas: "#/fleet", policy: "#/policy", discovery: "#/policy", "kv-events": "#/policy", "kv-agents": "#/policy", router: "#/" };
const MINUTE = 6;
const LEAST_TURNS = 20;

export function overview() {
  const notices = h("ul", { class: "notices", "aria-label": "Needs attention" });
  const well = h("p", { class: "allwell" }, "Nothing needs attention.");
  const tiles = {
    hits: tile("Hit rate", "#/hits"),
    ttft: tile("First token, median", "#/decisions"),
    turns: tile("Turns a second", "#/decisions"),
    running: tile("Turns running", "#/fleet"),
    held: tile("Turns waiting here", "#/queue"),
    sessions: tile("Sessions", "#/sessions"),
  };
  const chart = h("div");
  const kinds = h("ul", { class: "legend" });
  const drawChart = memo(chart, (series) => (series ? stackedBars(series, 60) : h("p", { class: "empty" }, "No turn yet.")));
  const live = h("div");
  const drawHomes = memo(live, (replicas) => (replicas.length ? homes(replicas) : h("p", { class: "empty" }, "There are no replicas.")));
  const busy = new Table({
    label: "The busiest replicas",
    keyOf: (replica) => replica.name,
    empty: "There are no replicas.",
    columns: [
      { label: "Replica", value: (r) => r.name, cell: (r) => replicaLink(r.name) },
      { label: "State", value: (r) => [r.health, r.draining, r.leaving, r.why], cell: health },
      { label: "Running", num: true, value: (r) => count(r.in_flight) },
      { label: "To prefill", num: true, minor: true, value: (r) => count(r.pending_tokens), hint: "tokens sent there and not yet prefilled" },
      { label: "Waiting", num: true, value: (r) => count(r.held), hint: "turns that wait in the router to go there" },
      { label: "KV in use", value: (r) => r.report?.kv_usage ?? null, cell: (r) => meter(r.report?.kv_usage), minor: true },
      { label: "Hit rate", num: true, value: (r) => percent(r.lately?.hit_rate) },
    ],
  });
  const moves = new Table({
    label: "The latest moves",
    keyOf: (move) => `${move.time} ${move.session} ${move.target}`,
    empty: "Every session is where it was.",
    columns: [
      { label: "At", value: (m) => m.time, cell: (m) => time(m.time) },
      { label: "Session", value: (m) => m.session, cell: (m) => sessionLink(m.session) },
      { label: "From", value: (m) => m.source, cell: (m) => replicaLink(m.source) },
      { label: "To", value: (m) => m.target, cell: (m) => replicaLink(m.target) },
      { label: "Kind", value: (m) => m.kind, cell: (m) => kindTag(m.kind) },
      { label: "Why", value: (m) => m.reason, class: "why", minor: true },
    ],
  });
  const element = h(
    "div",
    { class: "fade" },
    h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Overview"), h("p", { class: "note" }, "figures of the last five minutes, lines of the last hour")),
    notices,
    well,
    h("div", { class: "tiles" }, Object.values(tiles).map((each) => each.element)),
    h(
      "div",
      { class: "grid" },
      withClass(panel("Where turns went", { note: "a minute each, by kind" }, chart, kinds), "half"),
      withClass(panel("Where sessions live", { note: "their KV, in what each replica can hold; beneath, how many" }, live), "half"),
      withClass(panel("Who is busy", { note: h("a", { href: "#/fleet" }, "all replicas") }, busy.element), "half"),
      withClass(panel("What moved, and why", { note: h("a", { href: "#/flows" }, "all flows") }, moves.element), "half"),
    ),
  );
  return {
    title: "Overview",
    element,
    requests: () => ({
      replicas: { path: "/api/replicas" },
      moves: { path: "/api/moves?limit=8" },
      history: { path: "/api/history", every: 10 },
    }),
    update({ overview: now, replicas, moves: moved, history }) {
      showNotices(notices, well, now.notices);
      const { lately, fleet } = now;
      const sums = (name) => joined(history[name], MINUTE);
      const cached = sums("cached_tokens");
      tiles.hits.update(percent(lately.hit_rate, 1), `${count(lately.cached_tokens)} of ${count(lately.prompt_tokens)} tokens`, shares(cached, sums("prompt_tokens")), lately.hit_rate !== null && lately.turns > LEAST_TURNS && lately.hit_rate < 0.3 ? "warn" : "");
      tiles.ttft.update(ms(lately.ttft_ms.p50), `95% within ${ms(lately.ttft_ms.p95)}`, joined(history.ttft_p50_ms, MINUTE, false));
      tiles.turns.update(rate(lately.turns_per_s), lately.failed || lately.refused ? `${plural(lately.refused, "refused", "refused")}, ${plural(lately.failed, "failed attempt")}` : "none refused, none failed", sums("turns"), lately.refused ? "warn" : "");
      tiles.running.update(count(fleet.in_flight), `${count(fleet.pending_tokens)} tokens to prefill`);
      tiles.held.update(count(fleet.held), fleet.held ? "until a replica has room" : "every turn goes at once", null, fleet.held > 50 * Math.max(1, fleet.replicas) ? "bad" : "");
      tiles.sessions.update(count(fleet.sessions_known), `${count(fleet.working_set_tokens)} tokens of KV`);
      const order = Object.keys(KINDS).filter((kind) => kind !== "refused");
      const series = Object.fromEntries(order.map((kind) => [kind, joined(history.kinds[kind] ?? [], MINUTE)]));
      series.refused = sums("refused");
      const any = Object.values(series).some((column) => column.some((value) => value));
      drawChart(any ? series : null);
      const shown = [...order.map((kind) => [kind, lately.kinds[kind]?.turns ?? 0]), ["refused", lately.refused]].filter(([, turns]) => turns);
      keyed(kinds, shown, ([kind]) => kind, ([kind]) => h("li", { title: KINDS[kind] }, kindTag(kind), h("span", { class: "num" })), (item, [, turns]) => say(item.lastChild, count(turns)));
      const all = replicas.replicas;
      drawHomes(all.map(({ name, health: state, draining, sessions, working_set_tokens, capacity_tokens, in_flight }) => ({ name, health: state, draining, sessions, working_set_tokens, capacity_tokens, in_flight })));
      const load = (replica) => replica.pending_tokens + 100 * (replica.in_flight + replica.held);
      busy.update([...all].sort((one, other) => load(other) - load(one)).slice(0, 8));
      moves.update(moved.moves);
    },
  };
}

export function withClass(element, name) {
  element.classList.add(name);
  return element;
}

function showNotices(list, well, notices) {
  list.hidden = notices.length === 0;
  well.hidden = notices.length > 0;
  const most = 8;
  const shown = notices.slice(0, most).map((notice) => ({ ...notice, key: `${notice.about} ${notice.name} ${notice.level} ${notice.text}` }));
  if (notices.length > most) shown.push({ key: "more", level: "note", about: "replicas", name: "", text: `and ${notices.length - most} more` });
  keyed(list, shown, (notice) => notice.key, (notice) => h("li", { class: notice.level }, h("a", { href: hrefOf(notice) }, notice.text)));
}

const hrefOf = (notice) => (notice.about === "replicas" && notice.name ? `#/fleet/${encodeURIComponent(notice.name)}` : (WHERE[notice.about] ?? "#/"));

