// The words of the page, each with what it means: shown as a title where the word stands, and in a list below.

import { h } from "./elements.js";

export const WORDS = {
  phase: "What the run does now: it waits for members, prepares, trains, agrees on results, or makes a checkpoint.",
  epoch: "The time between two checkpoints made while nobody trains; it has many rounds.",
  round: "Every client trains on its part of the data, its result is collected, and all results are merged into the model.",
  step: "The number of a round that was applied to the model. A round that fails is tried again under the same step.",
  "time to the end": "Remaining steps times the mean time from one of the last rounds to the next, with those that were not applied and what lies between epochs, without pauses.",
  tokens: "Pieces of text that the model was trained on and whose results were applied.",
  "tokens/s": "Tokens that were applied in the last rounds, divided by the time from the first one's start to the last one's end.",
  "training loss": "How wrong the model's predictions were on the data it trained on, as the clients say: nats per token, lower is better.",
  "held-out loss": "The same on text that it does not train on, as the operator's `epochal evaluate` recorded it.",
  "learning rate": "How far one local step of training moves the model.",
  member: "A machine that has joined the run.",
  ready: "A member that has the model and the data, and can take part in the next round.",
  client: "A member that has work in a round.",
  batch: "A fixed number of samples: the smallest piece of work.",
  applied: "The batches whose results are in the model.",
  carried: "The batches that no result has covered yet, such as those of a client that left: they are in a later round.",
  "under way": "The batches of the round that is trained on now.",
  quarantined: "The batches on which several clients failed: they left the run, with the reason.",
  checkpoint: "The whole model as a file, which the coordinator has checked: from there a new member, or a restart, goes on.",
  version: "The number of a change of the run's published state. The slider goes from version to version.",
  smoothing: "Each point becomes a mean of those before it, the older the less: 0 shows the points as they are.",
  document: "Waiting for the run document that begins the round.",
  data: "Waiting for training data: fetching, decoding and packing it.",
  training: "Computing on the data.",
  encoding: "Making the result small enough to send.",
  upload: "Sending the result.",
  check: "The coordinator, or a checker, checks the result.",
  attestation: "Waiting for the witnesses to say which results came in time.",
  download: "Receiving the other clients' results.",
  replica: "Getting the model of this round ready: fetching and merging the results of the round before.",
  merge: "Averaging all results into the model.",
  witness: "A client that was elected to say which results came in time.",
  attempt: "The number of earlier tries at the same step.",
  median: "Half of the values are smaller, half are larger.",
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
