// Back in time: a slider over all versions of the run document, which shows the same page at any of them.

import { fill, h, newId, setText } from "./elements.js";
import { moment, whole } from "./format.js";
import { Rounds } from "./rounds.js";

const SETTLED_MS = 120; // a version is asked for when the slider has rested for so long
const NEAR_POINTS = 4096; // the coordinator's maximum number of rows in a page

export class Timeline {
  #timer = null;
  #stepping = Promise.resolve();
  #shown = null;

  constructor(element, store, router) {
    this.store = store;
    this.router = router;
    const id = newId("version");
    this.input = h("input", { id, type: "range", min: 0, max: 0, step: 1, "aria-describedby": `${id}-what` });
    this.what = h("p", { id: `${id}-what`, class: "what" });
    this.live = h("button", { type: "button", class: "live" }, "Live");
    this.back = h("button", { type: "button", "aria-label": "One round back" }, "‹", h("span", { class: "word" }, " round"));
    this.forth = h("button", { type: "button", "aria-label": "One round on" }, h("span", { class: "word" }, "round "), "›");
    fill(element,
      h("label", { for: id, title: "Each change of the run's published state has a number: its version." }, "Version"),
      this.back, this.input, this.forth, this.live, this.what,
    );
    this.input.addEventListener("input", () => this.#moved(Number(this.input.value)));
    this.input.addEventListener("change", () => this.#settle());
    this.live.addEventListener("click", () => this.#go(null));
    this.back.addEventListener("click", () => this.#stepLater(-1));
    this.forth.addEventListener("click", () => this.#stepLater(1));
    store.subscribe(() => this.update());
  }

  #moved(version) {
    this.#shown = version;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#settle(), SETTLED_MS);
    this.update();
  }

  #settle() {
    clearTimeout(this.#timer);
    if (this.#shown === null) return;
    const version = this.#shown;
    this.#shown = null;
    this.#go(version >= this.#latest ? null : version);
  }

  #go(version) {
    clearTimeout(this.#timer);
    this.#shown = null;
    if (version !== this.router.place.version) this.router.go({ version }, { replace: true });
  }

  /** Step once the steps before are done: a step may have to ask. */
  #stepLater(direction) {
    this.#stepping = this.#stepping.then(() => this.#step(direction));
  }

  /** Go to the end of the round before, or after, the version that is shown. */
  async #step(direction) {
    const at = this.store.version ?? this.#latest;
    const versions = (await this.#roundsNear(at)).get("version");
    const found = direction < 0
      ? versions.findLast((version) => version < at && version >= this.#first)
      : versions.find((version) => version > at);
    if (found !== undefined) this.#go(found);
    else if (direction > 0) this.#go(null);
  }

  /** Return the rows of the history, with one for each round near a version, where those that are known stand for several. */
  async #roundsNear(version) {
    const { rounds, api } = this.store;
    const after = rounds.get("version").findIndex((one) => one > version);
    const last = after < 0 ? rounds.length - 1 : after, first = Math.max(0, last - 1);
    const numbers = rounds.get("number"), counts = rounds.get("rounds");
    if (last < 0 || (counts[first] === 1 && counts[last] === 1)) return rounds;
    const place = `history?from=${numbers[first]}&to=${numbers[last] + counts[last] - 1}&points=${NEAR_POINTS}`;
    try {
      return rounds.refined(new Rounds((await api.json(this.store.path(place))).rounds));
    } catch {
      return rounds; // the connection, or the version, says why
    }
  }

  get #latest() {
    return this.store.document?.version ?? 0;
  }

  get #first() {
    return Math.min(this.store.page?.first_version ?? 0, this.#latest);
  }

  update() {
    const { store } = this;
    const version = this.#shown ?? store.version ?? this.#latest;
    this.input.min = this.#first;
    this.input.max = this.#latest;
    this.input.value = version;
    const round = this.#roundOf(version);
    const isLive = store.isLive && this.#shown === null;
    this.input.setAttribute("aria-valuetext", isLive ? `now, version ${version}` : `version ${version}, ${round}`);
    this.live.setAttribute("aria-pressed", String(isLive));
    setText(this.what, isLive ? `Now: version ${whole(version)}` : this.#described(version, round));
    document.body.classList.toggle("past", !store.isLive);
  }

  /** The last round that had ended at a version, in words. */
  #roundOf(version) {
    const { moment: found, rounds: all, page } = this.store;
    const known = found?.document.version === version ? found.last_round : null;
    if (known) return `after round ${whole(known.figures.number)}, step ${whole(known.figures.step)}`;
    if (page === null) return "of a round that is not known yet";
    const rounds = all.until(version), { last } = rounds;
    const isSure = rounds === all || all.get("rounds")[rounds.length] === 1;
    if (last === null) return isSure ? "before the first round" : "among the first rounds";
    return `${isSure ? "after" : "soon after"} round ${whole(rounds.next - 1)}, step ${whole(last.step)}`;
  }

  #described(version, round) {
    const { store } = this;
    const shown = `Version ${whole(version)}, ${round}`;
    if (this.#shown !== null) return shown;
    if (store.problem !== null) return `Version ${whole(version)}: ${store.problem.message}`;
    if (store.moment === null || store.moment.document.version !== version) return `${shown}: reading…`;
    return `${shown}, as it was at ${moment(store.moment.at_s)}`;
  }
}
