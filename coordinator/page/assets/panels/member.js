// One member's own page: "#/member/ID", as its client's log names it.

import { fill, h, setText } from "../elements.js";
import { bytes, digits, duration, moment, percent, short, stepWords, visible, whole } from "../format.js";
import { stateWords } from "../members.js";
import { kindLink, meaning, prose } from "../refusals.js";
import { FATES, PARTS } from "../words.js";

const ASK_EVERY_MS = 3_000;
const ID = /^[0-9a-f]{32}$/;
const ANY_SHARE = 1_000_000; // a claim that bounds nothing

const CHANGING = ["at_s", "silent_s", "rest_s", "version"]; // with each answer: the tables are drawn when others do

/** Parts of a round's time, as the columns of the table. */
const TIMES = Object.entries(PARTS).filter(([part]) => part !== "unknown")
  .map(([part, { label }]) => [`${part}_s`, label.charAt(0).toUpperCase() + label.slice(1)]);

export default class MemberPanel {
  #ends = [];
  #id = null;
  #told = null;

  mount(element, store, place, router) {
    this.store = store;
    this.router = router;
    this.title = h("h1", {}, "Member");
    this.said = h("p", { role: "status" }, "");
    this.body = h("div");
    this.all = h("a", {}, "All members");
    fill(element, h("p", {}, this.all), this.title, this.said, this.body);
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
    fill(this.body);
    setText(this.title, "Member");
    if (!ID.test(id)) {
      setText(this.said, `“${visible(id)}” is no member's id: an id has 32 hexadecimal digits.`);
      return;
    }
    setText(this.said, "Asking the coordinator…");
    const { store } = this;
    this.#ends.push(store.poll(() => store.path(`members/${id}`), ASK_EVERY_MS, (answer) => this.#show(answer), (problem) => {
      if (problem.kind !== "not-found") return setText(this.said, `The member could not be read: ${visible(problem.message)}`);
      setText(this.said, `No member with the id ${id} is known: it has not joined this run, or left long ago.`);
    }));
  }

  unmount() {
    for (const end of this.#ends) end();
    this.#ends = [];
  }

  #show(answer) {
    const { figures: row } = answer;
    const state = stateWords((name) => row[name] ?? null);
    this.#name(row);
    setText(this.said, row.left
      ? `It left ${duration(row.silent_s)} ago: ${visible(row.left)}.`
      : `It is ${state}${row.rest_s === null ? "" : `, for ${duration(row.rest_s)} more`}; heard ${duration(row.silent_s)} ago.`);
    this.#draw(answer, () => [factsOf(row, answer), roundsOf(answer.rounds, this.router), refusalsOf(answer), this.#operator(row)]);
  }

  #name(row) {
    setText(this.title, row.name ? `Member ${visible(row.name)}` : `Member ${row.client_id.slice(0, 12)}`);
  }

  /** Put what `parts()` returns into the page, if what it shows is new. */
  #draw(shows, parts) {
    const shown = JSON.stringify(shows, (name, value) => (CHANGING.includes(name) ? undefined : value));
    if (shown === this.#told) return;
    this.#told = shown;
    const focused = document.activeElement?.dataset?.part;
    fill(this.body, ...parts());
    if (focused) this.body.querySelector(`[data-part="${focused}"]`)?.focus({ preventScroll: true });
  }

  #operator(row) {
    if (row.left) return null;
    return h("p", {}, h("a", { "data-part": "eject", href: this.router.link("operate", "eject", row.client_id) }, "Eject this member"),
      " (the operator only)");
  }
}

function factsOf(row, { quarantined }) {
  const facts = [
    ["Id", row.client_id],
    ["Program", `${visible(row.software) || "version not known"}, trainer ${visible(row.trainer)}`],
    ["Joined", moment(row.joined_s)],
    ["Speed", `${short(row.tokens_per_s)} tokens/s; ${duration(row.train_s)} of training in a round (median of the last rounds)`],
    ["Loss", `${digits(row.last_loss)} nats/token`],
    ["Waits for data", `${percent(row.data_wait)} of its trainer's time lately; ${duration(row.data_wait_s)} in all`],
    ["Results", `${whole(row.applied)} applied, ${whole(row.lost)} lost; ${bytes(row.result_bytes)}`],
    ["Tokens", `${whole(row.tokens)} applied`],
    ["Transferred", `${bytes(row.uploaded_bytes)} sent, ${bytes(row.downloaded_bytes)} received, as it says`],
  ];
  if (!row.left) {
    facts.splice(3, 0, ["Share", `${whole(row.share)} batches, ${percent(row.part)} of this round${row.claim < ANY_SHARE ? `; it takes ${whole(row.claim)} at most` : ""}`]);
    if (row.factor !== null) {
      facts.splice(4, 0, ["Counted", `Its last result for ${percent(row.factor)} of its weight: it was longer than usual, or more of the merge than one member may be`]);
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

function scrolling(label, part, table) {
  return h("div", { class: "scrolls", tabindex: 0, role: "region", "aria-label": label, "data-part": part }, table);
}

function tableOf(caption, heads, rows) {
  return h("table", {}, h("caption", {}, caption),
    h("thead", {}, h("tr", {}, heads.map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((text) => h("td", {}, text))))));
}

function roundsOf(rounds, router) {
  if (!rounds.length) return h("p", {}, "It has had no part in the last rounds.");
  const rows = rounds.toReversed().map(({ number, step, attempt, ended_s: ended, figures }) => [
    h("a", { href: router.link("round", number) }, whole(number)),
    stepWords({ step, attempt }).slice("step ".length),
    moment(ended),
    prose(`${FATES[figures.fate] ?? figures.fate}${figures.detail ? `: ${visible(figures.detail)}` : ""}`),
    whole(figures.batches),
    digits(figures.loss),
    ...TIMES.map(([name]) => duration(figures[name])),
  ]);
  return [h("h2", {}, "Its last rounds"), scrolling("Its last rounds", "rounds", tableOf("The newest first; times as it says, or as the coordinator saw them",
    ["Round", "Step", "Ended", "Its work", "Batches", "Loss", ...TIMES.map(([, title]) => title)], rows))];
}

function refusalsOf({ refusals, last_refusals: last }) {
  const parts = [h("h2", {}, "Refusals and failures")];
  if (!refusals.length) parts.push(h("p", { class: "good" }, "Nothing of it was refused."));
  else {
    parts.push(scrolling("Refusals by kind", "refusals", tableOf("Of its results, checkpoints and rounds, by kind", ["Kind", "Number", "What it means"],
      refusals.map(({ kind, count }) => [kindLink(kind), whole(count), prose(meaning(kind))]))));
  }
  if (last.length) {
    parts.push(scrolling("The last refusals", "last", tableOf("The last ones, the newest first", ["When", "Step", "Kind", "Why"],
      last.toReversed().map(({ kind, detail, step, at_s: at }) => [moment(at), whole(step), kindLink(kind), prose(visible(detail))]))));
  }
  return parts;
}
