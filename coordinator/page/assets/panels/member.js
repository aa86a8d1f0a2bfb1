// One member's own page: "#/member/ID", as its client's log names it.

import { Chart } from "../widgets/chart.js";
import { fill, h, scrollingTable, setText } from "../elements.js";
import { bytes, counted, digits, duration, moment, percent, short, stepWords, visible, whole } from "../format.js";
import { stateWords } from "../members.js";
import { kindLink, meaning, prose } from "../refusals.js";
import { FATES, PARTS } from "../words.js";

const ASK_EVERY_MS = 3_000;
const ID = /^[0-9a-f]{32}$/;
const RARELY_MS = 30_000;
const ANY_SHARE = 1_000_000; // a claim that bounds nothing

/** Curves over its last rounds, where it reports what they show: title, series by field, format. */
const CURVES = [
  ["Tokens per second", { "tokens/s": ({ tokens, train_s: seconds }) => (seconds > 0 ? tokens / seconds : null) }, short],
  ["Loss, nats per token", { loss: ({ loss }) => loss }, digits, false],
  ["Gradient norm", { "gradient norm": ({ gradient_norm: norm }) => norm }, digits],
  ["GPU use", { "GPU use": ({ gpu_utilisation: part }) => part }, percent],
  ["GPU memory", { "in use": ({ gpu_memory_bytes: used }) => used, "in all": ({ gpu_memory_total_bytes: all }) => all }, bytes],
];
const CHANGING = ["at_s", "silent_s", "rest_s", "version"]; // with each answer: the tables are drawn when others do

/** Parts of a round's time, as the columns of the table. */
const TIMES = Object.entries(PARTS).filter(([part]) => part !== "unknown")
  .map(([part, { label }]) => [`${part}_s`, label.charAt(0).toUpperCase() + label.slice(1)]);

export default class MemberPanel {
  #ends = [];
  #id = null;
  #told = null;
  #rank = "";
  #charts = [];

  mount(element, store, place, router) {
    this.store = store;
    this.router = router;
    this.title = h("h1", {}, "Member");
    this.said = h("p", { role: "status" }, "");
    this.facts = h("div");
    this.curves = h("div", { class: "charts" });
    this.body = h("div");
    this.all = h("a", {}, "All members");
    fill(element, h("p", {}, this.all), this.title, this.said, this.facts, this.curves, this.body);
  }

  update(place) {
    this.all.href = this.router.link("members");
    const id = (place.rest[0] ?? "").toLowerCase();
    if (this.store.runId === null) return;
    if (id !== this.#id) return this.#begin(id);
  }

  #begin(id) {
    this.unmount();
    this.#id = id;
    this.#told = null;
    this.#rank = "";
    fill(this.body);
    fill(this.facts);
    setText(this.title, "Member");
    if (!ID.test(id)) {
      setText(this.said, `“${visible(id)}” is no member's id: an id has 32 hexadecimal digits.`);
      return;
    }
    setText(this.said, "Asking the coordinator…");
    const { store } = this;
    store.api.json(store.path("members")).then((page) => { this.#rank = rankOf(id, page); }, () => {}); // without it, it has no rank here
    this.#ends.push(store.follow(RARELY_MS), store.poll(() => store.path(`members/${id}`), ASK_EVERY_MS, (answer) => this.#show(answer), (problem) => {
      if (problem.kind !== "not-found") return setText(this.said, `The member could not be read: ${visible(problem.message)}`);
      setText(this.said, `No member with the id ${id} is known: it has not joined this run, or left long ago.`);
    }));
  }

  unmount() {
    for (const end of this.#ends) end();
    for (const { chart } of this.#charts) chart.destroy();
    this.#ends = [];
    this.#charts = [];
  }

  #show(answer) {
    const { figures: row } = answer;
    const state = stateWords((name) => row[name] ?? null);
    this.#name(row);
    setText(this.said, row.left
      ? `It left ${duration(row.silent_s)} ago: ${visible(row.left)}.`
      : `It is ${state}${row.rest_s === null ? "" : `, for ${duration(row.rest_s)} more`}; heard ${duration(row.silent_s)} ago.`);
    this.#draw(answer, () => [roundsOf(answer.rounds, this.router), refusalsOf(answer), this.#operator(row)]);
  }

  /** Draw the curves that there is something for. */
  #drawCurves(rounds) {
    const found = CURVES.map(([title, series, format, fromZero = true]) => ({
      title, format, fromZero, labels: Object.keys(series),
      columns: Object.values(series).map((of) => rounds.map(({ figures }) => of(figures) ?? null)),
    })).filter(({ columns }) => columns.some((values) => values.some((value) => value !== null)));
    if (found.map(({ title }) => title).join() !== this.#charts.map(({ title }) => title).join()) {
      for (const { chart } of this.#charts) chart.destroy();
      this.#charts = found.map(({ title, format, fromZero, labels }) => ({ title, chart: new Chart(this.curves, {
        title, format, fromZero, xName: "round", formatX: whole,
        series: labels.map((label, place) => ({ label, colour: `--series-${place + 1}`, line: place ? "dashed" : "solid" })),
      }) }));
    }
    found.forEach(({ columns }, place) => this.#charts[place].chart.set(rounds.map(({ number }) => number), columns));
  }

  #name(row) {
    setText(this.title, row.name ? `Member ${visible(row.name)}` : `Member ${row.client_id.slice(0, 12)}`);
  }

  /** Put what `parts()` returns into the page, if what it shows is new. */
  #draw(shows, parts) {
    const total = this.store.present?.tokens_total;
    const shown = JSON.stringify([shows, this.#rank, total], (name, value) => (CHANGING.includes(name) ? undefined : value));
    if (shown === this.#told) return;
    this.#told = shown;
    const focused = document.activeElement?.dataset?.part;
    fill(this.facts, factsOf(shows.figures, shows, this.#rank, total));
    this.#drawCurves(shows.rounds);
    fill(this.body, ...parts());
    if (focused) this.body.querySelector(`[data-part="${focused}"]`)?.focus({ preventScroll: true });
  }

  #operator(row) {
    if (row.left) return null;
    return h("p", {}, h("a", { "data-part": "eject", href: this.router.link("operate", "eject", row.client_id) }, "Eject this member"),
      " (the operator only)");
  }
}

/** Return the place of a member among all that took part, by tokens, in words. */
function rankOf(id, { members, gone }) {
  const all = [members, gone].flatMap((columns) => columns.client_id.map((one, place) => ({ id: one, tokens: columns.tokens[place] })));
  const own = all.find((one) => one.id === id);
  return own?.tokens ? `, rank ${whole(1 + all.filter(({ tokens }) => tokens > own.tokens).length)} of ${whole(all.length)}` : "";
}

function factsOf(row, { quarantined }, rank, total) {
  const facts = [
    ["Id", row.client_id],
    ["Program", `${visible(row.software) || "version not known"}, trainer ${visible(row.trainer)}`],
    ["Tokens", `${whole(row.tokens)} applied${total ? `, ${percent(row.tokens / total)} of the run's` : ""}${rank}`],
    ["Joined", `${moment(row.joined_s)}${row.left || row.joined_s === null ? "" : `, ${duration(Math.max(0, Date.now() / 1000 - row.joined_s))} ago`}`],
    ["Speed", `${short(row.tokens_per_s)} tokens/s; ${duration(row.train_s)} of training in a round (median of the last rounds)`],
    ["Loss", `${digits(row.last_loss)} nats/token`],
    ["Waits for data", `${percent(row.data_wait)} of its trainer's time lately; ${duration(row.data_wait_s)} in all`],
    ["Results", `${whole(row.applied)} applied, ${whole(row.lost)} lost; ${bytes(row.result_bytes)}`],
    ["Transferred", `${bytes(row.uploaded_bytes)} sent, ${bytes(row.downloaded_bytes)} received, as it says`],
  ];
  if (!row.left) {
    facts.splice(4, 0, ["Share", `${counted(row.share, "batch", "es")}, ${percent(row.part)} of this round${row.claim < ANY_SHARE ? `; it takes ${whole(row.claim)} at most` : ""}`]);
    if (row.factor !== null) {
      facts.splice(5, 0, ["Counted", `Its last result for ${percent(row.factor)} of its weight: it was longer than usual, or more of the merge than one member may be`]);
    }
  }
  if (row.missed || row.last_miss) {
    facts.push(["Missed rounds", `${whole(row.missed)} not made up for${row.last_miss ? `; the last one: ${visible(row.last_miss)}` : ""}`]);
  }
  if (quarantined.length) {
    const named = quarantined.map(({ start, end }) => (start === end ? whole(start) : `${whole(start)} to ${whole(end)}`)).join(", ");
    facts.push(["Quarantined", `It failed on batches ${named}, as others did`]);
  }
  return h("dl", { class: "facts" }, facts.flatMap(([word, text]) => [h("dt", {}, word), h("dd", {}, text)]));
}

function roundsOf(rounds, router) {
  if (!rounds.length) return h("p", {}, "It has had no part in the last rounds.");
  const rows = rounds.toReversed().map(({ number, step, attempt, ended_s: ended, figures }) => [
    h("a", { href: router.link("round", number) }, stepWords({ step, attempt }).slice("step ".length)),
    moment(ended),
    prose(`${FATES[figures.fate] ?? figures.fate}${figures.detail ? `: ${visible(figures.detail)}` : ""}`),
    whole(figures.batches),
    digits(figures.loss),
    ...TIMES.map(([name]) => duration(figures[name])),
  ]);
  return [h("h2", {}, "Its last rounds"), scrollingTable("Its last rounds", "The newest first; times as it says, or as the coordinator saw them",
    ["Step", "Ended", "Its work", "Batches", "Loss", ...TIMES.map(([, title]) => title)], rows, { "data-part": "rounds" })];
}

function refusalsOf({ refusals, last_refusals: last }) {
  const parts = [h("h2", {}, "Refusals and failures")];
  if (!refusals.length) parts.push(h("p", { class: "good" }, "Nothing of it was refused."));
  else {
    parts.push(scrollingTable("Refusals by kind", "Of its results, checkpoints and rounds, by kind", ["Kind", "Number", "What it means"],
      refusals.map(({ kind, count }) => [kindLink(kind), whole(count), prose(meaning(kind))]), { "data-part": "refusals" }));
  }
  if (last.length) {
    parts.push(scrollingTable("The last refusals", "The last ones, the newest first", ["When", "Step", "Kind", "Why"],
      last.toReversed().map(({ kind, detail, step, at_s: at }) => [moment(at), whole(step), kindLink(kind), prose(visible(detail))]), { "data-part": "last" }));
  }
  return parts;
}
