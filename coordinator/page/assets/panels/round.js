// The round: a waterfall of its clients, why the run is not faster, and medians over the last rounds.

import { fill, h, newId, scrollingTable, setText } from "../elements.js";
import { bytes, counted, duration, moment, percent, stepWords, visible, whole } from "../format.js";
import { glossary } from "../glossary.js";
import { called, clientLink, isAwaited, legend, patterns, replaceWaterfall, table, waterfall } from "../widgets/waterfall.js";
import { PARTS, PHASES, WHOSE_NOBODY } from "../words.js";

const ASK_AGAIN_MS = 2_000;
const EXPLAINED_MS = 5_000;
const FEW = 30, MANY = 300;
const SHOWN_MEDIANS = 20;
const TIMES = Object.keys(PARTS).filter((part) => part !== "unknown");
const NAMED = 3; // awaited clients that are named in the sentence above the waterfall
const WORDS_HERE = [
  "round", "step", "attempt", "client", "batch", ...Object.values(PARTS).map(({ label }) => label), "witness", "median", "version",
];

export default class RoundPanel {
  #ends = [];
  #most = FEW;
  #detail = null; // of the round that the address names, or of the last one
  #problem = null;
  #explanation = null;
  #drawn = new Map();

  mount(element, store, place, router) {
    this.store = store;
    this.router = router;
    this.place = place;
    const id = newId("round");
    this.sentence = h("p", { class: "lead" });
    this.shares = h("div");
    this.medians = h("div");
    this.why = h("section", { "aria-labelledby": `${id}-why` },
      h("h2", { id: `${id}-why` }, "Why is this run not faster?"), this.sentence, this.shares);
    this.others = h("section", { "aria-labelledby": `${id}-medians` },
      h("h2", { id: `${id}-medians` }, "Medians over the last rounds"), this.medians);
    this.now = this.#section(`${id}-now`, "The round under way");
    this.last = this.#section(`${id}-last`, "The last round");
    this.neighbours = h("p");
    this.last.said.after(this.neighbours);
    this.more = h("button", { type: "button", on: { click: () => this.#showMore() } }, `Show up to ${MANY} clients`);
    fill(element, patterns(), h("h1", {}, "Round"), this.why, this.now.section, this.last.section,
      h("p", {}, this.more), legend(), this.others, glossary(WORDS_HERE));
    this.#ends.push(
      store.follow(ASK_AGAIN_MS, () => this.#most),
      store.poll(() => this.#detailPath(), ASK_AGAIN_MS, (detail) => {
        this.#detail = detail;
        this.#problem = null;
        this.update(this.place);
      }, (problem) => {
        this.#problem = problem;
        this.update(this.place);
      }),
      store.poll(() => store.path("history/explanation"), EXPLAINED_MS, (explanation) => {
        this.#explanation = explanation;
        this.#drawn.delete("now"); // which says when results usually come
        this.update(this.place);
      }),
    );
  }

  unmount() {
    for (const end of this.#ends) end();
  }

  #section(id, title) {
    const heading = h("h2", { id }, title), said = h("p"), place = h("div"), rows = h("div");
    const numbers = h("details", {}, h("summary", {}, "As a table"), rows);
    numbers.addEventListener("toggle", () => { this.#drawn.clear(); this.update(this.place); });
    return { section: h("section", { "aria-labelledby": id }, heading, said, place, numbers), heading, said, place, numbers, rows };
  }

  #showMore() {
    this.#most = MANY;
    this.more.hidden = true;
    this.#drawn.clear();
    for (const end of this.#ends) end.hurry();
  }

  /** Number of the round that the address names; null for the last one. */
  get #wanted() {
    const [word] = this.place.rest;
    return word !== undefined && /^\d{1,15}$/.test(word) ? Number(word) : null;
  }

  #detailPath() {
    const { page } = this.store;
    const number = this.#wanted ?? (page !== null && page.detailed_from < page.next ? page.next - 1 : null);
    return number === null ? null : this.store.path(`history/rounds/${number}?slowest=${this.#most}`);
  }

  update(place) {
    const before = this.#wanted;
    this.place = place;
    if (this.#wanted !== before) {
      this.#problem = null;
      for (const end of this.#ends) end.hurry();
    }
    const { present: found } = this.store;
    const wanted = this.#wanted;
    const isExplained = wanted === null && this.#explanation !== null;
    this.why.hidden = this.others.hidden = !isExplained;
    if (isExplained) this.#explain();
    this.now.section.hidden = wanted !== null;
    if (wanted === null) this.#showUnderWay(found);
    const detail = this.#detail;
    const isOther = detail !== null && wanted !== null && detail.figures.number !== wanted;
    this.#showEnded(isOther ? null : detail, wanted);
    const underWay = wanted === null ? found?.document.round?.roster_count ?? 0 : 0;
    if (this.#most === FEW) this.more.hidden = Math.max(underWay, detail?.figures.clients ?? 0) <= FEW;
  }

  #showUnderWay(found) {
    const { section, heading, said, place, numbers, rows } = this.now;
    const round = found?.document.round ?? null;
    section.classList.toggle("empty", round === null);
    numbers.hidden = round === null;
    if (round === null) {
      setText(heading, "The round under way");
      const unread = this.store.problem === null ? "Reading…" : visible(this.store.problem.message);
      setText(said, found === null ? unread : `No round is under way. Phase ${found.document.run_state}: ${PHASES[found.document.run_state] ?? "not known here"}.`);
      if (this.#drawn.get("now") !== null) fill(place);
      this.#drawn.set("now", null);
      return;
    }
    if (this.#drawn.get("now") === found) return;
    this.#drawn.set("now", found);
    const { document: run, under_way: clients } = found;
    const isTraining = run.run_state === "RoundTrain";
    const roundS = Math.max(0.001, found.round_s ?? 0);
    setText(heading, `The round under way: ${stepWords(round)}`);
    setText(said, `For ${duration(roundS)} so far: ` +
      `${counted(round.roster_count, "client")}, ${counted(round.batches, "batch", "es")}. ${awaitedWords(clients, round.roster_count)} ${this.#shownCount(clients.length, round.roster_count)}`);
    const usual = new Map(this.#explanation?.clients.map((client) => [client.client_id, client.delivered_s]));
    const span = { roundS, trainS: isTraining ? null : roundS - (found.at_s - run.phase_started_s), isUnderWay: true, usual };
    replaceWaterfall(place, waterfall(clients, span, this.router));
    if (numbers.open) fill(rows, table(clients, "The clients of the round under way", this.router, true));
  }

  #showEnded(detail, wanted) {
    const { heading, said, place, numbers, rows } = this.last;
    numbers.hidden = detail === null;
    if (detail === null) {
      setText(heading, wanted === null ? "The last round" : "A round");
      setText(said, this.#problem !== null ? visible(this.#problem.message) : this.#whyNoRound(wanted));
      if (this.#drawn.get("last") !== null) fill(place);
      this.#drawn.set("last", null);
      fill(this.neighbours);
      return;
    }
    if (this.#drawn.get("last") === detail) return;
    this.#drawn.set("last", detail);
    this.#linkNeighbours(detail.figures);
    const { figures, clients } = detail;
    const words = stepWords(figures);
    setText(heading, wanted === null ? `The last round: ${words}` : `${words.charAt(0).toUpperCase()}${words.slice(1)}`);
    const roundS = figures.train_s + figures.witness_s;
    setText(said, `Ended ${moment(figures.ended_s)} after ${duration(roundS)} (all results in after ${duration(figures.train_s)}, ` +
      `attested ${duration(figures.witness_s)} later): ${visible(detail.reason)}. ` +
      `${whole(figures.applied_batches)} of ${counted(figures.batches, "batch", "es")} applied. ${this.#shownCount(clients.length, figures.clients)}`);
    replaceWaterfall(place, waterfall(clients, { roundS, trainS: figures.train_s, isUnderWay: false }, this.router));
    if (numbers.open) fill(rows, table(clients, `The clients of ${words}`, this.router));
  }

  /** Return why no round is shown, though none of the answers was a refusal. */
  #whyNoRound(wanted) {
    if (wanted !== null || this.store.page === null || this.#detailPath() !== null) return "Reading…";
    return this.store.rounds.length ? "The clients' figures of the last round are not held any more." : "No round has ended yet.";
  }

  /** Link to the rounds before and after, if their clients' figures are held. */
  #linkNeighbours({ number, rounds }) {
    const { page } = this.store;
    const link = (to, label) => (page === null || to < page.detailed_from || to >= page.next ? null : h("a", { href: this.router.link("round", to) }, label));
    fill(this.neighbours, link(number - 1, "‹ the round before"), " ", link(number + rounds, "the round after ›"));
  }

  #shownCount(shown, all) {
    return shown < all ? `Shown are the slowest ${whole(shown)}.` : "";
  }

  #explain() {
    const found = this.#explanation;
    if (found === null || this.#drawn.get("why") === found) return;
    this.#drawn.set("why", found);
    setText(this.sentence, visible(found.sentence));
    fill(this.shares, found.parts.length ? this.#parts(found) : null);
    fill(this.medians, found.clients.length ? this.#medianTable(found) : h("p", {}, "No round has ended yet."));
  }

  #parts({ parts, rounds }) {
    const items = parts.filter(({ share }) => share >= 0.01).map((part) => {
      const label = WHOSE_NOBODY[part.kind] ?? PARTS[part.kind]?.label ?? visible(part.kind);
      const whose = part.client_id === null ? "" : `, ${called(part)} last`; // who was last in a round, not who is slow
      const rate = part.bytes_per_s === null ? "" : `, ${bytes(part.bytes_per_s)}/s`;
      return h("li", {}, h("meter", { min: 0, max: 1, value: part.share, "aria-hidden": "true" }),
        ` ${percent(part.share)} `, h("bdi", {}, `${label}${whose}`), ` (${duration(part.seconds)}${rate})`);
    });
    return [h("p", {}, `Where the time of the last ${rounds === 1 ? "round" : `${whole(rounds)} rounds`} went:`), h("ul", { class: "shares" }, items)];
  }

  #medianTable({ clients }) {
    const shown = clients.slice(0, SHOWN_MEDIANS);
    const head = ["client", "rounds", "missed", ...TIMES.map((part) => PARTS[part].label), "result there", "upload rate", "download rate"];
    const rows = shown.map((client) => {
      const most = TIMES.reduce((best, part) => ((client[`${part}_s`] ?? 0) > (client[`${best}_s`] ?? 0) ? part : best), TIMES[0]);
      const rate = (value) => (value === null ? "–" : `${bytes(value)}/s`);
      return [clientLink(client, this.router), whole(client.rounds), whole(client.missed),
        ...TIMES.map((part) => (part === most && client[`${part}_s`] ? h("strong", {}, duration(client[`${part}_s`])) : duration(client[`${part}_s`]))),
        duration(client.delivered_s), rate(client.uploaded_bytes_per_s), rate(client.downloaded_bytes_per_s)];
    });
    const caption = `Medians, the slowest of ${counted(shown.length, "client")} first; each client's longest part is bold`;
    return scrollingTable("Medians over the last rounds", caption, head, rows);
  }
}

/** Return which of these clients, the slowest of so many, the round waits for, in words. */
function awaitedWords(clients, count) {
  const awaited = clients.filter(isAwaited);
  if (!awaited.length) return "All of their results are there.";
  const names = awaited.slice(0, NAMED).map(called).join(", ");
  const least = awaited.length === clients.length && clients.length < count ? "at least " : "";
  const more = awaited.length > NAMED ? ` and ${least}${whole(awaited.length - NAMED)} more` : "";
  return `Awaited: ${names}${more}.`;
}
