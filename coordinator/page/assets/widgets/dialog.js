// A question before something is done. The browser's own dialog keeps the focus, and gives it back.

import { h, newId } from "../elements.js";

/**
 * Ask whether to do something, and return whether it is wanted. Escape, and leaving the dialog, say no.
 *
 * @param {string} title the question.
 * @param {string[]} lines what will happen, a paragraph each.
 * @param {string} yes the button that does it.
 */
export function ask(title, lines, yes) {
  const titleId = newId("dialog"), textId = newId("dialog");
  return new Promise((resolve) => {
    const no = h("button", { type: "button", autofocus: true, on: { click: () => dialog.close("no") } }, "Cancel");
    const does = h("button", { type: "button", class: "danger", on: { click: () => dialog.close("yes") } }, yes);
    const dialog = h("dialog", { "aria-labelledby": titleId, "aria-describedby": textId },
      h("h2", { id: titleId }, title),
      h("div", { id: textId }, lines.map((line) => h("p", {}, line))),
      h("p", { class: "buttons" }, no, does),
    );
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
    no.focus();
  });
}
