// Asks the admin API. The token, where one is needed, is kept for this tab alone and goes along as a header.

const KEPT = "homing-admin-token";
const TIMEOUT_MS = 10_000;

/** The router answered, and not as wished. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The router did not answer. */
export class Unreachable extends Error {}

export const token = {
  get: () => sessionStorage.getItem(KEPT),
  set: (value) => sessionStorage.setItem(KEPT, value),
  forget: () => sessionStorage.removeItem(KEPT),
};

/** JSON, or text where it is no JSON. Throws `Refused` and `Unreachable`. */
export async function ask(path, { method = "GET", body, signal } = {}) {
  const headers = {};
  const held = token.get();
  if (held) headers["X-Homing-Token"] = held;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    const limit = AbortSignal.timeout(TIMEOUT_MS);
    answer = await fetch(path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
      cache: "no-store",
      credentials: "same-origin",
      redirect: "error",
    });
    const is_json = (answer.headers.get("Content-Type") ?? "").startsWith("application/json");
    const content = is_json ? await answer.json() : await answer.text();
    if (answer.ok) return content;
    throw new Refused(answer.status, content?.error?.message ?? `the router answered ${answer.status}`);
  } catch (error) {
    if (error instanceof Refused || signal?.aborted) throw error;
    throw new Unreachable(error.message);
  }
}

/** A path with its parameters, the empty ones left out. */
export function path(base, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== null && value !== "") query.set(name, value);
  }
  const text = query.toString();
  return text ? `${base}?${text}` : base;
}
