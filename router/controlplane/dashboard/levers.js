// The few things that can be done from here. Each is asked about first, and needs the admin token.

import { Refused, ask, token } from "./api.js";
import { h, say } from "./dom.js";

/** Ask whether to do it, do it, and say what came of it. `done` is called once it is. */
export function lever({ title, text, action, method, path, body, done, danger = false }) {
  const wrong = h("p", { class: "wrong", role: "alert", hidden: true });
  const field = h("input", { type: "password", autocomplete: "current-password", name: "token" });
  const wanted = h("label", {}, "Admin token", field);
  const go = h("button", { class: danger ? "danger" : "main" }, action);
  const dialog = h("dialog", { "aria-labelledby": "lever-title" });
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", { id: "lever-title" }, title),
    h("p", {}, text),
    wanted,
    wrong,
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), go),
  );
  wanted.hidden = Boolean(token.get());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const own = field.value.trim();
    if (own) token.set(own);
    go.disabled = true;
    try {
      await ask(path, { method, body });
      dialog.close();
      done?.();
    } catch (error) {
      if (error instanceof Refused && error.status === 401) {
        token.forget();
        wanted.hidden = false;
        field.focus();
      }
      wrong.hidden = false;
      say(wrong, own || !(error instanceof Refused && error.status === 401) ? error.message : "This needs the admin token: the router prints it at its start, or takes it from its config.");
    } finally {
      go.disabled = false;
    }
  });
  dialog.append(form);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
