// Back in time: a slider over all versions of the run document, which shows the same page at any of them.

import { fill, h, newId, setText } from "./elements.js";
import { moment, whole } from "./format.js";

const SETTLED_MS = 120; // a version is asked for when the slider has rested for so long

export class Timeline {
  #timer = null;
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
    this.back.addEventListener("click", () => this.#step(-1));
    this.forth.addEventListener("click", () => this.#step(1));
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

  /** Go to the end of the round before, or after, the version that is shown. */
  #step(direction) {
    const versions = this.store.rounds.get("version");
    const at = this.store.version ?? this.#latest;
    const found = direction < 0
      ? versions.findLast((version) => version < at && version >= this.#first)
      : versions.find((version) => version > at);
    if (found !== undefined) this.#go(found);
    else if (direction > 0) this.#go(null);
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
    const rounds = store.rounds.until(version);
    const last = rounds.last;
    const round = last === null ? "before the first round" : `after round ${whole(rounds.next - 1)}, step ${whole(last.step)}`;
    const isLive = store.isLive && this.#shown === null;
    this.input.setAttribute("aria-valuetext", isLive ? `now, version ${version}` : `version ${version}, ${round}`);
    this.live.setAttribute("aria-pressed", String(isLive));
    setText(this.what, isLive ? `Now: version ${whole(version)}` : this.#described(version, round));
    document.body.classList.toggle("past", !store.isLive);
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
