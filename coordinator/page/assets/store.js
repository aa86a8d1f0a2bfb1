// What the page knows of the run. Panels read it, and are told when it has changed.
//
// Memory stays flat however long a tab is open: rows and answers that are kept have a maximum number.

import { Problem } from "./api.js";
import { EventStream } from "./events.js";
import { POINTS, Rounds } from "./rounds.js";

const HIDDEN_MS = 60_000; // a tab that nobody has seen for so long stops following: others need its connection
const ASK_AGAIN_MS = 2_000;
const NOT_YET_MS = 100; // until a poll that could not ask looks again whether it can
const MAX_ASK_AGAIN_MS = 30_000;
const MAX_MOMENTS = 16;
const SLOWEST = 30; // clients of a round that is looked back at

export class Store {
  #listeners = new Set();
  #scheduled = false;
  #stream = null;
  #hiddenTimer = null;
  #reading = null;
  #looking = null;
  #moments = new Map();
  #slowest = SLOWEST;

  constructor(api) {
    this.api = api;
    /** Id of the run, and the path of its routes; null until the coordinator has said it. */
    this.runId = null;
    /** The run document that is published now, and the rows of rounds that have ended. */
    this.document = null;
    this.rounds = new Rounds();
    /** The last page of the history without its rows: next, detailed_from, first_version, lineage. */
    this.page = null;
    /** { state: "connecting" | "live" | "lost" | "refused" | "hidden", attempt, waitMs, problem } */
    this.connection = { state: "connecting", attempt: 0, waitMs: 0, problem: null };
    /** The version that is looked at, and the run as it was then; null while the present is shown. */
    this.version = null;
    this.moment = null;
    /** Why what is looked at, or the history, could not be read; null if it could. */
    this.problem = null;
    /** The same, of the present: who is a member, and how far the round has come. Kept by `follow`. */
    this.present = null;
    /** { waiting, ends_s, explanation } in the coordinator's words: what the run waits for, and why it is not faster. */
    this.now = null;
  }

  /** Path of one of the run's routes, such as "history". */
  path(place) {
    return `v1/runs/${encodeURIComponent(this.runId)}${place ? `/${place}` : ""}`;
  }

  /** Whether the present is shown. */
  get isLive() {
    return this.version === null;
  }

  /** What is shown: { document, moment, rounds, isLive }, of the present or of the version that is looked at. */
  get view() {
    if (this.isLive) return { isLive: true, document: this.document, moment: this.present, rounds: this.rounds };
    const rounds = this.rounds.until(this.version);
    return { isLive: false, document: this.moment?.document ?? null, moment: this.moment, rounds };
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
    this.#moments.clear();
    if (this.runId === null) return;
    this.#connectionChanged({ state: "connecting", attempt: 0, waitMs: 0, problem: null });
    this.#connect();
    this.readHistory();
    if (this.version !== null) this.look(this.version);
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

  /** Look at the run as it was at a version of its document; null for the present. */
  async look(version) {
    this.#looking?.abort();
    this.#looking = null;
    this.version = version;
    this.problem = null;
    if (version === null) {
      this.moment = null;
      return this.changed();
    }
    const known = this.#moments.get(version);
    if (known !== undefined) {
      this.moment = known;
      return this.changed();
    }
    this.changed();
    const abort = this.#looking = new AbortController();
    while (!abort.signal.aborted) {
      const waitMs = this.runId === null ? NOT_YET_MS : await this.#lookOnce(version, abort.signal);
      if (waitMs === null) return;
      await new Promise((resolve) => setTimeout(resolve, waitMs));
    }
  }

  /** Ask for a version; return after how many milliseconds to ask again, null if that is not needed. */
  async #lookOnce(version, signal) {
    const slowest = this.#slowest;
    let found = null, failure = null;
    try {
      found = await this.api.json(this.#momentPath(version, slowest), { signal });
    } catch (problem) {
      failure = problem;
    }
    if (signal.aborted) return null;
    if (found !== null && slowest === this.#slowest) this.#keep(version, found);
    this.moment = found;
    this.problem = failure;
    this.changed();
    return failure?.retryAfterS ? failure.retryAfterS * 1000 : null;
  }

  /** Show up to this many clients of a round from now on, the slowest first; null for the usual number. */
  setSlowest(count) {
    if ((count ?? SLOWEST) === this.#slowest) return;
    this.#slowest = count ?? SLOWEST;
    this.#moments.clear();
    if (this.version !== null) this.look(this.version);
  }

  #momentPath(version, slowest) {
    return this.path(`history/versions/${version}?slowest=${slowest}`);
  }

  #keep(version, moment) {
    if (this.document !== null && version >= this.document.version) return; // more of it may come
    this.#moments.set(version, moment);
    if (this.#moments.size > MAX_MOMENTS) this.#moments.delete(this.#moments.keys().next().value);
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
    const place = () => (this.isLive && this.document ? this.path(`history/present?slowest=${slowest()}`) : null);
    return this.poll(place, everyMs, (moment) => {
      this.present = moment;
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
      this.#moments.clear();
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
