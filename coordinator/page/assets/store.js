// The page's knowledge of the run. Panels read it, and are called when it has changed.
//
// Memory stays flat however long a tab is open: rows and answers that are kept have a maximum number.

import { Problem } from "./api.js";
import { EventStream } from "./events.js";
import { POINTS, Rounds } from "./rounds.js";

const HIDDEN_MS = 60_000; // a tab that nobody has seen for so long stops following: others need its connection
const ASK_AGAIN_MS = 2_000;
const NOT_YET_MS = 100; // until a poll that could not ask tries again
const MAX_ASK_AGAIN_MS = 30_000;

export class Store {
  #listeners = new Set();
  #scheduled = false;
  #stream = null;
  #hiddenTimer = null;
  #reading = null;

  constructor(api) {
    this.api = api;
    /** Id of the run, and the path of its routes; null until the coordinator has answered. */
    this.runId = null;
    /** The run document that is published now, and the rows of rounds that have ended. */
    this.document = null;
    this.rounds = new Rounds();
    /** The last page of the history without its rows: next, detailed_from, lineage. */
    this.page = null;
    /** { state: "connecting" | "live" | "lost" | "refused" | "hidden", attempt, waitMs, problem } */
    this.connection = { state: "connecting", attempt: 0, waitMs: 0, problem: null };
    /** Why the history could not be read; null if it could. */
    this.problem = null;
    /** Who is a member, and how far the round has come. Kept by `follow`. */
    this.present = null;
    /** { waiting, ends_s, began, explanation } in the coordinator's words: its wait, why the phase began, its speed. */
    this.now = null;
  }

  /** Path of one of the run's routes, such as "history". */
  path(place) {
    return `v1/runs/${encodeURIComponent(this.runId)}${place ? `/${place}` : ""}`;
  }

  /** Call `listener()` after changes, at most once a frame. Return a function that ends this. */
  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  changed() {
    if (this.#scheduled) return;
    this.#scheduled = true;
    const tell = () => {
      this.#scheduled = false;
      for (const listener of this.#listeners) listener();
    };
    if (document.visibilityState === "hidden") setTimeout(tell, 0); else requestAnimationFrame(tell);
  }

  /** Read the run, and follow it from then on. Tries again until the coordinator answers. */
  async start() {
    document.addEventListener("visibilitychange", () => this.#visibilityChanged());
    addEventListener("online", () => this.#stream?.hurry());
    for (let attempt = 1; this.runId === null; attempt += 1) {
      try {
        this.runId = (await this.api.json("v1/runs")).runs[0];
      } catch (problem) {
        const waitMs = Math.min(MAX_ASK_AGAIN_MS, 500 * 2 ** Math.min(attempt, 8));
        this.#connectionChanged({ state: "lost", attempt, waitMs, problem });
        await new Promise((resolve) => setTimeout(resolve, waitMs));
      }
    }
    this.#connect();
    this.#readDocument();
    await this.readHistory();
  }

  /** Read the run document by itself: events only begin once the coordinator has read the history. */
  async #readDocument() {
    try {
      const found = await this.api.json(this.path(""), { token: null }); // with a member's token, its client would count as heard
      this.document ??= found;
      this.changed();
    } catch { /* the events bring it, or say why not */ }
  }

  /** Use this token from now on, and read everything again. */
  restart(token) {
    this.api.setToken(token);
    this.problem = null;
    if (this.runId === null) return;
    this.#connectionChanged({ state: "connecting", attempt: 0, waitMs: 0, problem: null });
    this.#connect();
    this.readHistory();
  }

  /** Read the rows of all rounds again. */
  async readHistory() {
    this.#reading ??= this.#readHistory().finally(() => { this.#reading = null; });
    await this.#reading;
  }

  async #readHistory() {
    for (;;) {
      try {
        const { rounds, ...page } = await this.api.json(this.path(`history?points=${POINTS}`));
        this.rounds = new Rounds(rounds);
        this.page = page;
        this.problem = null;
        this.changed();
        return;
      } catch (problem) {
        if (problem.wantsToken) return this.#connectionChanged({ state: "refused", attempt: 0, waitMs: 0, problem });
        this.problem = problem;
        this.changed();
        const waitMs = (problem.retryAfterS ?? ASK_AGAIN_MS / 1000) * 1000;
        await new Promise((resolve) => setTimeout(resolve, waitMs));
      }
    }
  }

  /**
   * Ask a route again and again, while the page is seen: `told(answer)` for each answer, `failed(problem)` otherwise.
   *
   * @param {function(): string|null} path what to ask; null for nothing this time.
   * @return {function()} ends it; its `hurry()` asks at once.
   */
  poll(path, everyMs, told, failed = () => {}) {
    const abort = new AbortController();
    let timer = null;
    const ask = async () => {
      timer = null;
      let waitMs = everyMs;
      const place = this.runId === null || document.visibilityState === "hidden" ? null : path();
      if (place !== null && this.connection.state !== "refused") {
        try {
          const [answer, headers] = await this.api.answered(place, { signal: abort.signal });
          waitMs = Math.max(everyMs, 1000 * Number(headers.get("epochal-ask-again") ?? 0));
          if (!abort.signal.aborted) told(answer);
        } catch (problem) {
          if (abort.signal.aborted) return;
          if (problem instanceof Problem) {
            waitMs = Math.max(everyMs, (problem.retryAfterS ?? 0) * 1000);
            failed(problem);
          } else console.error(problem); // a mistake of the page's own; what comes next may be shown again
        }
      }
      if (!abort.signal.aborted) timer = setTimeout(ask, place === null ? Math.min(waitMs, NOT_YET_MS) : waitMs);
    };
    ask();
    const end = () => { abort.abort(); clearTimeout(timer); };
    end.hurry = () => {
      if (timer === null) return; // an answer is on its way, or will never be wanted
      clearTimeout(timer);
      ask();
    };
    return end;
  }

  /** Keep `present` up to date, with up to `slowest()` clients of each round. Return a function that ends this. */
  follow(everyMs = ASK_AGAIN_MS, slowest = () => 0) {
    const place = () => (this.document ? this.path(`history/present?slowest=${slowest()}`) : null);
    return this.poll(place, everyMs, (present) => {
      this.present = present;
      this.changed();
    });
  }

  #connect() {
    this.#stream?.stop();
    const told = (event) => this.#told(event);
    const stream = new EventStream(this.api, this.path("events"), told, (state) => {
      if (stream === this.#stream) this.#connectionChanged(state);
    });
    this.#stream = stream;
    stream.run();
  }

  #connectionChanged(connection) {
    this.connection = connection;
    this.changed();
  }

  #told({ kind, data }) {
    if (kind === "document") {
      this.document = data;
      this.changed();
    } else if (kind === "rounds") {
      const { rounds, ...page } = data;
      if (this.page === null) return; // they are in the page that is being read
      const grown = this.rounds.with(rounds);
      if (grown === null || page.lineage !== this.page.lineage) return void this.readHistory();
      this.rounds = grown;
      this.page = page;
      this.changed();
    } else if (kind === "now") {
      this.now = data;
      this.changed();
    } else if (kind === "reset") {
      this.readHistory();
    }
  }

  #visibilityChanged() {
    clearTimeout(this.#hiddenTimer);
    if (document.visibilityState === "hidden") {
      this.#hiddenTimer = setTimeout(() => {
        this.#stream?.stop();
        this.#connectionChanged({ ...this.connection, state: "hidden" });
      }, HIDDEN_MS);
    } else if (this.connection.state === "hidden") {
      this.#connectionChanged({ state: "connecting", attempt: 0, waitMs: 0, problem: null });
      this.#connect();
      this.readHistory();
    } else {
      this.#stream?.hurry();
    }
  }
}
