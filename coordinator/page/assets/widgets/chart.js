// A line chart: zoomed with the pointer or by buttons, with linear or logarithmic axis, and the same as a table.

/* global uPlot */
import { fill, h, newId, setText } from "../elements.js";

const EMPTY = "No values yet.";
const TABLE_ROWS = 50;
const HEIGHT = 240;
const WHOLE_STEPS = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();
const DASHES = { solid: [], dashed: [7, 4], dotted: [2, 3] };
const dark = matchMedia("(prefers-color-scheme: dark)");

/** Return a colour that the style sheet names, such as "--series-1". */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/**
 * Return the mean of each value and those before it, the older the less (an exponential moving average).
 *
 * @param {number} weight of all older ones together, from 0 (the values as they are) to below 1.
 */
export function smoothed(values, weight) {
  let sum = 0, total = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = sum * weight + value * (1 - weight);
    total = total * weight + (1 - weight);
    return sum / total;
  });
}

export class Chart {
  #plot = null;
  #range = null;
  #data = [[]];
  #observer;
  #themeChanged = () => this.#rebuild();
  #libraryLoaded = () => this.#rebuild();

  /**
   * @param {Element} element takes the chart.
   * @param {Object} options title; series: [{ label, colour, line: "solid" | "dashed" | "dotted", width, points }];
   *   format(value) and formatX(value) as text; spaceX: pixels between two of these; isLog; isWhole: whether all values
   *   are whole numbers; xName; zoomed(range) is called with the range that is shown, null for all.
   */
  constructor(element, options) {
    this.options = { isLog: false, formatX: String, xName: "step", ...options };
    const id = newId("chart");
    this.canvas = h("div", { class: "canvas", role: "img", "aria-labelledby": `${id}-title ${id}-said` });
    this.readout = h("p", { class: "readout", "aria-hidden": "true" });
    this.said = h("p", { id: `${id}-said`, class: "unseen" });
    this.log = h("input", { type: "checkbox", on: { change: () => this.#rebuild() } });
    this.log.checked = this.options.isLog;
    const button = (label, name, act) => h("button", { type: "button", title: name, "aria-label": name, on: { click: act } }, label);
    this.table = h("details", { on: { toggle: () => this.#fillTable() } }, h("summary", {}, "As a table"), h("div"));
    this.figure = h("figure", { class: "chart", "aria-labelledby": `${id}-title` },
      h("figcaption", { id: `${id}-title` }, this.options.title),
      h("div", { class: "tools" },
        h("label", {}, this.log, " log"),
        button("+", `Zoom in: ${this.options.title}`, () => this.#zoom(0.5)),
        button("−", `Zoom out: ${this.options.title}`, () => this.#zoom(2)),
        button("‹", `Earlier: ${this.options.title}`, () => this.#shift(-0.5)),
        button("›", `Later: ${this.options.title}`, () => this.#shift(0.5)),
        button("reset", `Show all: ${this.options.title}`, () => this.#setRange(null))),
      this.#legend(), this.canvas, this.readout, this.said, this.table);
    element.append(this.figure);
    this.#observer = new ResizeObserver(() => this.#resize());
    this.#observer.observe(this.canvas);
    dark.addEventListener("change", this.#themeChanged);
    if (typeof uPlot === "undefined") addEventListener("load", this.#libraryLoaded, { once: true });
  }

  #legend() {
    const shown = this.options.series.map(({ label, colour: name, line = "solid", points }) =>
      h("li", {}, h("span", { class: `mark ${points ? "points" : line} ${name.replace("--", "")}`, "aria-hidden": "true" }), label));
    return h("ul", { class: "legend" }, shown);
  }

  /**
   * Show these values.
   *
   * @param {number[]} xs in ascending order.
   * @param {Array<Array<number|null>>} columns as many as there are series, each as long as `xs`.
   */
  set(xs, columns) {
    this.#data = [xs, ...columns];
    if (this.#plot === null) this.#rebuild();
    else {
      this.#plot.setData(this.#shownData(), false);
      this.#applyRange();
    }
    setText(this.said, this.#summary());
    if (this.#isEmpty) setText(this.readout, EMPTY);
    else if (this.readout.textContent === EMPTY) setText(this.readout, "");
    if (this.table.open) this.#fillTable();
  }

  destroy() {
    this.#observer.disconnect();
    dark.removeEventListener("change", this.#themeChanged);
    removeEventListener("load", this.#libraryLoaded);
    this.#plot?.destroy();
    this.#plot = null;
    this.figure.remove();
  }

  #shownData() {
    if (!this.log.checked) return this.#data;
    const [xs, ...columns] = this.#data;
    return [xs, ...columns.map((values) => values.map((value) => (value > 0 ? value : null)))];
  }

  #rebuild() {
    const width = this.canvas.clientWidth;
    if (!width || typeof uPlot === "undefined") return;
    this.#plot?.destroy();
    const { options } = this, axis = colour("--text"), grid = { stroke: colour("--grid"), width: 1 };
    const font = `12px ${getComputedStyle(document.body).fontFamily}`;
    const shownAxis = { stroke: axis, grid, ticks: grid, font };
    const isLog = this.log.checked;
    const values = (plot, splits) => splits.map((value) => (value === null ? "" : options.format(value)));
    this.#plot = new uPlot({
      width, height: HEIGHT,
      scales: { x: { time: false }, y: isLog ? { distr: 3 } : {} },
      axes: [
        { ...shownAxis, values: (plot, splits) => splits.map((value) => (this.#data[0].length ? options.formatX(value) : "")), space: options.spaceX ?? 70, size: 32, incrs: WHOLE_STEPS },
        { ...shownAxis, values, size: 64, ...(options.isWhole ? { incrs: WHOLE_STEPS } : {}) },
      ],
      series: [{}, ...options.series.map((series) => this.#series(series))],
      legend: { show: false },
      cursor: { drag: { x: true, y: false }, y: false },
      hooks: {
        setCursor: [(plot) => this.#read(plot.cursor.idx)],
        setSelect: [(plot) => this.#selected(plot)],
      },
    }, this.#shownData(), this.canvas);
    this.#plot.over.addEventListener("dblclick", () => this.#setRange(null));
    this.#applyRange();
  }

  #series({ label, colour: name, line = "solid", width = 2, points = false }) {
    const stroke = colour(name);
    const drawn = points ? { paths: () => null, points: { show: true, size: 9, stroke, fill: colour("--back"), width: 2 } } : {};
    return { label, stroke, width, dash: DASHES[line], spanGaps: true, ...drawn };
  }

  #resize() {
    const width = this.canvas.clientWidth;
    if (!width) return;
    if (this.#plot === null) this.#rebuild();
    else if (this.#plot.width !== width) this.#plot.setSize({ width, height: HEIGHT });
  }

  #selected(plot) {
    if (plot.select.width < 4) return;
    const [from, to] = [plot.select.left, plot.select.left + plot.select.width].map((at) => plot.posToVal(at, "x"));
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.#setRange([from, to]);
  }

  get #whole() {
    const xs = this.#data[0];
    return xs.length ? [xs[0], xs[xs.length - 1]] : [0, 1];
  }

  #zoom(factor) {
    const [from, to] = this.#range ?? this.#whole;
    const middle = (from + to) / 2, half = ((to - from) / 2) * factor;
    const [first, last] = this.#whole;
    if (factor > 1 && 2 * half >= last - first) this.#setRange(null);
    else if (half > 0) this.#setRange([middle - half, middle + half]);
  }

  #shift(part) {
    if (this.#range === null) return;
    const [from, to] = this.#range, [first, last] = this.#whole;
    const by = Math.max(first - from, Math.min(last - to, (to - from) * part));
    this.#setRange([from + by, to + by]);
  }

  #setRange(range) {
    this.setRange(range);
    this.options.zoomed?.(range);
  }

  /** Show the values from one x to another: [from, to]; null for all. */
  setRange(range) {
    this.#range = range;
    this.#applyRange();
  }

  #applyRange() {
    const [first, last] = this.#range ?? this.#whole;
    this.#plot?.setScale("x", { min: first, max: last > first ? last : first + 1 });
  }

  get #isEmpty() {
    return this.#data.slice(1).every((values) => values.every((value) => value === null));
  }

  #read(place) {
    const xs = this.#data[0];
    if (place === null || place === undefined || xs[place] === undefined) return setText(this.readout, this.#isEmpty ? EMPTY : "");
    const values = this.options.series.map(({ label }, series) => [label, this.#data[series + 1][place]])
      .filter(([, value]) => value !== null && value !== undefined)
      .map(([label, value]) => `${label} ${this.options.format(value)}`);
    setText(this.readout, `${this.options.xName} ${this.options.formatX(xs[place])}: ${values.join(", ")}`);
  }

  #summary() {
    const said = this.options.series.map(({ label }, place) => {
      const values = this.#data[place + 1].filter((value) => value !== null);
      if (!values.length) return `${label}: no values yet`;
      const { format } = this.options;
      let low = values[0], high = values[0];
      for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
      return `${label}: ${values.length} values, first ${format(values[0])}, last ${format(values.at(-1))}, ` +
        `lowest ${format(low)}, highest ${format(high)}`;
    });
    return said.join(". ");
  }

  #fillTable() {
    if (!this.table.open) return;
    const [xs, ...columns] = this.#data;
    const head = h("tr", {}, h("th", { scope: "col" }, this.options.xName), this.options.series.map(({ label }) => h("th", { scope: "col" }, label)));
    const rows = [];
    for (let place = xs.length - 1; place >= Math.max(0, xs.length - TABLE_ROWS); place -= 1) {
      const cells = columns.map((values) => h("td", {}, values[place] === null ? "" : this.options.format(values[place])));
      rows.push(h("tr", {}, h("th", { scope: "row" }, this.options.formatX(xs[place])), cells));
    }
    const caption = h("caption", {}, `${this.options.title}: the last ${rows.length} of ${xs.length} points, the newest first`);
    fill(this.table.lastChild, h("table", {}, caption, h("thead", {}, head), h("tbody", {}, rows)));
  }
}
