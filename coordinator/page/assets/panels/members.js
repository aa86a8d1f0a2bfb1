// Every member, in a table that sorts and filters.

import { Grid } from "../widgets/grid.js";
import { fill, h, newId, setText } from "../elements.js";
import { bytes, counted, digits, duration, percent, short, visible, whole } from "../format.js";
import { LEFT, MemberColumns, STATES, stateWords } from "../members.js";

const ASK_EVERY_MS = 4_000;
const ASK_MANY_EVERY_MS = 15_000; // of many members: the answer has a megabyte
const MANY = 1_000;
const VERIFICATION_MS = 15_000;
const QUIET_MS = 400; // nothing is drawn anew while somebody scrolls

/** Columns of the grid, over the rows of `of()`; those of GPUs only where a member reports one. */
function columnsOf(of, hasGpus) {
  const number = (name, title, hint, width, value, text) => ({
    name, title, hint, width, isText: false, value, text: (row) => text(value(row)),
  });
  const text = (name, title, hint, width, value) => ({
    name, title, hint, width, isText: true, value, text: (row) => visible(value(row)), sayWhy: (row) => visible(value(row)),
  });
  return [
    { // who has a name first, the others by their ids
      ...text("name", "Member", "Its name if it has chosen one, else the beginning of its id", 18, (row) => of().called(row)),
      value: (row) => of().get("name", row), tie: (row) => of().id(row),
    },
    text("state", "State", "Whether it has work in this round, trains for the next one already, is ready, prepares, rests after missed rounds, or why it left", 16,
      (row) => of().get("left", row) || stateWords((name) => of().get(name, row))),
    number("share", "Batches", "Batches of this round that it has: as many as it does in the time that the others take", 7, (row) => of().get("share", row), whole),
    number("part", "Part", "Part of this round's data that it carries; nobody gets more than a ceiling, however fast it is", 6, (row) => of().get("part", row), percent),
    number("factor", "Counted", "For how much of its weight its last result counted, if for less: it was longer than usual, or more of the merge than one member may be", 8,
      (row) => of().get("factor", row), (value) => (value === null ? "" : percent(value))),
    number("speed", "Speed (tokens/s)", "Tokens that it trained on in its last rounds, per second in its trainer, as it says", 11,
      (row) => of().get("tokens_per_s", row), short),
    number("tokens", "Tokens", "Tokens of its results that are in the model", 9, (row) => of().get("tokens", row), short),
    number("loss", "Loss", "Training loss of its last result, in nats per token, as it says", 8, (row) => of().get("last_loss", row), digits),
    number("wait", "Waits for data", "Part of its trainer's time for which it waited for data lately, as it says", 9,
      (row) => of().get("data_wait", row), percent),
    number("up", "Sent", "Bytes that it says it has sent for its rounds", 10, (row) => of().get("uploaded_bytes", row), bytes),
    number("down", "Received", "Bytes that it says it has received for its rounds", 10, (row) => of().get("downloaded_bytes", row), bytes),
    ...(hasGpus ? [
      number("gpu", "GPU use", "Part of the last moments of its training in which its GPUs computed, as it says", 8, (row) => of().get("gpu_utilisation", row), percent),
      { ...number("gpuMemory", "GPU memory", "Memory of its GPUs in use, and in all, as it says", 18, (row) => of().get("gpu_memory_bytes", row), bytes),
        text: (row) => (of().get("gpu_memory_bytes", row) === null ? bytes(null) : `${bytes(of().get("gpu_memory_bytes", row))} of ${bytes(of().get("gpu_memory_total_bytes", row))}`) },
    ] : []),
    number("applied", "Results applied", "Results that are in the model", 10, (row) => of().get("applied", row), whole),
    number("lost", "Results lost", "Rounds whose work of this member is not in the model", 10, (row) => of().get("lost", row), whole),
    number("seen", "Last seen", "Time since its last message, or since it left", 11, (row) => of().get("silent_s", row), duration),
    text("software", "Version", "Of its program, as it says", 10, (row) => of().get("software", row) ?? ""),
    text("trainer", "Trainer", "What computes there, as it says", 11, (row) => of().get("trainer", row) ?? ""),
    { ...text("id", "Id", "Names the member's key", 34, (row) => of().id(row)), isId: true },
  ];
}

export default class MembersPanel {
  #members = new MemberColumns();
  #grid = null;
  #stop = null;
  #stopVerification = null;
  #words = [];
  #pending = null;
  #scrolledMs = 0;
  #timer = null;

  mount(element, store, place, router) {
    this.store = store;
    const filterId = newId("filter"), stateId = newId("filter");
    this.filter = h("input", { id: filterId, type: "search", autocomplete: "off", spellcheck: "false", on: { input: () => this.#filter() } });
    this.state = h("select", { id: stateId, on: { change: () => this.#filter() } },
      h("option", { value: "" }, "all that are present"), [...STATES, LEFT].map((name) => h("option", { value: name }, name)));
    const goneId = newId("filter");
    this.gone = h("input", { id: goneId, type: "checkbox", on: { change: () => this.#filter() } });
    this.said = h("p", { role: "status" }, "Asking the coordinator…");
    this.problem = h("p", { role: "alert" });
    this.verification = h("ul", {});
    this.router = router;
    this.gridPlace = h("div");
    this.meanings = h("dl");
    fill(element, h("h1", {}, "Members"),
      h("div", { class: "filter", role: "search", "aria-label": "Members" },
        h("div", {}, h("label", { for: filterId }, "Find by name, id, version or trainer"), h("br"), this.filter),
        h("div", {}, h("label", { for: stateId }, "State"), h("br"), this.state),
        h("div", {}, this.gone, " ", h("label", { for: goneId }, "Show those that have left"))),
      this.said, this.problem, this.gridPlace, h("h2", {}, "Verification of their results"), this.verification,
      h("p", { class: "quiet" }, "In the table: arrow keys, Page Up and Page Down, Home and End move; Enter opens a member's page; "
        + "the buttons above the columns sort."),
      h("details", { class: "glossary" }, h("summary", {}, "What the columns mean"), this.meanings));
    this.#buildGrid(false);
  }

  #buildGrid(hasGpus) {
    const before = this.#grid;
    before?.disconnect();
    this.hasGpus = hasGpus;
    const columns = columnsOf(() => this.#members, hasGpus);
    const grid = this.#grid = new Grid("Members", columns, (row) => this.router.link("member", this.#members.id(row)), "No member is found here.");
    grid.onOrder = () => this.#sayCount();
    grid.matches = (row) => this.#isShown(row);
    grid.element.addEventListener("scroll", () => { this.#scrolledMs = performance.now(); });
    fill(this.gridPlace, grid.element);
    fill(this.meanings, columns.flatMap(({ title, hint }) => [h("dt", {}, title), h("dd", {}, hint)]));
    if (before !== null) grid.sort(before.sorted.name, before.sorted.isDescending);
    grid.connect();
  }

  update() {
    if (this.store.runId === null) return;
    if (this.#stop === null) this.#ask();
    this.#stopVerification ??= this.store.poll(() => this.store.path("verification"), VERIFICATION_MS, ({ sentences }) => {
      fill(this.verification, sentences.map((sentence) => h("li", {}, visible(sentence))));
    });
  }

  #ask() {
    const { store } = this;
    const everyMs = this.#members.length > MANY ? ASK_MANY_EVERY_MS : ASK_EVERY_MS;
    this.everyMs = everyMs;
    this.#stop = store.poll(() => store.path("members"), everyMs, (answer) => this.#told(answer), (problem) => {
      setText(this.problem, `The members could not be read: ${visible(problem.message)}`);
    });
  }

  #told(answer) {
    fill(this.problem);
    this.#pending = answer;
    this.#showPending();
  }

  #showPending() {
    clearTimeout(this.#timer);
    const waitMs = this.#scrolledMs + QUIET_MS - performance.now();
    if (this.#members.length && waitMs > 0) {
      this.#timer = setTimeout(() => this.#showPending(), waitMs);
      return;
    }
    const wasMany = this.#members.length > MANY;
    const isFirst = !this.#members.length, members = this.#members = new MemberColumns(this.#pending);
    this.#pending = null;
    if (members.has("gpu_utilisation") !== this.hasGpus) this.#buildGrid(!this.hasGpus);
    if (isFirst && this.#isFinished) this.#grid.sort("tokens", true);
    this.#grid.setRows(members.length, (row) => members.id(row));
    if (wasMany !== members.length > MANY) {
      this.#stop();
      this.#timer = setTimeout(() => this.#ask(), this.everyMs);
    }
  }

  #filter() {
    this.#words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    this.#grid.element.scrollTop = 0;
    this.#grid.order();
  }

  /** Whether the run is over: whoever took part is shown then, who gave most first. */
  get #isFinished() {
    return this.store.document?.run_state === "Finished";
  }

  #isShown(row) {
    const wanted = this.state.value;
    const isWanted = wanted === "" ? this.gone.checked || this.#isFinished || row < this.#members.presentCount : this.#members.state(row) === wanted;
    return isWanted && this.#members.hasWords(row, this.#words);
  }

  #sayCount() {
    const present = this.#members.presentCount, { length } = this.#grid.shown;
    const all = !present && this.#members.length ? "No member is present; those that took part have left" : counted(present, "member");
    const isAll = !this.#words.length && this.state.value === "" && !this.gone.checked;
    setText(this.said, isAll ? all : present ? `${whole(length)} shown; ${all} in all` : `${whole(length)} shown; no member is present`);
  }

  unmount() {
    clearTimeout(this.#timer);
    this.#stop?.();
    this.#stopVerification?.();
    this.#grid.disconnect();
  }
}

