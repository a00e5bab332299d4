// What several views are built of: tags, links, panels, tiles, meters, tables.

import { sparkline } from "./charts.js";
import { h, keyed, memo, only, say } from "./dom.js";
import { percent, short, timeOf } from "./format.js";

/** Decision kinds in the order in which they are drawn, and what they mean. */
export const KINDS = {
  home: "to the replica that holds its KV",
  pull: "away from home, its KV fetched from there",
  new: "nobody held it: placed",
  spill: "away from home, computed again",
  failover: "home is gone, down or failed it",
  pass: "no session to route by",
  refused: "no replica took it",
};

export const kindTag = (kind) => h("span", { class: `kind k-${kind in KINDS ? kind : "pass"}` }, kind);

export const replicaLink = (name) =>
  name ? h("a", { href: `#/fleet/${encodeURIComponent(name)}`, class: "name" }, name) : h("span", { class: "none" }, "–");

export const sessionLink = (key) =>
  key
    ? h("a", { href: `#/sessions/${encodeURIComponent(key)}`, class: "key", title: key }, short(key))
    : h("span", { class: "none" }, "no session");

export const time = (iso) => h("time", { datetime: iso, class: "num", title: iso }, timeOf(iso));

export const none = (text = "–") => h("span", { class: "none" }, text);

let ids = 0;

/** A section with a heading. */
export function panel(title, { note, id, wide, level = 2 } = {}, ...body) {
  const name = id ?? `p${++ids}`;
  return h(
    "section",
    { class: wide ? "panel span" : "panel", "aria-labelledby": name },
    h("header", {}, h(`h${level}`, { id: name }, title), note ? h("p", { class: "note" }, note) : null),
    ...body,
  );
}

/** A figure with its name, a line beneath, and the last hour. */
export function tile(label, href) {
  const value = h("strong", { class: "num" }, "–");
  const below = h("span", { class: "sub num" });
  const drawn = h("div", { class: "spark", "aria-hidden": "true" });
  const draw = memo(drawn, (points) => (points ? sparkline(points) : null));
  const element = h(
    "a",
    { class: "tile", href },
    h("span", { class: "label" }, label),
    value,
    below,
    drawn,
  );
  return {
    element,
    update(text, sub, points, tone) {
      say(value, text);
      say(below, sub ?? "");
      element.dataset.tone = tone ?? "";
      draw(points ?? null);
    },
  };
}

/** A bar of a share, 0 … 1, with its figure; `None` where it is not known. */
export function meter(share, { text, tone, title } = {}) {
  if (share === null || share === undefined) return none();
  const level = tone ?? (share > 0.97 ? "bad" : share > 0.85 ? "warn" : "");
  const bar = h("span", { class: `meter ${level}`, title, "aria-hidden": "true" }, h("i"));
  bar.firstChild.style.width = `${Math.min(100, Math.max(0, 100 * share))}%`;
  return h("span", { class: "metered" }, bar, h("span", { class: "num" }, text ?? percent(share)));
}

const TONES = { healthy: "good", probation: "warn", starting: "warn", down: "bad" };

/** A replica's state, in a colour and in words. */
export function health(replica) {
  const state = replica.draining ? (replica.leaving ? "leaving" : "draining") : replica.health;
  return h("span", { class: `health ${TONES[state] ?? "idle"}`, title: replica.why || undefined }, state);
}

/** Names and colours of kinds. */
export const legend = (kinds) => h("ul", { class: "legend" }, kinds.map((kind) => h("li", { title: KINDS[kind] }, kindTag(kind))));

/**
 * A table that is kept up to date row by row.
 *
 * A column: `label`; `value` of an item, which is shown and sorted by; `cell`, where it is shown otherwise, and
 * then `sign` is what that is made of; `num`, `minor` (left out on narrow screens), `hint`.
 */
export class Table {
  constructor({ label, columns, keyOf, empty, sort, down = true, most = 500 }) {
    this.columns = columns;
    this.keyOf = keyOf;
    this.most = most;
    this.by = sort ? columns.find((column) => column.id === sort) : null;
    this.down = down;
    this.items = [];
    const sortable = sort !== undefined;
    this.heads = columns.map((column) => {
      const text = sortable && column.id
        ? h("button", { type: "button", onclick: () => this.sortBy(column) }, column.label)
        : column.label;
      return h("th", { scope: "col", class: classes(column), title: column.hint }, text);
    });
    this.body = h("tbody");
    this.empty = h("p", { class: "empty", hidden: true }, empty ?? "Nothing here.");
    this.cut = h("p", { class: "note", hidden: true });
    this.element = h(
      "div",
      {},
      h(
        "div",
        { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
        h("table", {}, h("caption", { class: "unseen" }, label), h("thead", {}, h("tr", {}, this.heads)), this.body),
      ),
      this.empty,
      this.cut,
    );
    this.mark();
  }

  sortBy(column) {
    this.down = this.by === column ? !this.down : true;
    this.by = column;
    this.mark();
    this.update(this.items);
  }

  mark() {
    this.columns.forEach((column, at) => {
      if (column === this.by) this.heads[at].setAttribute("aria-sort", this.down ? "descending" : "ascending");
      else this.heads[at].removeAttribute("aria-sort");
    });
  }

  update(items) {
    this.items = items;
    let rows = items;
    if (this.by) {
      const of = this.by.value;
      const sign = this.down ? -1 : 1;
      rows = [...items].sort((one, other) => sign * compare(of(one), of(other)));
    }
    const cut = rows.length > this.most;
    if (cut) {
      say(this.cut, `The first ${this.most} of ${rows.length} are shown.`);
      rows = rows.slice(0, this.most);
    }
    this.cut.hidden = !cut;
    this.empty.hidden = rows.length > 0;
    this.element.firstChild.hidden = rows.length === 0;
    keyed(this.body, rows, this.keyOf, () => this.row(), (row, item) => this.refresh(row, item));
  }

  row() {
    return h("tr", {}, this.columns.map((column, at) => h(at ? "td" : "th", { scope: at ? undefined : "row", class: classes(column) })));
  }

  refresh(row, item) {
    this.columns.forEach((column, at) => {
      const cell = row.children[at];
      const value = column.value(item);
      const sign = JSON.stringify(column.sign ? column.sign(item) : value);
      if (cell.sign === sign) return;
      cell.sign = sign;
      if (column.cell) only(cell, column.cell(item));
      else say(cell, value === null || value === undefined ? "–" : String(value));
    });
  }
}

const classes = (column) => [column.num && "n", column.minor && "minor", column.class].filter(Boolean).join(" ") || undefined;

/** What is not known comes last, whichever way. */
function compare(one, other) {
  if (one === other) return 0;
  if (one === null || one === undefined) return -1;
  if (other === null || other === undefined) return 1;
  return typeof one === "string" ? one.localeCompare(other, "en", { numeric: true }) : one - other;
}

/** Names and values, one below the other. */
export const facts = (...pairs) =>
  h(
    "dl",
    { class: "facts" },
    pairs.filter(Boolean).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value ?? "–"))),
  );
