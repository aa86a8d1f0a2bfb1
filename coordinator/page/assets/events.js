// Server-sent events, read by fetch(): a browser's EventSource cannot show a token.

const QUIET_MS = 45_000; // three of the coordinator's heartbeats
const FIRST_WAIT_MS = 1_000;
const MAX_WAIT_MS = 30_000;
const MAX_EVENT_CHARS = 64 * 1024 * 1024;

/** Splits text that comes in pieces into events. */
export class EventParser {
  #rest = "";

  /** Return the events that are whole with this piece: { kind, id, data }. Comments are no events. */
  take(piece) {
    this.#rest += piece;
    if (this.#rest.length > MAX_EVENT_CHARS) throw new Error("an event is too long");
    const parts = this.#rest.split("\n\n");
    this.#rest = parts.pop();
    return parts.map(parsed).filter((event) => event !== null);
  }
}

function parsed(text) {
  const event = { kind: "message", id: null, data: null };
  const lines = [];
  for (const line of text.split("\n")) {
    const [, name, value] = /^([^:]*)(?:: ?(.*))?$/s.exec(line) ?? [];
    if (name === "event") event.kind = value;
    else if (name === "id") event.id = value;
    else if (name === "data") lines.push(value ?? "");
  }
  if (!lines.length) return null;
  event.data = JSON.parse(lines.join("\n"));
  return event;
}

/**
 * Follows a run's events until it is stopped; after an interruption from where it was.
 *
 * Calls `told(event)` for each, and `changed({ state, attempt, waitMs, problem })` when the connection does: "live",
 * "lost" (with the time until it is tried again) or "refused" (a token is wanted: nothing is tried any more).
 */
export class EventStream {
  #stopped = false;
  #last = null;
  #wake = null;
  #abort = null;

  constructor(api, path, told, changed) {
    this.api = api;
    this.path = path;
    this.told = told;
    this.changed = changed;
  }

  stop() {
    this.#stopped = true;
    this.hurry();
    this.#abort?.abort();
  }

  /** Try again now, if it waits. */
  hurry() {
    this.#wake?.();
  }

  async run() {
    let attempt = 0;
    while (!this.#stopped) {
      let problem = null;
      const began = Date.now();
      try {
        await this.#follow(() => { attempt = 0; });
      } catch (error) {
        problem = error;
      }
      if (this.#stopped) return;
      if (problem?.wantsToken) {
        this.changed({ state: "refused", attempt, waitMs: 0, problem });
        return;
      }
      if (problem === null && Date.now() - began > MAX_WAIT_MS) continue; // each stream ends after an hour
      attempt += 1;
      const most = Math.min(MAX_WAIT_MS, FIRST_WAIT_MS * 2 ** Math.min(attempt - 1, 8));
      const waitMs = Math.max((problem?.retryAfterS ?? 0) * 1000, most * (0.5 + Math.random() / 2));
      this.changed({ state: "lost", attempt, waitMs, problem });
      await this.#wait(waitMs);
    }
  }

  #wait(milliseconds) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      this.#wake = () => { clearTimeout(timer); resolve(); };
    }).finally(() => { this.#wake = null; });
  }

  async #follow(connected) {
    this.#abort = new AbortController();
    const headers = { Accept: "text/event-stream" };
    if (this.#last !== null) headers["Last-Event-ID"] = this.#last;
    let quiet = setTimeout(() => this.#abort.abort(), QUIET_MS);
    try {
      const answer = await this.api.request(this.path, { headers, signal: this.#abort.signal });
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      const parser = new EventParser();
      let isLive = false;
      for (;;) {
        const { value, done } = await reader.read();
        if (done || this.#stopped) return;
        clearTimeout(quiet);
        quiet = setTimeout(() => this.#abort.abort(), QUIET_MS);
        if (!isLive) {
          isLive = true;
          connected();
          this.changed({ state: "live", attempt: 0, waitMs: 0, problem: null });
        }
        for (const event of parser.take(value)) {
          if (event.kind === "dropped") throw new Error(event.data.detail);
          this.told(event);
          if (event.id !== null) this.#last = event.id;
        }
      }
    } finally {
      clearTimeout(quiet);
      this.#abort.abort();
    }
  }
}
