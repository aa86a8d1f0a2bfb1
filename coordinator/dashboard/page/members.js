// The members of a run as the coordinator answers: a list of values for each field.

import { shortId } from "./format.js";

/** States of a member, as the page calls them. Those that have left are no members any more. */
export const LEFT = "left";
export const STATES = ["in the round", "ready", "preparing", "resting"];

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

/**
 * Return an answer as of the route "members", of the clients of a round as the run was at a version.
 *
 * @param {Object} moment of that version: the last round that had ended then counts, else the one under way.
 * @param {MemberColumns} present members, of which names, versions and trainers are taken.
 */
export function answerAt(moment, present) {
  const rows = new Map(Array.from({ length: present.length }, (_, row) => [present.id(row), row]));
  const clients = moment.last_round?.clients ?? moment.under_way;
  const members = { client_id: clients.map((client) => client.client_id) };
  const add = (name, valueOf) => { members[name] = clients.map(valueOf); };
  for (const name of ["name", "software", "trainer"]) {
    add(name, ({ client_id: id }) => (rows.has(id) ? present.get(name, rows.get(id)) : null));
  }
  add("in_roster", () => true);
  add("share", ({ batches }) => batches);
  add("tokens_per_s", ({ tokens, train_s: trained }) => (trained ? tokens / trained : null));
  add("last_loss", ({ loss }) => loss);
  add("data_wait_s", ({ data_s: waited }) => waited);
  add("data_wait", ({ data_s: waited, train_s: trained }) => (waited !== null && trained ? waited / (waited + trained) : null));
  add("result_bytes", (client) => client.result_bytes);
  add("uploaded_bytes", (client) => client.uploaded_bytes);
  add("downloaded_bytes", (client) => client.downloaded_bytes);
  add("applied", ({ fate }) => Number(fate === "applied"));
  add("lost", ({ fate }) => Number(moment.last_round !== null && fate !== "applied" && fate !== "idle"));
  return { members };
}

/** Return the state of a member. `get(name)` returns one of its fields. */
export function stateOf(get) {
  if (get("left")) return LEFT;
  if (get("rest_s") !== null) return "resting";
  if (get("in_roster")) return "in the round";
  return get("ready") ? "ready" : "preparing";
}
