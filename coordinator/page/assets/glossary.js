// The meanings of the page's words: shown as the title of a word, and in a list below.

import { h } from "./elements.js";
import { WORDS } from "./words.js";

/** Return a word with its meaning as a title. `label` is shown in its place. */
export function term(word, label = word) {
  return h("dfn", { title: WORDS[word] }, label);
}

/** Return a list of these words with their meanings, closed at first. */
export function glossary(words) {
  const entries = words.flatMap((word) => [h("dt", {}, word), h("dd", {}, WORDS[word])]);
  return h("details", { class: "glossary" }, h("summary", {}, "What these words mean"), h("dl", {}, entries));
}
