// Text to copy, with a button that works without the clipboard's permission as well.

import { fill, h, newId, setText } from "../elements.js";
import { CERTIFICATE_FILE } from "../words.js";

/** Return a block of text with a button that copies it: { element, setText(text) }. `label` names it. */
export function copyable(label, text) {
  const id = newId("copy");
  const shown = h("code", { id, tabindex: 0, "aria-label": label }, text);
  const said = h("span", { role: "status", class: "quiet" });
  const button = h("button", { type: "button", "aria-describedby": id, on: { click: copyNow } }, "Copy");

  async function copyNow() {
    fill(said);
    const isCopied = (await byPermission(shown.textContent)) || bySelection(shown);
    if (isCopied) button.focus();
    setText(said, isCopied ? "Copied" : "It is selected: copy it with Ctrl+C (⌘C on a Mac)");
  }

  const element = h("div", { class: "copyable" }, h("pre", {}, shown), button, said);
  return { element, setText: (changed) => { if (changed !== shown.textContent) { setText(shown, changed); fill(said); } } };
}

async function byPermission(text) {
  try {
    await navigator.clipboard.writeText(text); // there is none on a page without TLS, or it is refused
    return true;
  } catch {
    return false;
  }
}

/** Select an element's text, and copy the selection as a key would. Return whether that was possible. */
function bySelection(element) {
  const selection = getSelection();
  selection.removeAllRanges();
  const range = document.createRange();
  range.selectNodeContents(element);
  selection.addRange(range);
  element.focus({ preventScroll: true });
  try {
    return document.execCommand("copy");
  } catch {
    return false;
  }
}

/** Return the page's address as a command takes it, with the coordinator's certificate if only those trust it who have it. */
export function reached(base, guide) {
  const address = quoted(base.href.replace(/\/$/, ""));
  return guide?.own_certificate && base.protocol === "https:" ? `${address} --tls-ca ${CERTIFICATE_FILE}` : address;
}

/** Return a word for a POSIX shell: as it is where nothing in it means something, else between quotes. */
export function quoted(word) {
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}
