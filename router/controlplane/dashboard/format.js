// Figures as people read them: few digits, a unit, and a dash for what is not known.

const NONE = "–";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

const known = (value) => value !== undefined && value !== null && Number.isFinite(value);

/** A count: 1,234 · 12.3k · 4.56M. */
export function count(value) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 1e9) return `${digits(value / 1e9)}G`;
  if (size >= 1e6) return `${digits(value / 1e6)}M`;
  if (size >= 1e4) return `${digits(value / 1e3)}k`;
  return whole.format(value);
}

/** Three digits that count. */
export function digits(value) {
  const size = Math.abs(value);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

/** A rate a second. */
export const rate = (value) => (!known(value) ? NONE : value === 0 ? "0" : digits(value));

/** Milliseconds: 0.4 ms · 412 ms · 1.24 s · 2 min 05 s. */
export function ms(value) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size === 0) return "0 ms";
  if (size < 10) return `${value.toFixed(1)} ms`;
  if (size < 1000) return `${value.toFixed(0)} ms`;
  return seconds(value / 1000);
}

/** A span of seconds: 4.2 s · 48 s · 2 min 05 s · 3 h 12 min · 2 d 4 h. */
export function seconds(value) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size < 10) return `${value.toFixed(size < 1 ? 2 : 1)} s`;
  if (size < 60) return `${value.toFixed(0)} s`;
  const whole = Math.round(value);
  if (size < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  if (size < 86400) return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** How long ago, in as few words as can be: 4 s · 12 min · 3 h · 2 d. */
export function ago(value) {
  if (!known(value)) return NONE;
  if (value < 60) return `${Math.max(0, Math.floor(value))} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min`;
  if (value < 86400) return `${Math.floor(value / 3600)} h`;
  return `${Math.floor(value / 86400)} d`;
}

/** A share of 0 … 1. */
export function percent(value, fraction = 0) {
  return known(value) ? `${(100 * value).toFixed(fraction)}%` : NONE;
}

export function bytes(value) {
  if (!known(value)) return NONE;
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (value >= size) return `${digits(value / size)} ${unit}`;
  }
  return `${value} B`;
}

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

/** A date of the API as the time of day here. */
export function timeOf(iso) {
  const at = iso instanceof Date ? iso : new Date(iso);
  return Number.isNaN(at.getTime()) ? NONE : clock.format(at);
}

/** A key, cut so that it can still be told from others. */
export const short = (key) => (key && key.length > 12 ? `${key.slice(0, 10)}…` : key || NONE);

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
