// The run: what it does, how far it is, and how it has gone.

import { Chart, smoothed } from "../widgets/chart.js";
import { fill, h, newId, setText } from "../elements.js";
import { bytes, clock, digits, duration, moment, percent, short, UNKNOWN, visible, whole } from "../format.js";
import { glossary, term } from "../glossary.js";
import { POINTS, Rounds } from "../rounds.js";
import { PHASES } from "../words.js";

const RECENT_ROWS = 32;
const RATED_ROWS = 16;
const PAUSE_RATIO = 20; // a round that began so many times later than usual: the run was paused or down before it
const EVALUATIONS_MS = 60_000;
const CHECKPOINTS_MS = 60_000;
const MAX_CHECKPOINTS = 10;
const MEMBERS_MS = 5_000;
const FIGURES = [
  "phase", "epoch", "step", "time to the end", "tokens", "tokens/s", "training loss", "held-out loss", "learning rate",
  "member", "applied", "carried", "quarantined", "checkpoint",
];
const X_AXES = {
  step: { label: "step", of: (rows) => rows.get("step"), format: whole },
  tokens: { label: "tokens", of: (rows) => rows.get("tokens_total"), format: short },
  time: { label: "time", of: (rows) => rows.get("ended_s"), format: moment, space: 160 },
};

/** Return tokens per second of the last rows' rounds, as the coordinator's `speed_of` does; null without any. */
export function recentSpeed(rounds) {
  const total = (name) => rounds.get(name).slice(-RATED_ROWS).reduce((sum, value) => sum + value, 0);
  const seconds = total("train_s") + total("witness_s");
  return seconds > 0 ? total("tokens") / seconds : null;
}

/**
 * Return the seconds until the last step, if rounds go on as the last ones did: from one round's start to the next one's,
 * with what lies between epochs, and without pauses and outages. Null if nothing was applied lately, or before two rounds.
 */
export function timeToEnd(rounds, steps) {
  const [started, counts, applied] = ["started_s", "rounds", "applied_rounds"].map((name) => rounds.get(name).slice(-RECENT_ROWS - 1));
  const spans = counts.slice(0, -1).map((count, place) => ({ pace: (started[place + 1] - started[place]) / count, count, applied: applied[place] }));
  if (!spans.length) return null;
  const paces = spans.map(({ pace }) => pace).sort((one, other) => one - other);
  const usual = spans.filter(({ pace }) => pace <= PAUSE_RATIO * paces[paces.length >> 1]);
  const done = usual.reduce((sum, span) => sum + span.applied, 0);
  return done ? (steps * usual.reduce((sum, { pace, count }) => sum + pace * count, 0)) / done : null;
}

/** Return how far the run is through its data; "" if the number of its samples is not known. */
function passWords(present) {
  const passes = present?.passes ?? null;
  if (passes === null) return "";
  const begun = Math.floor(passes);
  return `; pass ${whole(begun + 1)} over ${whole(present.pass_samples)}: ${percent(passes - begun)} of it begun`;
}

export default class RunPanel {
  #ends = [];
  #charts = {};
  #evaluations = [];
  #checkpoints = [];
  #drawn = null;
  #drawing = null;
  #fine = null; // more rows of the range that is zoomed to
  #zooming = null;

  mount(element, store) {
    this.store = store;
    const id = newId("run");
    this.phase = h("p", { class: "lead" });
    this.why = h("p");
    this.values = new Map(FIGURES.map((word) => [word, h("dd", { "data-figure": word })]));
    const figures = FIGURES.map((word) => h("div", {}, h("dt", {}, term(word, word === "member" ? "members" : word)), this.values.get(word)));
    this.smoothing = h("input", { id: `${id}-smoothing`, type: "range", min: 0, max: 0.98, step: 0.02, value: 0.6, on: { input: () => this.#draw() } });
    this.axis = h("select", { id: `${id}-axis`, on: { change: () => this.#rebuildCharts() } },
      Object.entries(X_AXES).map(([name, { label }]) => h("option", { value: name }, label)));
    this.chartsPlace = h("div", { class: "charts" });
    this.checkpointsPlace = h("div");
    fill(element,
      h("h1", {}, "Run"),
      this.phase, this.why,
      h("dl", { class: "figures" }, figures),
      h("section", { "aria-labelledby": `${id}-course` },
        h("h2", { id: `${id}-course` }, "How it went"),
        h("div", { class: "tools" },
          h("label", { for: `${id}-axis` }, "over "), this.axis,
          h("label", { for: `${id}-smoothing` }, term("smoothing")), this.smoothing),
        this.chartsPlace),
      h("section", { "aria-labelledby": `${id}-checkpoints` }, h("h2", { id: `${id}-checkpoints` }, "Checkpoints"), this.checkpointsPlace),
      glossary([...FIGURES, "ready", "batch", "round", "smoothing"]));
    this.#ends.push(
      store.follow(MEMBERS_MS),
      store.poll(() => store.path("evaluations"), EVALUATIONS_MS, ({ evaluations }) => {
        this.#evaluations = evaluations;
        this.#drawn = null;
        this.update();
      }),
      store.poll(() => store.path("checkpoints"), CHECKPOINTS_MS, ({ checkpoints }) => {
        this.#checkpoints = checkpoints;
        this.update();
      }),
    );
    this.#rebuildCharts();
  }

  unmount() {
    clearTimeout(this.#drawing);
    this.#zooming?.abort();
    for (const end of this.#ends) end();
    for (const chart of Object.values(this.#charts)) chart.destroy();
  }

  update() {
    const { document: run, present: found, rounds } = this.store;
    if (run !== null) this.#showFigures(run, found, rounds);
    else if (this.store.problem !== null) this.#showNothing(visible(this.store.problem.message));
    if (this.#drawn !== rounds && this.#drawing === null) this.#drawing = setTimeout(() => this.#draw()); // figures first
  }

  #showNothing(why) {
    setText(this.phase, why);
    setText(this.why, "");
    for (const value of this.values.values()) setText(value, UNKNOWN);
    this.shownCheckpoints = null;
    fill(this.checkpointsPlace);
  }

  #showFigures(run, found, rounds) {
    const last = rounds.last, values = this.values;
    const until = run.phase_ends_s === null ? "" : `, until ${clock(run.phase_ends_s)} at the latest`;
    const words = this.store.now;
    const waits = words?.waiting ? `the run ${visible(words.waiting)}` : PHASES[run.run_state] ?? run.run_state;
    const reason = words?.began ?? run.reason;
    const began = reason ? ` The phase began with: ${visible(reason)}` : "";
    setText(this.phase, `${waits.charAt(0).toUpperCase()}${waits.slice(1)}.${began}`);
    setText(this.why, visible(words?.explanation ?? ""));
    const set = (word, text) => setText(values.get(word), text);
    set("phase", `${run.run_state}, since ${clock(run.phase_started_s)}${until}`);
    set("epoch", whole(run.epoch));
    const done = Math.min(run.step - 1, run.total_steps);
    set("step", `${whole(done)} of ${whole(run.total_steps)} done`);
    const left = run.total_steps - done;
    const stands = { Finished: "ended", Paused: "paused" }[run.run_state];
    set("time to the end", stands ?? duration(timeToEnd(rounds, left)));
    set("tokens", whole(found?.tokens_total ?? last?.tokens_total ?? null));
    set("tokens/s", short(recentSpeed(rounds)));
    const losses = rounds.get("loss").filter((loss) => loss !== null);
    set("training loss", losses.length ? `${digits(losses.at(-1))} nats/token` : UNKNOWN);
    const held = this.#heldOut(run).at(-1);
    set("held-out loss", held === undefined ? UNKNOWN : `${digits(held.loss)} nats/token (${visible(held.name)}, step ${whole(held.step)})`);
    set("learning rate", last === null ? UNKNOWN : digits(last.learning_rate, 3));
    const members = found?.members ?? last?.members ?? null, ready = found?.ready ?? last?.ready ?? null;
    set("member", `${whole(members)}, ${whole(ready)} ready`);
    set("applied", `${whole(run.data_indices_applied)} samples${passWords(found)}`);
    set("carried", `${whole(run.carried_batches)} batches`);
    set("quarantined", `${whole(run.quarantined_batches)} batches`);
    set("checkpoint", run.checkpoint === null ? UNKNOWN : `step ${whole(run.checkpoint.step)}, ${bytes(run.checkpoint.size_bytes)}`);
    this.#showCheckpoints(run);
  }

  #heldOut(run) {
    return this.#evaluations.filter(({ step }) => step < run.step).sort((one, other) => one.step - other.step);
  }

  #showCheckpoints(run) {
    const known = this.#checkpoints.filter(({ step }) => step !== run.checkpoint?.step);
    const shown = [...known, ...(run.checkpoint === null ? [] : [run.checkpoint])]
      .sort((one, other) => other.step - one.step).slice(0, MAX_CHECKPOINTS);
    const name = shown.map(({ step, blob_sha256: sha256 }) => `${step} ${sha256}`).join();
    if (name === this.shownCheckpoints) return;
    this.shownCheckpoints = name;
    const rows = shown.map((one) => h("tr", {},
      h("th", { scope: "row" }, whole(one.step)), h("td", {}, bytes(one.size_bytes)),
      h("td", { class: "hash" }, one.replica_digest.slice(0, 16), "…"), h("td", { class: "hash" }, one.blob_sha256.slice(0, 16), "…")));
    const columns = ["step", "size", "replica digest", "SHA-256"].map((label) => h("th", { scope: "col" }, label));
    fill(this.checkpointsPlace, shown.length
      ? h("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": "Checkpoints" }, h("table", {}, h("thead", {}, h("tr", {}, columns)), h("tbody", {}, rows)))
      : h("p", {}, "None yet."));
  }

  #rebuildCharts() {
    for (const chart of Object.values(this.#charts)) chart.destroy();
    const { label, format, space } = X_AXES[this.axis.value];
    const zoomed = (range) => this.#zoom(range);
    const add = (title, series, of, more = {}) =>
      new Chart(this.chartsPlace, { title, series, format: of, formatX: format, spaceX: space, xName: label, zoomed, ...more });
    this.#fine = null;
    this.#charts = {
      loss: add("Loss, nats per token", [
        { label: "training", colour: "--series-3", line: "dotted", width: 1 },
        { label: "training, smoothed", colour: "--series-1", width: 2.5 },
        { label: "held-out", colour: "--series-2", points: true },
      ], (value) => digits(value, 4)),
      rate: add("Learning rate", [{ label: "learning rate", colour: "--series-1" }], (value) => digits(value, 3)),
      speed: add("Tokens per second", [{ label: "tokens/s", colour: "--series-1" }], short),
      members: add("Members", [
        { label: "members", colour: "--series-1" },
        { label: "ready", colour: "--series-2", line: "dashed" },
      ], whole, { isWhole: true }),
    };
    this.#draw();
  }

  /** Show this range in all charts, with more rows of it if some of those that are known cover several rounds. */
  async #zoom(range) {
    for (const chart of Object.values(this.#charts)) chart.setRange(range);
    this.#zooming?.abort();
    this.#fine = null;
    this.#zooming = null;
    const { rounds } = this.store;
    const xs = X_AXES[this.axis.value].of(rounds);
    const first = range === null ? -1 : Math.max(0, xs.findLastIndex((x) => x < range[0]));
    const after = range === null ? -1 : xs.findIndex((x) => x > range[1]);
    const last = after < 0 ? xs.length - 1 : after;
    if (range === null || !xs.length || rounds.get("rounds").slice(first, last + 1).every((count) => count === 1)) return this.#draw();
    const from = rounds.get("number")[first], to = rounds.get("number")[last] + rounds.get("rounds")[last] - 1;
    const abort = this.#zooming = new AbortController();
    try {
      const place = this.store.path(`history?from=${from}&to=${to}&points=${POINTS}`);
      const page = await this.store.api.json(place, { signal: abort.signal });
      if (!abort.signal.aborted) this.#fine = page.rounds.number.length ? new Rounds(page.rounds) : null;
    } catch { /* what is known is shown */ }
    if (!abort.signal.aborted) this.#draw();
  }

  #draw() {
    clearTimeout(this.#drawing);
    this.#drawing = null;
    const { document: run, rounds: known } = this.store;
    this.#drawn = known;
    const rounds = this.#fine === null ? known : known.refined(this.#fine);
    const all = X_AXES[this.axis.value].of(rounds);
    const places = [];
    for (let place = 0; place < all.length; place += 1) {
      if (!places.length || all[place] > all[places.at(-1)]) places.push(place);
      else if (rounds.get("loss")[place] !== null) places[places.length - 1] = place;
    }
    const xs = places.map((place) => all[place]);
    const of = (name) => places.map((place) => rounds.get(name)[place]);
    const seconds = places.map((place) => rounds.get("ended_s")[place] - rounds.get("started_s")[place]);
    this.#charts.rate.set(xs, [of("learning_rate")]);
    this.#charts.speed.set(xs, [of("tokens").map((count, place) => (seconds[place] > 0 ? count / seconds[place] : null))]);
    this.#charts.members.set(xs, [of("members"), of("ready")]);
    this.#drawLoss(xs, of("loss"), of("step"), run);
  }

  #drawLoss(xs, losses, steps, run) {
    const averaged = smoothed(losses, Number(this.smoothing.value));
    const held = run === null ? [] : this.#heldOut(run);
    const points = losses.map(() => null);
    for (const { step, loss } of held) {
      const place = steps.findIndex((one) => one >= step);
      if (place >= 0) points[place] = loss;
    }
    this.#charts.loss.set(xs, [losses, averaged, points]);
  }
}
