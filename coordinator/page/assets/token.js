// Asking for a token. It goes into memory only: no address, no storage, no form that is sent.

import { fill, h, newId } from "./elements.js";

/**
 * Return a form that asks for a token, and calls `given(token)`.
 *
 * @param {string} why shown above the field.
 */
export function tokenForm(why, given) {
  const id = newId("token");
  const input = h("input", { id, type: "password", autocomplete: "off", spellcheck: "false", required: true });
  const note = h("p", { role: "alert" });
  const form = h("form", { class: "token" },
    h("p", {}, why),
    h("label", { for: id }, "Token"), input,
    h("button", { type: "submit" }, "Use this token"),
    h("p", { class: "quiet" }, "It is kept in this page's memory until you close or reload it, and nowhere else."),
    note,
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const token = input.value.trim();
    input.value = "";
    if (!/^[\x21-\x7e]{1,4096}$/.test(token)) {
      fill(note, "This is no token: a token is one word of letters, digits and punctuation.");
      return;
    }
    fill(note);
    given(token);
  });
  return form;
}
