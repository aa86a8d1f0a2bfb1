// Refusals and failures by kind, each with what it means and a link to its explanation.

import { h } from "./elements.js";
import { visible } from "./format.js";
import { KINDS } from "./kinds.js";

/** Return a kind as a link to the coordinator's page about it: in a tab of its own, since this one may hold a token. */
export function kindLink(kind) {
  if (!Object.hasOwn(KINDS, kind)) return visible(kind);
  return h("a", { href: `help/${KINDS[kind].page}`, target: "_blank", rel: "noopener" }, kind);
}

/** Return the meaning of a kind in a sentence; text in backquotes is code. */
export function meaning(kind) {
  if (!Object.hasOwn(KINDS, kind)) return [];
  return KINDS[kind].means.split("`").map((text, place) => (place % 2 ? h("code", {}, text) : text));
}

/** Return text that breaks over lines in a cell of a table, whose other cells are one line. */
export function prose(text) {
  return h("span", { class: "prose" }, text);
}
