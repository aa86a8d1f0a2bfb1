// The members of a run as the coordinator answers: a list of values for each field.

import { shortId } from "./format.js";

/** States of a member, as the page calls them. Those that have left are no members any more. */
export const LEFT = "left";
const AHEAD = "training ahead"; // for the round after this one
export const STATES = ["in the round", AHEAD, "ready", "preparing", "resting"];

export class MemberColumns {
  #present;
  #gone;
  #states;
  #searched;

  /** @param {Object} answer of the route "members": those that are present, then those that have left. */
  constructor(answer = null) {
    this.#present = answer?.members ?? { client_id: [] };
    this.#gone = answer?.gone ?? { client_id: [] };
    this.presentCount = this.#present.client_id.length;
    this.#states = new Array(this.length);
    this.#searched = new Array(this.length);
  }

  get length() {
    return this.presentCount + this.#gone.client_id.length;
  }

  /** Return a member's value of one field; null if the coordinator does not know it. */
  get(name, row) {
    const isPresent = row < this.presentCount;
    const columns = isPresent ? this.#present : this.#gone;
    return columns[name]?.[isPresent ? row : row - this.presentCount] ?? null;
  }

  /** Return whether any member has a value of this field. */
  has(name) {
    return [this.#present, this.#gone].some((columns) => columns[name]?.some((value) => value !== null));
  }

  /** Return all fields of a member. */
  row(row) {
    return Object.fromEntries(Object.keys(this.#present).map((name) => [name, this.get(name, row)]));
  }

  id(row) {
    return this.get("client_id", row);
  }

  /** Return a member's name, or the beginning of its id. */
  called(row) {
    return this.get("name", row) || shortId(this.id(row));
  }

  state(row) {
    return (this.#states[row] ??= stateOf((name) => this.get(name, row)));
  }

  /** Return whether all of these words, in small letters, are in what a member is found by. */
  hasWords(row, words) {
    if (!words.length) return true;
    const text = (this.#searched[row] ??= ["name", "client_id", "software", "trainer"]
      .map((name) => this.get(name, row) ?? "").join(" ").toLowerCase());
    return words.every((word) => text.includes(word));
  }
}

/** Return the state of a member. `get(name)` returns one of its fields. */
export function stateOf(get) {
  if (get("left")) return LEFT;
  if (get("rest_s") !== null) return "resting";
  if (get("ahead_step") !== null) return AHEAD;
  if (get("in_roster")) return "in the round";
  return get("ready") ? "ready" : "preparing";
}

/** Return the state of a member in words: with the step for which it trains ahead. */
export function stateWords(get) {
  const state = stateOf(get);
  return state === AHEAD ? `${state}, step ${get("ahead_step")}` : state;
}
