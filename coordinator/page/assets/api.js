// Requests to the coordinator. A token is kept here, in memory only: not in an address, nor in any storage.

const PROBLEM_PREFIX = "urn:epochal:problem:";

/** An answer that is a refusal (RFC 9457), or no answer at all: then its kind is "unreachable". */
export class Problem extends Error {
  constructor(kind, status, detail, retryAfterS = null) {
    super(detail);
    this.kind = kind;
    this.status = status;
    this.retryAfterS = retryAfterS;
  }

  /** Whether the coordinator wants a token, or another one. */
  get wantsToken() {
    return this.status === 401 || this.status === 403;
  }
}

/** Return the refusal that an answer is. */
export async function problemOf(answer) {
  let kind = "unknown", detail = `the coordinator answered ${answer.status}`;
  try {
    const body = await answer.json();
    kind = String(body.type).replace(PROBLEM_PREFIX, "");
    detail = String(body.detail);
  } catch { /* a proxy's own page: the status is all there is */ }
  const retry = Number(answer.headers.get("retry-after"));
  return new Problem(kind, answer.status, detail, Number.isFinite(retry) && retry > 0 ? retry : null);
}

export class Api {
  #token = null;

  /** @param {URL} base the address below which the coordinator has its routes; ends in "/". */
  constructor(base) {
    this.base = base;
  }

  /** Whether requests show a token. */
  get hasToken() {
    return this.#token !== null;
  }

  /** Show this token from now on; null shows none. */
  setToken(token) {
    this.#token = token;
  }

  /**
   * Return the answer to a request. Throws a `Problem` if it is a refusal, or if there is none.
   *
   * `token` is shown in place of the one that all requests show.
   */
  async request(path, { method = "GET", body, headers = {}, signal, token = this.#token } = {}) {
    const options = { method, headers: { Accept: "application/json", ...headers }, signal, redirect: "error" };
    if (token !== null) {
      options.headers.Authorization = `Bearer ${token}`;
      options.cache = "no-store";
    }
    if (body !== undefined) {
      options.headers["Content-Type"] = "application/json";
      options.body = JSON.stringify(body);
    }
    let answer;
    try {
      answer = await fetch(new URL(path, this.base), options);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem("unreachable", 0, "the coordinator does not answer");
    }
    if (!answer.ok) throw await problemOf(answer);
    return answer;
  }

  /** Return the JSON of an answer; null if it is empty. Throws as `request`. */
  async json(path, options = {}) {
    return (await this.answered(path, options))[0];
  }

  /** Return the JSON of an answer, null if it is empty, and its headers. Throws as `request`. */
  async answered(path, options = {}) {
    const answer = await this.request(path, options);
    if (answer.status === 204) return [null, answer.headers];
    try {
      return [await answer.json(), answer.headers];
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem("unreachable", 0, "the coordinator's answer broke off");
    }
  }
}
