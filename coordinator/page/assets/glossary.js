// What the words of the page mean: shown as a title where a word stands, and in a list below.

import { h } from "./elements.js";
import { WORDS as SHARED } from "./words.js";

export const WORDS = {
  ...SHARED,
  version: "The number of a change of the run's published state. The slider goes from version to version.",
  smoothing: "Each point becomes a mean of those before it, the older the less: 0 shows the points as they are.",
};

/** Return a word with its meaning as a title. `label` is shown in its place. */
export function term(word, label = word) {
  return h("dfn", { title: WORDS[word] }, label);
}

/** Return a list of these words with their meanings, closed at first. */
export function glossary(words) {
  const entries = words.flatMap((word) => [h("dt", {}, word), h("dd", {}, WORDS[word])]);
  return h("details", { class: "glossary" }, h("summary", {}, "What these words mean"), h("dl", {}, entries));
}
