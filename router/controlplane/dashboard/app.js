// Which view is shown, and the one loop that asks for what it needs. Nothing is asked for while nobody looks.

import { Refused, Unreachable, ask, token } from "./api.js";
import { decisions, bill } from "./decisions.js";
import { h, only, say } from "./dom.js";
import { fleet, replica } from "./fleet.js";
import { flows } from "./flows.js";
import { count, seconds, timeOf } from "./format.js";
import { hits } from "./hits.js";
import { overview } from "./overview.js";
import { policy, shadow } from "./policy.js";
import { queue } from "./queue.js";
import { session, sessions } from "./sessions.js";

const EVERY_S = 2;
const AGAIN_S = [1, 2, 3, 5];
const RESTARTED_S = 30;

const VIEWS = [
  ["", overview],
  ["fleet", fleet],
  ["fleet/", (context) => replica({ ...context, name: context.rest })],
  ["sessions", sessions],
  ["sessions/", (context) => session({ ...context, key: context.rest })],
  ["decisions", decisions],
  ["decisions/", (context) => bill({ ...context, id: context.rest })],
  ["queue", queue],
  ["flows", flows],
  ["hits", hits],
  ["policy", policy],
  ["shadow", shadow],
];

const TABS = [
  ["", "Overview"],
  ["fleet", "Fleet"],
  ["sessions", "Sessions"],
  ["decisions", "Decisions"],
  ["queue", "Queue"],
  ["flows", "Flows"],
  ["hits", "Hit rate"],
  ["policy", "Policy"],
  ["shadow", "Shadow"],
];

const $ = (id) => document.getElementById(id);
const main = $("main");

let view = null;
let shown = null;
let answers = {};
let askedAt = {};
let running = null;
let timer = 0;
let failures = 0;
let lastGood = null;
let instance = null;
let restartedAt = null;

// --- where we are --------------------------------------------------------------------------------------

function located() {
  const [way, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const slash = way.indexOf("/");
  const section = slash < 0 ? way : way.slice(0, slash);
  let rest = "";
  try {
    rest = slash < 0 ? "" : decodeURIComponent(way.slice(slash + 1));
  } catch {
    // Not one of our links.
  }
  return { section, rest, query: new URLSearchParams(query) };
}

function go(hash, replace = false) {
  if (replace) history.replaceState(null, "", hash);
  else location.hash = hash;
  if (replace) show(false);
}

function show(focus = true) {
  const { section, rest, query } = located();
  const found = VIEWS.find(([name]) => name === (rest ? `${section}/` : section)) ?? VIEWS[0];
  const context = { rest, query, go, poll: () => round(true) };
  const active = document.activeElement?.name;
  view = found[1](context);
  shown = section;
  answers = { overview: answers.overview };
  askedAt = {};
  only(main, view.element);
  view.element.classList.add("loading");
  document.title = `${view.title} · Homing`;
  markTabs();
  if (focus) {
    window.scrollTo(0, 0);
    main.querySelector("h1")?.focus({ preventScroll: true });
  } else if (active) main.querySelector(`[name="${active}"]`)?.focus({ preventScroll: true });
  round(true);
}

const tabs = new Map();
for (const [name, text] of TABS) {
  const badge = h("span", { class: "badge", hidden: true });
  const link = h("a", { href: `#/${name}` }, text, badge);
  tabs.set(name, { link, badge });
  $("tabs").append(h("li", {}, link));
}

function markTabs() {
  for (const [name, { link }] of tabs) {
    if (name === shown) {
      link.setAttribute("aria-current", "page");
      // Only sideways: the page itself must not jump.
      const strip = link.closest("nav");
      strip.scrollLeft = Math.max(0, link.offsetLeft - strip.clientWidth / 2);
    } else link.removeAttribute("aria-current");
  }
}

function badge(name, text, tone = "") {
  const { badge: element } = tabs.get(name);
  element.hidden = !text;
  say(element, text);
  element.className = `badge ${tone}`;
}

// --- asking --------------------------------------------------------------------------------------------

async function round(now = false) {
  if (now) running?.abort();
  else if (running) return;
  clearTimeout(timer);
  if (document.hidden) return;
  const controller = new AbortController();
  running = controller;
  const asking = view;
  let pause_s = EVERY_S;
  try {
    await look(asking, controller.signal);
    failures = 0;
  } catch (error) {
    if (controller.signal.aborted) return;
    pause_s = AGAIN_S[Math.min(failures, AGAIN_S.length - 1)];
    failed(error);
    // What was refused will be again: somebody has to do something first.
    if (error instanceof Refused) return;
  } finally {
    if (running === controller) running = null;
  }
  if (!controller.signal.aborted && view === asking) timer = setTimeout(round, 1000 * pause_s);
}

async function look(asking, signal) {
  const wanted = { overview: { path: "/api/overview" }, ...asking.requests() };
  const due = Object.entries(wanted).filter(([name, { every = 0 }]) => !(name in answers) || performance.now() - (askedAt[name] ?? 0) >= 1000 * every - 100);
  const came = await Promise.all(
    due.map(async ([name, { path, optional }]) => {
      try {
        return [name, await ask(path, { signal })];
      } catch (error) {
        if (optional && error instanceof Refused && error.status === 404) return [name, null];
        throw error;
      }
    }),
  );
  if (signal.aborted || view !== asking) return;
  for (const [name, answer] of came) {
    answers[name] = answer;
    askedAt[name] = performance.now();
  }
  if (!main.contains(asking.element)) only(main, asking.element);
  lastGood = new Date();
  frame(answers.overview);
  asking.update(answers);
  asking.element.classList.remove("loading");
  main.classList.remove("stale");
}

/** What stands above every view. */
function frame(told) {
  const before = instance;
  instance = told.router.instance;
  if (before !== null && before !== instance) {
    restartedAt = new Date();
    askedAt = {};
  }
  const restarted = restartedAt !== null && Date.now() - restartedAt.getTime() < 1000 * RESTARTED_S;
  banner(restarted ? `The router restarted at ${timeOf(restartedAt)}: history begins anew.` : "", true);
  const ready = $("ready");
  ready.hidden = false;
  ready.className = told.ready ? "chip" : "chip bad";
  say(ready, told.ready ? "ready" : "not ready");
  say($("policy"), `policy ${told.policies.join(", ")}`);
  say($("version"), `${told.router.version} ${told.router.build} · up ${seconds(Math.floor(told.router.up_s))}`);
  state("live", "Live");
  $("leave").hidden = !token.get();
  const { fleet: whole } = told;
  const down = whole.health.down;
  badge("fleet", down ? `${down} down` : count(whole.replicas), down ? "bad" : "");
  badge("queue", whole.held ? count(whole.held) : "", "warn");
  badge("policy", told.notices.some((notice) => notice.about === "policy") ? "refused" : "", "bad");
  tabs.get("shadow").link.parentElement.hidden = !told.shadow && shown !== "shadow";
}

function state(kind, text) {
  const element = $("state");
  element.className = `state ${kind}`;
  say(element, text);
}

function banner(text, soft = false) {
  const element = $("banner");
  element.hidden = !text;
  element.className = soft ? "banner soft" : "banner";
  say(element, text);
}

function failed(error) {
  if (error instanceof Refused && error.status === 401) {
    login(Boolean(token.get()));
    return;
  }
  if (error instanceof Refused) {
    only(main, h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Not to be had")), h("p", {}, error.message), h("p", {}, h("a", { href: "#/" }, "Back to the overview")));
    state("live", "Live");
    return;
  }
  failures += 1;
  main.classList.add("stale");
  if (!(error instanceof Unreachable)) console.error(error);
  state("stale", lastGood ? `Stale since ${timeOf(lastGood)}` : "No answer");
  banner(lastGood ? `The router does not answer. What is shown is as of ${timeOf(lastGood)}; trying again…` : "The router does not answer; trying again…");
}

function login(again) {
  token.forget();
  clearTimeout(timer);
  state("stale", "Token needed");
  banner("");
  const field = h("input", { type: "password", name: "token", autocomplete: "current-password", required: true });
  const form = h(
    "form",
    {
      onsubmit: (event) => {
        event.preventDefault();
        token.set(field.value.trim());
        only(main, view.element);
        round(true);
      },
    },
    h("label", {}, "Admin token", field),
    again ? h("p", { class: "wrong", role: "alert" }, "The router does not take this token.") : null,
    h("div", { class: "buttons" }, h("button", { class: "main" }, "Show the dashboard")),
  );
  only(main, h("div", { class: "panel login" }, h("h1", { tabindex: "-1" }, "Admin token"), h("p", { class: "note" }, "This router's admin port can be reached from other machines, so everything but this page wants its token: HOMING_ADMIN_TOKEN, or what admin.token_file holds. It is kept until this tab is closed."), form));
  field.focus();
}

$("leave").addEventListener("click", () => {
  token.forget();
  round(true);
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) round(true);
});
window.addEventListener("hashchange", () => show());
window.addEventListener("online", () => round(true));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

show(false);
