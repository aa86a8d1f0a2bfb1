// The run: what is trained, how far it is, and how it has gone.

import { Chart, smoothed } from "../widgets/chart.js";
import { fill, h, newId, scrollingTable, setText } from "../elements.js";
import { figuresIn, PLACES, placedAt } from "../figures_file.js";
import { bytes, clock, counted, digits, duration, moment, percent, short, stepWords, UNKNOWN, visible, whole } from "../format.js";
import { glossary, term } from "../glossary.js";
import { POINTS, Rounds } from "../rounds.js";
import { isLong, MARKS, marksOf, usualPace } from "../run_marks.js";
import { tomlOf, trainedWords } from "../what_is_trained.js";
import { copyable, reached } from "../widgets/copy.js";
import { PHASES, SMOOTHED_PART } from "../words.js";

const RECENT_ROWS = 32;
const RATED_ROWS = 16;
const RARELY_MS = 60_000;
const MEMBERS_MS = 5_000;
const MAX_CHECKPOINTS = 10;
const MAX_TOOK_PART = 200;
const MAX_EVALUATIONS = 3; // names of them that have a line each
const BENCHMARK_COLOURS = ["--series-1", "--series-2", "--series-4", "--series-5", "--series-3"]; // so many have a line each
const HELD_OUT_COLOURS = ["--series-2", "--series-4", "--series-5"];
const FIGURES = ["training loss", "held-out loss", "step", "time to the end", "tokens/s", "member"];
const QUIET_FIGURES = ["phase", "epoch", "rewound", "tokens", "learning rate", "gradient norm", "applied", "carried", "quarantined", "checkpoint"];
const X_AXES = {
  step: { label: "step", of: (rows) => rows.get("step"), format: whole },
  tokens: { label: "tokens", of: (rows) => rows.get("tokens_total"), format: short },
  time: { label: "time", of: (rows) => rows.get("ended_s"), format: moment, space: 160 },
};
const OTHERS_X = { step: "step", tokens: "tokens_total", time: "ended_s" };

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
  const pace = usualPace(started, counts);
  if (pace === null) return null;
  const spans = counts.slice(0, -1).map((count, place) => ({ seconds: started[place + 1] - started[place], count, applied: applied[place] }));
  const usual = spans.filter(({ seconds, count }) => !isLong(seconds / count, pace));
  const done = usual.reduce((sum, span) => sum + span.applied, 0);
  return done ? (steps * usual.reduce((sum, { seconds }) => sum + seconds, 0)) / done : null;
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
  #benchmarks = [];
  #checkpoints = [];
  #actions = [];
  #guide = null;
  #config = null;
  #configOf = null; // the digest of the one that was asked for last
  #other = null; // another run's figures: { name, step, loss, tokens_total, ended_s }
  #drawn = null;
  #drawing = null;
  #columns = null; // of the rows that are drawn
  #lossPlaces = () => ({ step: [] }); // of the rows of the loss
  #fine = null; // more rows of the range that is zoomed to
  #zooming = null;
  #range = null; // that all charts show; null: all

  mount(element, store) {
    this.store = store;
    const id = newId("run");
    this.title = h("h1", {}, "Run");
    this.what = h("p", { class: "what" });
    this.since = h("p", { class: "quiet" });
    this.phase = h("p", { class: "lead" });
    this.why = h("p");
    this.bar = h("progress", { max: 1, value: 0, "aria-label": "Steps done" });
    this.values = new Map([...FIGURES, ...QUIET_FIGURES].map((word) => [word, h("dd", { "data-figure": word })]));
    const figures = (words) => words.map((word) => h("div", {}, h("dt", {}, term(word, word === "member" ? "members" : word)), this.values.get(word)));
    this.smoothing = h("input", { id: `${id}-smoothing`, type: "range", min: 0, max: 0.2, step: 0.01, value: SMOOTHED_PART, on: { input: () => this.#draw() } });
    this.axis = h("select", { id: `${id}-axis`, on: { change: () => this.#rebuildCharts() } },
      Object.entries(X_AXES).map(([name, { label }]) => h("option", { value: name }, label)));
    this.line = h("dl", { class: "line" }, figures(QUIET_FIGURES));
    this.chartsPlace = h("div", { class: "charts" }, this.line);
    this.checkpointsPlace = h("div");
    this.ended = h("section", { hidden: true, "aria-labelledby": `${id}-ended` });
    this.configuration = copyable("Configuration as TOML", "");
    this.configNote = h("p", { class: "quiet" }, "Asking the coordinator…");
    const section = (name, title, ...children) =>
      h("section", { "aria-labelledby": `${id}-${name}` }, h("h2", { id: `${id}-${name}` }, title), children);
    fill(element,
      this.title, this.what, this.since,
      h("dl", { class: "figures" }, figures(FIGURES)),
      this.bar,
      this.phase, this.why,
      this.ended,
      section("course", "How it went",
        h("div", { class: "tools" },
          h("label", { for: `${id}-axis` }, "over "), this.axis,
          h("label", { for: `${id}-smoothing` }, term("smoothing")), this.smoothing, this.#comparison(id)),
        this.chartsPlace),
      section("checkpoints", "Checkpoints", this.checkpointsPlace),
      section("config", "Configuration", h("details", {}, h("summary", {}, "The run's configuration, as a state file has it"),
        this.configNote, this.configuration.element)),
      glossary([...FIGURES, ...QUIET_FIGURES, "ready", "batch", "round", "smoothing"]));
    this.ended.headingId = `${id}-ended`;
    const kept = (place, everyMs, take) => store.poll(() => store.path(place), everyMs, (answer) => { take(answer); this.#drawn = null; this.update(); });
    this.#ends.push(
      store.follow(MEMBERS_MS),
      kept("evaluations", RARELY_MS, ({ evaluations }) => this.#setEvaluations(evaluations)),
      kept("checkpoints", RARELY_MS, ({ checkpoints }) => { this.#checkpoints = checkpoints; }),
      kept("actions", RARELY_MS, ({ actions }) => { this.#actions = actions; }),
      kept("join", RARELY_MS, (guide) => { this.#guide = guide; }),
    );
    this.endsAtFirst = this.#ends.length;
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
    for (const word of this.values.keys()) this.#set(word, UNKNOWN);
    this.shownCheckpoints = null;
    fill(this.checkpointsPlace);
  }

  /** Show a figure, with a note in small letters; none where `text` is null. */
  #set(word, text, note = "") {
    const value = this.values.get(word);
    value.parentElement.hidden = text === null;
    if (!value.childElementCount) fill(value, h("span"), h("small"));
    setText(value.firstChild, text ?? "");
    setText(value.lastChild, note);
  }

  #showFigures(run, found, rounds) {
    const last = rounds.last, set = (...figure) => this.#set(...figure);
    this.#showWhat(run, rounds);
    const isEnded = run.run_state === "Finished";
    const words = this.store.now;
    const waits = isEnded || !words?.waiting ? `${PHASES[run.run_state] ?? run.run_state}: ${visible(run.reason)}`
      : `${run.round === null ? "the run" : `${stepWords(run.round)}:`} ${visible(words.waiting)}`;
    setText(this.phase, `${waits.charAt(0).toUpperCase()}${waits.slice(1)}.`);
    setText(this.why, visible(words?.explanation ?? ""));
    const dropped = rounds.get("dropped_rounds");
    const losses = rounds.get("loss").filter((loss, place) => loss !== null && !dropped[place]);
    set("training loss", losses.length ? digits(losses.at(-1)) : UNKNOWN, "nats/token");
    const held = this.#heldOut(run).at(-1);
    set("held-out loss", held === undefined ? UNKNOWN : digits(held.loss), held === undefined ? "" : `${visible(held.name)}, step ${whole(held.step)}`);
    const done = Math.min(run.step - 1, run.total_steps);
    this.bar.value = run.total_steps ? done / run.total_steps : 0;
    set("step", `${whole(done)} of ${whole(run.total_steps)}`, `${percent(this.bar.value)} done`);
    const left = isEnded ? null : timeToEnd(rounds, run.total_steps - done);
    set("time to the end", { Finished: "ended", Paused: "paused" }[run.run_state] ?? duration(left), left === null ? "" : `about ${clock(Date.now() / 1000 + left)}`);
    set("tokens/s", short(recentSpeed(rounds)), `${short(found?.tokens_total ?? last?.tokens_total ?? null)} tokens so far`);
    set("member", whole(found?.members ?? last?.members ?? null), `${whole(found?.ready ?? last?.ready ?? null)} ready`);
    const until = run.phase_ends_s === null ? "" : `, until ${clock(run.phase_ends_s)} at the latest`;
    set("phase", isEnded ? run.run_state : `${run.run_state}, since ${clock(run.phase_started_s)}${until} (${visible(run.reason)})`);
    set("epoch", whole(run.epoch));
    set("rewound", run.rewound === null ? null : `to step ${whole(run.rewound.step)}, ${moment(run.rewound.at_s)}`);
    set("tokens", whole(found?.tokens_total ?? last?.tokens_total ?? null));
    set("learning rate", last === null ? UNKNOWN : digits(last.learning_rate, 3));
    const norms = rounds.get("gradient_norm").filter((norm) => norm !== null);
    set("gradient norm", norms.length ? digits(norms.at(-1), 3) : null);
    set("applied", `${counted(run.data_indices_applied, "sample")}${passWords(found)}`);
    set("carried", counted(run.carried_batches, "batch", "es"));
    set("quarantined", run.quarantined_batches ? counted(run.quarantined_batches, "batch", "es") : null);
    set("checkpoint", run.checkpoint === null ? UNKNOWN : `step ${whole(run.checkpoint.step)}, ${bytes(run.checkpoint.size_bytes)}`);
    this.#showCheckpoints(run);
    this.ended.hidden = !isEnded;
    if (isEnded) this.#showEnd(rounds, run);
  }

  /** Show what is trained, and since when. */
  #showWhat(run, rounds) {
    setText(this.title, visible(run.run_id));
    if (this.#configOf !== run.config_sha256) {
      this.#configOf = run.config_sha256;
      this.store.api.json(this.store.path(`config/${run.config_sha256}`)).then((config) => {
        this.#config = config;
        this.configuration.setText(tomlOf(config));
        fill(this.configNote, "Without who may join, notices and keys, which only the operator sees.");
        this.update();
      }, (problem) => {
        this.#configOf = null; // asked for again with what changes next
        setText(this.configNote, `It could not be read: ${visible(problem.message)}`);
      });
    }
    setText(this.what, trainedWords(this.#config, this.#guide).join(" · "));
    const first = rounds.get("started_s")[0] ?? this.#actions[0]?.at_s;
    if (first === undefined) return setText(this.since, "");
    const end = run.run_state === "Finished" ? rounds.last?.ended_s ?? run.phase_started_s : null;
    setText(this.since, end === null ? `Since ${moment(first)}: ${duration(Math.max(0, Date.now() / 1000 - first))}` : `From ${moment(first)} to ${moment(end)}: ${duration(end - first)}`);
  }

  #setEvaluations(evaluations) {
    this.#evaluations = evaluations.filter(({ benchmark }) => !benchmark);
    this.#benchmarks = evaluations.filter(({ benchmark, is_dropped: isDropped }) => benchmark && !isDropped)
      .map((one) => ({ ...one, title: `${one.name} ${one.benchmark.metric}` })).sort((one, other) => one.step - other.step);
    if (this.#names.join() !== this.drawnNames) this.#rebuildLoss();
  }

  /** Names of the evaluations that have a line each, those that were recorded last. */
  get #names() {
    return [...new Set(this.#evaluations.map(({ name }) => name))].slice(-MAX_EVALUATIONS);
  }

  #heldOut(run) {
    return this.#evaluations.filter(({ step, is_dropped: isDropped }) => step < run.step && !isDropped).sort((one, other) => one.step - other.step);
  }

  /** Show the time that a finished run took, its losses, the command that exports it, and everybody who took part. */
  #showEnd(rounds, run) {
    if (this.#ends.length === this.endsAtFirst) this.#ends.push(this.store.poll(() => this.store.path("members"), RARELY_MS, ({ members, gone }) => {
      const all = [members, gone].flatMap((columns) => columns.client_id.map((id, place) =>
        ({ id, ...Object.fromEntries(["name", "tokens", "applied", "joined_s"].map((name) => [name, columns[name][place]])) })));
      this.tookPart = all.filter(({ applied }) => applied > 0).sort((one, other) => other.tokens - one.tokens);
      this.update();
    }));
    const held = this.#names.map((name) => {
      const points = this.#heldOut(run).filter((one) => one.name === name);
      return points.length ? `${visible(name)} loss from ${digits(points[0].loss)} (step ${whole(points[0].step)}) to ${digits(points.at(-1).loss)} (step ${whole(points.at(-1).step)})` : "";
    }).filter(Boolean);
    const seconds = rounds.length ? rounds.last.ended_s - rounds.get("started_s")[0] : null;
    const said = `It took ${duration(seconds)} for ${whole(rounds.last?.tokens_total ?? null)} tokens${held.length ? `; ${held.join("; ")}` : ""}.`;
    const address = reached(this.store.api.base, this.#guide);
    const name = JSON.stringify([said, this.tookPart, address]);
    if (name === this.shownEnd) return;
    this.shownEnd = name;
    const all = this.tookPart ?? [], total = all.reduce((sum, { tokens }) => sum + tokens, 0);
    const rows = all.slice(0, MAX_TOOK_PART).map(({ id, name: called, tokens, applied, joined_s: joined }) => [
      h("a", { href: `#/member/${id}` }, h("bdi", {}, called ? visible(called) : id.slice(0, 12))), whole(tokens), percent(tokens / total), whole(applied), moment(joined)]);
    fill(this.ended, h("h2", { id: this.ended.headingId }, "What came of it"), h("p", {}, said),
      h("p", {}, "The trained model, as a folder for Hugging Face's libraries; the command takes the admin token from EPOCHAL_ADMIN_TOKEN:"),
      copyable("Command that exports the model", `epochal export ${address} --out model`).element,
      all.length ? scrollingTable("Who took part", `${counted(all.length, "member")} took part, by tokens`, ["member", "tokens", "share", "results applied", "joined"], rows) : null);
  }

  #showCheckpoints(run) {
    const known = this.#checkpoints.filter(({ step }) => step !== run.checkpoint?.step);
    const shown = [...known, ...(run.checkpoint === null ? [] : [run.checkpoint])]
      .sort((one, other) => other.step - one.step).slice(0, MAX_CHECKPOINTS);
    const name = shown.map(({ step, blob_sha256: sha256 }) => `${step} ${sha256}`).join();
    if (name === this.shownCheckpoints) return;
    this.shownCheckpoints = name;
    const hash = (digest) => h("span", { class: "hash" }, digest.slice(0, 16), "…");
    const rows = shown.map((one) => [whole(one.step), bytes(one.size_bytes), hash(one.replica_digest), hash(one.blob_sha256)]);
    fill(this.checkpointsPlace, shown.length ? scrollingTable("Checkpoints", "", ["step", "size", "replica digest", "SHA-256"], rows) : h("p", {}, "None yet."));
  }

  #comparison(id) {
    const said = h("p", { role: "status" });
    const input = h("input", { id: `${id}-file`, type: "file", accept: ".csv,.json,text/csv,application/json", on: { change: async () => {
      const [file] = input.files;
      try {
        this.#other = file ? { name: visible(file.name), ...figuresIn(await file.text()) } : null;
        setText(said, file ? `${counted(this.#other.step.length, "row")} of ${this.#other.name}: the thin dashed line of the loss.` : "");
        said.className = "";
      } catch (problem) {
        this.#other = null;
        setText(said, `${visible(file.name)} cannot be compared: ${visible(problem.message)}.`);
        said.className = "bad";
      }
      this.#rebuildLoss();
    } } });
    const forget = h("button", { type: "button", on: { click: () => { input.value = ""; input.dispatchEvent(new Event("change")); } } }, "Take it away");
    return h("details", {}, h("summary", {}, "Compare"),
      h("label", { for: `${id}-file` }, "Another run's figures: the CSV of its loss chart, or the JSON of its history "), input, forget, said);
  }

  #add(title, series, format, more = {}) {
    const { label, format: formatX, space } = X_AXES[this.axis.value];
    const zoomed = (range) => this.#zoom(range), places = () => Object.fromEntries(PLACES.map((name) => [name, this.#columns(name)]));
    const chart = new Chart(this.chartsPlace, { title, series, format, formatX, spaceX: space, xName: label, zoomed, places, ...more });
    chart.setRange(this.#range);
    return chart;
  }

  #rebuildCharts() {
    for (const chart of Object.values(this.#charts)) chart.destroy();
    this.#fine = null;
    this.#range = null;
    this.#charts = {
      speed: this.#add("Tokens per second", [{ label: "tokens/s", colour: "--series-1" }], short, { fromZero: true }),
      members: this.#add("Members", [
        { label: "members", colour: "--series-1" },
        { label: "ready", colour: "--series-2", line: "dashed" },
      ], whole, { isWhole: true, fromZero: true }),
      rate: this.#add("Learning rate", [{ label: "learning rate", colour: "--series-1" }], (value) => digits(value, 3), { fromZero: true }),
    };
    this.#rebuildLoss();
  }

  /** Draw the loss with the lines that it has now; the other charts stay as they are. */
  #rebuildLoss(hasLost = this.hasLost ?? false) {
    this.hasLost = hasLost;
    this.#charts.loss?.destroy();
    const names = this.#names, heldOut = (name) => (name === "held-out" ? name : `held-out: ${visible(name)}`);
    this.drawnNames = names.join();
    this.#charts.loss = this.#add("Loss, nats per token", [
      { label: "training", colour: "--series-3", line: "dotted", width: 1 },
      { label: "training, smoothed", colour: "--series-1", width: 2.5 },
      ...(hasLost ? [{ label: "taken back by a rewind", colour: "--series-3", line: "dashed", width: 1 }] : []),
      ...names.map((name, place) => ({ label: heldOut(name), colour: HELD_OUT_COLOURS[place], points: true })),
      ...(this.#other === null ? [] : [{ label: `training of ${this.#other.name}`, colour: "--series-3", line: "dashed", width: 1.5 }]),
    ], (value) => digits(value, 4), { isLarge: true, marks: MARKS, places: () => this.#lossPlaces() });
    this.chartsPlace.prepend(this.#charts.loss.figure, this.line);
    this.#draw();
  }

  get #hasNorms() {
    return this.store.rounds.get("gradient_norm").some((norm) => norm !== null);
  }

  /** Show this range in all charts, with more rows of it if some of those that are known cover several rounds. */
  async #zoom(range) {
    this.#range = range;
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
    if (this.#hasNorms) this.#charts.norm ??= this.#add("Gradient norm", [{ label: "gradient norm", colour: "--series-1" }], (value) => digits(value, 3), { fromZero: true });
    const rounds = this.#fine === null ? known : known.refined(this.#fine);
    const all = X_AXES[this.axis.value].of(rounds);
    const places = [], lost = new Map(); // of rounds that a rewind took back: losses by place, of the last ones there
    for (let place = 0; place < all.length; place += 1) {
      if (rounds.get("dropped_rounds")[place]) lost.set(all[place], rounds.get("loss")[place]);
      else if (!places.length || all[place] > all[places.at(-1)]) places.push(place);
      else if (rounds.get("loss")[place] !== null) places[places.length - 1] = place;
    }
    if (lost.size > 0 !== this.hasLost) return this.#rebuildLoss(lost.size > 0);
    const xs = places.map((place) => all[place]);
    const of = this.#columns = (name) => places.map((place) => rounds.get(name)[place]);
    const seconds = places.map((place) => rounds.get("ended_s")[place] - rounds.get("started_s")[place]);
    this.#charts.rate.set(xs, [of("learning_rate")]);
    this.#charts.speed.set(xs, [of("tokens").map((count, place) => (seconds[place] > 0 ? count / seconds[place] : null))]);
    this.#charts.members.set(xs, [of("members"), of("ready")]);
    this.#charts.norm?.set(xs, [of("gradient_norm")]);
    this.#drawLoss(xs, of, run, lost);
    this.#drawBenchmarks(xs, of);
  }

  /** Draw the newest replicas' figures of each task of lm_eval, in a chart of their own: they are no losses. */
  #drawBenchmarks(xs, of) {
    const titles = [...new Set(this.#benchmarks.map(({ title }) => title))].slice(-BENCHMARK_COLOURS.length);
    const drawn = titles.join();
    if (drawn !== this.drawnTitles || !this.#charts.benchmarks) {
      this.#charts.benchmarks?.destroy();
      delete this.#charts.benchmarks;
      this.drawnTitles = drawn;
      if (!titles.length) return;
      const series = titles.map((title, place) => ({ label: visible(title), colour: BENCHMARK_COLOURS[place], points: true }));
      this.#charts.benchmarks = this.#add("Benchmarks", series, (value) => digits(value, 3), { fromZero: true });
    }
    const steps = of("step");
    this.#charts.benchmarks.set(xs, titles.map((title) => {
      const column = xs.map(() => null);
      for (const { step, benchmark } of this.#benchmarks.filter((one) => one.title === title)) {
        const place = steps.findIndex((one) => one >= step);
        if (place >= 0) column[place] = benchmark.value;
      }
      return column;
    }));
  }

  /** Draw the loss, with that of the rounds that rewinds took back, by place. */
  #drawLoss(kept, of, run, lost) {
    const xs = lost.size ? [...new Set([...kept, ...lost.keys()])].sort((one, other) => one - other) : kept;
    const at = new Map(kept.map((x, place) => [x, place]));
    const spread = (column) => xs.map((x) => (at.has(x) ? column[at.get(x)] : null));
    this.#lossPlaces = () => Object.fromEntries(PLACES.map((name) => [name, spread(of(name))]));
    const losses = of("loss"), steps = of("step"), counts = of("rounds");
    const middles = of("number").map((number, place) => number + (counts[place] - 1) / 2);
    const half = Number(this.smoothing.value) * ((middles.at(-1) ?? 0) - (middles[0] ?? 0));
    const held = run === null ? [] : this.#heldOut(run);
    const points = this.#names.map((name) => {
      const column = losses.map(() => null);
      for (const { step, loss } of held.filter((one) => one.name === name)) {
        const place = steps.findIndex((one) => one >= step);
        if (place >= 0) column[place] = loss;
      }
      return column;
    });
    const columns = Object.fromEntries(["step", "epoch", "members", "started_s", "ended_s", "rounds"].map((name) => [name, of(name)]));
    const marks = (kept.length ? marksOf(columns, this.#checkpoints, this.#actions) : [])
      .map((mark) => ({ ...mark, place: xs.indexOf(kept[mark.place]) }));
    const own = [losses, smoothed(middles, losses, counts, half)].map(spread);
    const before = lost.size ? [xs.map((x) => lost.get(x) ?? null)] : [];
    this.#charts.loss.set(xs, [...own, ...before, ...points.map(spread), ...this.#othersLoss(xs)], marks);
  }

  /** Return the other run's loss at these places, in a list; over time, as if both had begun together. */
  #othersLoss(xs) {
    if (this.#other === null) return [];
    const theirs = this.#other[OTHERS_X[this.axis.value]];
    if (theirs === null) return [xs.map(() => null)];
    const shift = this.axis.value === "time" ? (xs[0] ?? 0) - (theirs.find((at) => at !== null) ?? 0) : 0;
    return [placedAt(xs, theirs.map((x) => (x === null ? null : x + shift)), this.#other.loss)];
  }
}
