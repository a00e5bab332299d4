// Drawings. Each has a text or a table beside it that says the same, so none of them is read out.

import { h, s } from "./dom.js";
import { count, plural } from "./format.js";

/** The last hour as a line; gaps where there is no figure. */
export function sparkline(points) {
  const known = points.filter((point) => point !== null && point !== undefined);
  if (known.length < 2) return null;
  const top = Math.max(...known) || 1;
  const step = 100 / Math.max(1, points.length - 1);
  const lines = [];
  let line = [];
  points.forEach((point, at) => {
    if (point === null || point === undefined) {
      if (line.length) lines.push(line);
      line = [];
    } else line.push(`${(at * step).toFixed(2)},${(29 - (27 * point) / top).toFixed(2)}`);
  });
  if (line.length) lines.push(line);
  const drawn = lines.map((each) => s("polyline", { points: each.length > 1 ? each.join(" ") : `${each[0]} ${each[0]}` }));
  return s("svg", { viewBox: "0 0 100 30", preserveAspectRatio: "none" }, drawn);
}

/** Columns of a series joined, `by` slices to one. A slice that is not over yet is left out. */
export function joined(column, by, add = true) {
  const over = column.slice(0, -1);
  const from = over.length % by;
  const found = [];
  for (let at = from; at < over.length; at += by) {
    const part = over.slice(at, at + by).filter((value) => value !== null);
    const sum = part.reduce((whole, value) => whole + value, 0);
    found.push(add ? sum : part.length ? sum / part.length : null);
  }
  return found;
}

/** One share for each of some joined slices. */
export const shares = (parts, wholes) => wholes.map((whole, at) => (whole ? parts[at] / whole : null));

/** Bars of kinds above one another, the oldest left. `series`: kind → figures. */
export function stackedBars(series, minutes) {
  const kinds = Object.keys(series);
  const length = Math.max(1, ...kinds.map((kind) => series[kind].length));
  const sums = Array.from({ length }, (_, at) => kinds.reduce((sum, kind) => sum + (series[kind][at] ?? 0), 0));
  const top = Math.max(1, ...sums);
  const height = 120;
  const slot = 600 / 60;
  const shift = 600 - length * slot;
  const bars = [];
  for (let at = 0; at < length; at += 1) {
    let y = height;
    for (const kind of kinds) {
      const size = ((series[kind][at] ?? 0) / top) * height;
      if (size <= 0) continue;
      y -= size;
      bars.push(s("rect", { class: `f-${kind}`, x: (shift + at * slot + 1).toFixed(1), y: y.toFixed(2), width: slot - 2, height: size.toFixed(2) }));
    }
  }
  return h(
    "div",
    { class: "chart", "aria-hidden": "true" },
    h("span", { class: "axis top num" }, `${count(top)} a minute`),
    s("svg", { viewBox: `0 0 600 ${height}`, preserveAspectRatio: "none", class: "bars" }, bars),
    h("span", { class: "axis left" }, `${minutes} min ago`),
    h("span", { class: "axis right" }, "now"),
  );
}

/** A share over the hour, 0 … 1. */
export function areaChart(points, minutes) {
  const slot = 600 / 59;
  const shift = 600 - (points.length - 1) * slot;
  const at = (index) => (shift + index * slot).toFixed(1);
  const parts = [];
  let run = [];
  const close = () => {
    if (run.length) {
      const line = run.map(([index, value]) => `${at(index)},${(120 - 118 * value).toFixed(1)}`);
      parts.push(s("polygon", { class: "area", points: `${at(run[0][0])},120 ${line.join(" ")} ${at(run.at(-1)[0])},120` }));
      parts.push(s("polyline", { class: "edge", points: line.length > 1 ? line.join(" ") : `${line[0]} ${line[0]}` }));
    }
    run = [];
  };
  points.forEach((value, index) => (value === null ? close() : run.push([index, value])));
  close();
  const grid = [0.25, 0.5, 0.75].map((share) => s("line", { class: "grid", x1: 0, x2: 600, y1: 120 - 118 * share, y2: 120 - 118 * share }));
  return h(
    "div",
    { class: "chart", "aria-hidden": "true" },
    h("span", { class: "axis top num" }, "100%"),
    s("svg", { viewBox: "0 0 600 120", preserveAspectRatio: "none", class: "bars" }, grid, parts),
    h("span", { class: "axis left" }, `${minutes} min ago`),
    h("span", { class: "axis right" }, "now"),
  );
}

/** Where sessions live: a bar for each replica, as high as their KV, against what it can hold. */
export function homes(replicas) {
  const start = commonStart(replicas.map((replica) => replica.name));
  const top = Math.max(1, ...replicas.flatMap((replica) => [replica.capacity_tokens ?? 0, replica.working_set_tokens]));
  const part = (name, tokens) => {
    const element = h("i", { class: name });
    element.style.height = `${(100 * tokens) / top}%`;
    return element;
  };
  return h(
    "ul",
    { class: replicas.length > 32 ? "homes many" : "homes" },
    replicas.map((replica) => {
      const { working_set_tokens: living, capacity_tokens: capacity } = replica;
      const state = replica.draining ? "draining" : replica.health;
      const text = `${replica.name}: ${plural(replica.sessions, "session")}, ${count(living)} tokens${capacity ? ` of ${count(capacity)} that fit` : ""}, ${plural(replica.in_flight, "turn")} running, ${state}`;
      const bar = h("span", { class: `home s-${state}` }, part("fits", capacity ?? top), part("living", living), capacity && living > capacity ? part("most", capacity) : null);
      return h(
        "li",
        {},
        h("a", { href: `#/fleet/${encodeURIComponent(replica.name)}`, title: text, "aria-label": text }, bar, h("span", { class: "tag" }, replica.name.slice(start)), h("span", { class: "tag num quiet" }, count(replica.sessions))),
      );
    }),
  );
}

/** How far all names begin alike, up to a dash or dot: what is left is enough to tell them apart. */
function commonStart(names) {
  if (names.length < 2) return 0;
  const [first] = names;
  let same = 0;
  while (same < first.length && names.every((name) => name[same] === first[same])) same += 1;
  const part = first.slice(0, same).search(/[-._/][^-._/]*$/) + 1;
  return names.some((name) => name.length <= part) ? 0 : part;
}

const FLOW_KINDS = [["pulls", "pull"], ["spills", "spill"], ["failovers", "failover"]];

/** Ribbons from sources, left, to targets, right: as wide as there were turns. */
export function flowsChart(flows, most = 16) {
  const shown = flows.slice(0, most);
  const size = (flow) => flow.pulls + flow.spills + flow.failovers + flow.under_way;
  const sum = shown.reduce((whole, flow) => whole + size(flow), 0) || 1;
  const sides = [stacked(shown, "source", size), stacked(shown, "target", size)];
  const gap = 14;
  const names = Math.max(sides[0].size, sides[1].size);
  const height = Math.max(160, names * 34);
  const unit = (height - gap * (names + 1)) / sum;
  const place = (side) => {
    const total = [...side.values()].reduce((whole, value) => whole + value, 0);
    let y = (height - total * unit - gap * (side.size - 1)) / 2;
    const at = new Map();
    for (const [name, value] of side) {
      at.set(name, { y, height: Math.max(2, value * unit), next: y });
      y += value * unit + gap;
    }
    return at;
  };
  const [left, right] = sides.map(place);
  const ribbons = [];
  for (const flow of shown) {
    for (const [field, kind] of FLOW_KINDS) {
      const number = flow[field] + (field === "pulls" ? flow.under_way : 0);
      if (!number) continue;
      const wide = Math.max(1, number * unit);
      const from = left.get(flow.source);
      const to = right.get(flow.target);
      const y1 = from.next + wide / 2;
      const y2 = to.next + wide / 2;
      from.next += number * unit;
      to.next += number * unit;
      const title = s("title", {}, `${flow.source} → ${flow.target}: ${plural(number, kind)}`);
      ribbons.push(s("path", { class: `ribbon l-${kind}${flow.under_way && kind === "pull" ? " moving" : ""}`, d: `M150 ${y1} C 300 ${y1}, 300 ${y2}, 450 ${y2}`, "stroke-width": wide.toFixed(2) }, title));
    }
  }
  const nodes = (at, x, anchor) =>
    [...at].flatMap(([name, { y, height: tall }]) => [
      s("rect", { class: "node", x: anchor === "end" ? x : x - 5, y, width: 5, height: tall, rx: 1.5 }),
      s("text", { class: "nodename", x: anchor === "end" ? x - 8 : x + 8, y: y + tall / 2, "text-anchor": anchor, "dominant-baseline": "central" }, name.length > 20 ? `${name.slice(0, 19)}…` : name),
    ]);
  return s("svg", { viewBox: `0 0 600 ${height}`, class: "flows", "aria-hidden": "true" }, ribbons, nodes(left, 145, "end"), nodes(right, 455, "start"));
}

function stacked(flows, field, size) {
  const sums = new Map();
  for (const flow of flows) sums.set(flow[field], (sums.get(flow[field]) ?? 0) + size(flow));
  return new Map([...sums].sort((one, other) => other[1] - one[1]));
}

/** A session's stays: a lane for each replica, time from left to right. */
export function lanes(stays) {
  const names = [...new Set(stays.map((stay) => stay.replica))].slice(-8);
  const shown = stays.filter((stay) => names.includes(stay.replica));
  const start = new Date(shown[0].since).getTime();
  const end = Math.max(new Date(shown.at(-1).until).getTime(), start + 1000);
  const x = (iso) => 6 + (588 * (new Date(iso).getTime() - start)) / (end - start);
  const lane = 26;
  const y = (name) => names.indexOf(name) * lane + lane / 2;
  const drawn = names.map((name) => s("line", { class: "grid", x1: 0, x2: 600, y1: y(name), y2: y(name) }));
  shown.forEach((stay, at) => {
    const from = x(stay.since);
    const wide = Math.max(4, x(stay.until) - from);
    if (at) {
      const before = shown[at - 1];
      const leave = Math.min(from, x(before.until));
      drawn.push(s("path", { class: `hop l-${stay.kind}`, d: `M${leave} ${y(before.replica)} C ${from} ${y(before.replica)}, ${leave} ${y(stay.replica)}, ${from} ${y(stay.replica)}` }));
    }
    drawn.push(s("rect", { class: `f-${stay.kind}`, x: from, y: y(stay.replica) - 6, width: wide, height: 12, rx: 3 }, s("title", {}, `${stay.replica}: ${plural(stay.turns, "turn")}, ${stay.kind}: ${stay.reason}`)));
  });
  const drawing = s("svg", { viewBox: `0 0 600 ${names.length * lane}`, preserveAspectRatio: "none" }, drawn);
  drawing.style.height = `${names.length * lane}px`;
  return h("div", { class: "lanes", "aria-hidden": "true" }, h("ul", {}, names.map((name) => h("li", {}, name))), drawing);
}

/** Turns side by side: as high as the prompt is long, filled as far as it was cached. */
export function turnStrip(turns) {
  const top = Math.max(1, ...turns.map((turn) => turn.prompt_tokens));
  return h(
    "ol",
    { class: "strip", "aria-hidden": "true" },
    turns.map((turn) => {
      const cached = turn.delivered_cached_tokens ?? 0;
      const whole = h("span", { class: "whole" });
      const part = h("i", { class: `f-${turn.kind}` });
      whole.style.height = `${Math.max(2, (100 * turn.prompt_tokens) / top)}%`;
      part.style.height = `${turn.prompt_tokens ? Math.min(100, (100 * cached) / turn.prompt_tokens) : 0}%`;
      whole.append(part);
      const failed = turn.outcome === "completed" ? "" : `, ${turn.outcome}`;
      return h("li", { class: failed ? "failed" : undefined, title: `${turn.replica}, ${turn.kind}: ${count(cached)} of ${count(turn.prompt_tokens)} tokens cached${failed}` }, whole);
    }),
  );
}
