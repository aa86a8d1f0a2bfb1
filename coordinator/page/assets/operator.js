// What an operator does, with the admin token. The token stays in this module's memory: it is in no address, no storage
// and no element, goes to the coordinator alone, and only with what the operator has said yes to.

let held = null; // undefined: the token with which the page itself was opened

export const operator = {
  /** Whether a token was given. */
  get hasToken() {
    return held !== null;
  },

  /** Use this token from now on; null forgets the last one. */
  use(token) {
    held = token;
  },

  /** Use the token that all requests of the page show already, because only the operator may see the run. */
  usePages() {
    held = undefined;
  },

  /** Throw a `Problem` unless the coordinator takes the token as the admin's. */
  async check(store) {
    await this.act(store, "invitations", { method: "GET" });
  },

  /** Return the JSON of an answer to a request with the token; null if it is empty. Throws a `Problem` as `Api.json`. */
  async act(store, place, options = {}) {
    return store.api.json(store.path(place), { method: "POST", token: held, ...options });
  },
};
