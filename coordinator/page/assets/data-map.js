// A map of the data: a canvas in which each place stands for some batches, and the same in words.

import { colour } from "./chart.js";
import { fill, h, newId, setText } from "./elements.js";
import { percent, whole } from "./format.js";
import { term } from "./glossary.js";

const ROWS = 8, CELL = 12;
const SHOWN_INTERVALS = 20;
const KINDS = [
  { name: "applied", label: "applied", colour: "--series-5" },
  { name: "under_way", label: "under way", colour: "--series-1" },
  { name: "waiting", label: "carried", colour: "--series-2" },
  { name: "quarantined", label: "quarantined", colour: "--bad" },
];
const dark = matchMedia("(prefers-color-scheme: dark)");

/** Number of batches in closed intervals. */
export function countOf(intervals) {
  return intervals.reduce((sum, { start, end }) => sum + end - start + 1, 0);
}

/** Return for each of `count` places the worst kind of its batches: 0 applied, 1 under way, 2 carried, 3 quarantined. */
export function placesOf(data, count) {
  const places = new Uint8Array(count);
  const size = data.begun / count;
  KINDS.forEach(({ name }, kind) => {
    for (const { start, end } of data[name] ?? []) {
      const last = Math.min(count - 1, Math.floor(end / size));
      for (let place = Math.floor(start / size); place <= last; place += 1) places[place] = Math.max(places[place], kind);
    }
  });
  return places;
}

/** Return how far the run is through its data; "" if nobody has said how many samples they have. */
function passWords({ passes, pass_samples: samples }) {
  if (passes === null || samples === null) return "";
  const begun = Math.floor(passes);
  return ` Pass ${whole(begun + 1)} over ${whole(samples)} samples: ${percent(passes - begun)} of it begun.`;
}

export class DataMap {
  #data = null;
  #observer;
  #draw = () => this.#paint();

  constructor(element) {
    const id = newId("map");
    this.canvas = h("canvas", { role: "img", "aria-labelledby": `${id}-title ${id}-said` });
    this.said = h("p", { id: `${id}-said` });
    this.table = h("details", { on: { toggle: () => this.#fillTable() } }, h("summary", {}, "As a table"), h("div"));
    const legend = KINDS.map(({ name, label }) => h("li", {}, h("span", { class: `cell ${name}`, "aria-hidden": "true" }), term(label)));
    this.figure = h("figure", { class: "chart map" },
      h("figcaption", { id: `${id}-title` }, "Data: the batches that the run has begun, from the first to the last"),
      h("ul", { class: "legend" }, legend), this.canvas, this.said, this.table);
    this.figure.hidden = true;
    element.append(this.figure);
    this.#observer = new ResizeObserver(this.#draw);
    this.#observer.observe(this.figure);
    dark.addEventListener("change", this.#draw);
  }

  destroy() {
    this.#observer.disconnect();
    dark.removeEventListener("change", this.#draw);
  }

  /** Show this map (DataMap); null if it is not known. */
  set(data) {
    if (data === this.#data) return;
    this.#data = data;
    this.figure.hidden = data === null;
    if (data === null) return;
    const counts = KINDS.slice(1).map(({ name, label }) => [label, countOf(data[name])]);
    const applied = data.begun - counts.reduce((sum, [, count]) => sum + count, 0);
    const rest = counts.map(([label, count]) => `${whole(count)} ${label}`).join(", ");
    setText(this.said, `${whole(data.begun)} batches begun: ${whole(applied)} applied, ${rest}.${data.is_whole ? "" : " Not all intervals are shown."}${passWords(data)}`);
    this.#paint();
    this.#fillTable();
  }

  #paint() {
    const data = this.#data, width = this.canvas.clientWidth;
    if (data === null || !width) return;
    const ratio = devicePixelRatio || 1, columns = Math.max(1, Math.floor(width / CELL));
    const count = Math.max(1, Math.min(columns * ROWS, data.begun));
    const rows = Math.ceil(count / columns);
    this.canvas.width = width * ratio;
    this.canvas.height = rows * CELL * ratio;
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    if (!data.begun) return;
    const colours = KINDS.map(({ colour: name }) => colour(name)), back = colour("--raised");
    placesOf(data, count).forEach((kind, place) => {
      const x = (place % columns) * CELL, y = Math.floor(place / columns) * CELL, size = CELL - 2;
      context.fillStyle = colours[kind];
      context.fillRect(x, y, size, size);
      context.strokeStyle = back;
      context.lineWidth = 2;
      context.beginPath(); // a mark for each kind: none, a bar, a slope, a cross
      if (kind === 1) { context.moveTo(x, y + size / 2); context.lineTo(x + size, y + size / 2); }
      if (kind >= 2) { context.moveTo(x, y + size); context.lineTo(x + size, y); }
      if (kind === 3) { context.moveTo(x, y); context.lineTo(x + size, y + size); }
      context.stroke();
    });
  }

  #fillTable() {
    if (!this.table.open || this.#data === null) return;
    const rows = KINDS.slice(1).flatMap(({ name, label }) => this.#data[name].slice(0, SHOWN_INTERVALS).map(({ start, end }) =>
      h("tr", {}, h("th", { scope: "row" }, label), h("td", {}, whole(start)), h("td", {}, whole(end)), h("td", {}, whole(end - start + 1)))));
    const head = ["what", "first batch", "last batch", "batches"].map((label) => h("th", { scope: "col" }, label));
    fill(this.table.lastChild, h("table", {},
      h("caption", {}, `All others were applied. At most ${SHOWN_INTERVALS} intervals of each kind.`),
      h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)));
  }
}
