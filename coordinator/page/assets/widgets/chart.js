// A line chart: zoomed with the pointer or by buttons, with linear or logarithmic axis, and the same as a table.

/* global uPlot */
import { fill, h, newId, setText } from "../elements.js";
import { csvOf, save } from "../figures_file.js";

const EMPTY = "No values yet.";
const TABLE_ROWS = 50;
const WHOLE_STEPS = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();
const DASHES = { solid: [], dashed: [7, 4], dotted: [2, 3] };
const dark = matchMedia("(prefers-color-scheme: dark)");

/** Return a colour that the style sheet names, such as "--series-1". */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/**
 * Return the mean of each value and its neighbours, as `epochal.state.shown.smoothing.smoothed` does for reports.
 *
 * Neighbours are those not farther away than `half`, and not farther than the nearer end: so the mean neither lags behind
 * the values nor lies above them where they fall evenly.
 *
 * @param {number[]} xs places of the values, such as the number of the middle round of each, in ascending order.
 * @param {number[]} weights of the values, such as the number of rounds that each stands for.
 */
export function smoothed(xs, values, weights, half) {
  let from = 0, to = 0;
  return values.map((value, place) => {
    const reach = Math.min(half, xs[place] - xs[0], xs[xs.length - 1] - xs[place]) + 1e-9;
    while (to < xs.length && xs[to] <= xs[place] + reach) to += 1;
    while (xs[from] < xs[place] - reach) from += 1;
    if (value === null) return null;
    let sum = 0, weight = 0; // of this window alone: an absurd value must not change the others
    for (let near = from; near < to; near += 1) {
      if (values[near] === null) continue;
      sum += weights[near] * values[near];
      weight += weights[near];
    }
    return sum / weight;
  });
}

const TOOLS = [["+", "Zoom in", (chart) => chart.zoom(0.5)], ["−", "Zoom out", (chart) => chart.zoom(2)], ["‹", "Earlier", (chart) => chart.shift(-0.5)],
  ["›", "Later", (chart) => chart.shift(0.5)], ["reset", "Show all", (chart) => chart.show(null)], ["CSV", "Figures as a file", (chart) => chart.save()]];
const EDGE_PX = 9; // of a mark from the edge of the plot

export class Chart {
  #plot = null;
  #range = null;
  #data = [[]];
  #marks = [];
  #observer;
  #themeChanged = () => this.#rebuild();
  #libraryLoaded = () => this.#rebuild();

  /**
   * @param {Element} element takes the chart.
   * @param {Object} options title; series: [{ label, colour, line: "solid" | "dashed" | "dotted", width, points }];
   *   format(value) and formatX(value) as text; spaceX: pixels between two of these; isWhole: whether all values
   *   are whole numbers; fromZero: whether the axis begins at 0; isLarge; xName; zoomed(range) is called with the range that
   *   is shown, null for all; marks: what may be marked, by kind: { sign, label, colour, isLow, isLine }; places: returns the
   *   columns that come first in a file, by name.
   */
  constructor(element, options) {
    this.options = { formatX: String, xName: "step", marks: {}, places: () => ({ [this.options.xName]: this.#data[0] }), ...options };
    const id = newId("chart"), { title } = this.options;
    this.canvas = h("div", { class: "canvas", role: "img", "aria-labelledby": `${id}-title ${id}-said` });
    this.readout = h("p", { class: "readout", "aria-hidden": "true" });
    this.said = h("p", { id: `${id}-said`, class: "unseen" });
    this.log = h("input", { type: "checkbox", on: { change: () => this.#rebuild() } });
    this.table = h("details", { on: { toggle: () => this.#fillTable() } }, h("summary", {}, "As a table"), h("div"));
    this.legend = h("ul", { class: "legend" });
    const buttons = TOOLS.map(([label, name, act]) =>
      h("button", { type: "button", title: name, "aria-label": `${name}: ${title}`, on: { click: () => act(this) } }, label));
    this.figure = h("figure", { class: this.options.isLarge ? "chart large" : "chart", "aria-labelledby": `${id}-title` },
      h("figcaption", { id: `${id}-title` }, title),
      h("div", { class: "tools" }, h("label", {}, this.log, " log"), buttons),
      this.legend, this.canvas, this.readout, this.said, this.table);
    this.figure.addEventListener("pointerdown", () => this.figure.classList.add("used")); // a finger does not hover
    this.#showLegend();
    element.append(this.figure);
    this.#observer = new ResizeObserver(() => this.#resize());
    this.#observer.observe(this.canvas);
    dark.addEventListener("change", this.#themeChanged);
    if (typeof uPlot === "undefined") addEventListener("load", this.#libraryLoaded, { once: true });
  }

  #showLegend() {
    const kinds = new Set(this.#marks.map(({ kind }) => kind)), name = [...kinds].sort().join();
    if (name === this.shownKinds) return;
    this.shownKinds = name;
    const shown = this.options.series.map(({ label, colour: of, line = "solid", points }) =>
      h("li", {}, h("span", { class: `mark ${line} ${points ? "points " : ""}${of.replace("--", "")}`, "aria-hidden": "true" }), label));
    const marks = Object.entries(this.options.marks).filter(([kind]) => kinds.has(kind)).map(([, { sign, label, colour: of }]) =>
      h("li", {}, h("span", { class: `sign ${of.replace("--", "")}`, "aria-hidden": "true" }, sign), label));
    fill(this.legend, shown, marks);
  }

  /**
   * Show these values.
   *
   * @param {number[]} xs in ascending order.
   * @param {Array<Array<number|null>>} columns as many as there are series, each as long as `xs`.
   * @param {Object[]} marks what happened: [{ place, kind, text }], `place` in `xs`.
   */
  set(xs, columns, marks = []) {
    this.#data = [xs, ...columns];
    this.#marks = marks;
    this.#showLegend();
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
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || typeof uPlot === "undefined") return;
    this.#plot?.destroy();
    const { options } = this, axis = colour("--text"), grid = { stroke: colour("--grid"), width: 1 };
    const font = `12px ${getComputedStyle(document.body).fontFamily}`;
    const shownAxis = { stroke: axis, grid, ticks: grid, font };
    const isLog = this.log.checked;
    const values = (plot, splits) => splits.map((value) => (value === null ? "" : options.format(value)));
    const linear = options.fromZero ? { range: (plot, low, high) => [Math.min(0, low ?? 0), high > 0 ? 1.05 * high : 1] } : {};
    this.#plot = new uPlot({
      width, height,
      scales: { x: { time: false }, y: isLog ? { distr: 3 } : linear },
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
        draw: [(plot) => this.#drawMarks(plot)],
      },
    }, this.#shownData(), this.canvas);
    this.#plot.over.addEventListener("dblclick", () => this.show(null));
    this.#applyRange();
  }

  #series({ label, colour: name, line = "solid", width = 2, points = false }) {
    const stroke = colour(name);
    return { label, stroke, width, dash: DASHES[line], spanGaps: true, points: points ? { show: true, size: 8, stroke, fill: colour("--back"), width: 2 } : { show: (plot) => plot.data[0].length < 3 } };
  }

  #drawMarks(plot) {
    const { ctx, bbox: { left, top, width, height } } = plot, ratio = devicePixelRatio;
    ctx.save();
    ctx.font = `${10 * ratio}px ${getComputedStyle(document.body).fontFamily}`;
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    for (const { place, kind } of this.#marks) {
      const { sign, colour: name, isLow, isLine } = this.options.marks[kind];
      const x = plot.valToPos(this.#data[0][place], "x", true);
      if (x < left || x > left + width) continue;
      ctx.strokeStyle = ctx.fillStyle = colour(name);
      if (isLine) {
        ctx.setLineDash([3 * ratio, 3 * ratio]);
        ctx.strokeRect(x, top, 0, height);
      }
      ctx.fillText(sign, x, isLow ? top + height - EDGE_PX * ratio : top + EDGE_PX * ratio);
    }
    ctx.restore();
  }

  #resize() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width) return;
    if (this.#plot === null) this.#rebuild();
    else if (this.#plot.width !== width || this.#plot.height !== height) this.#plot.setSize({ width, height });
  }

  #selected(plot) {
    if (plot.select.width < 4) return;
    const [from, to] = [plot.select.left, plot.select.left + plot.select.width].map((at) => plot.posToVal(at, "x"));
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.show([from, to]);
  }

  get #whole() {
    const xs = this.#data[0];
    return xs.length ? [xs[0], xs[xs.length - 1]] : [0, 1];
  }

  /** Show a part by this factor smaller or larger, around the same middle. */
  zoom(factor) {
    const [from, to] = this.#range ?? this.#whole;
    const middle = (from + to) / 2, half = ((to - from) / 2) * factor;
    const [first, last] = this.#whole;
    if (factor > 1 && 2 * half >= last - first) this.show(null);
    else if (half > 0) this.show([middle - half, middle + half]);
  }

  /** Show what is earlier or later, by this part of what is shown. */
  shift(part) {
    if (this.#range === null) return;
    const [from, to] = this.#range, [first, last] = this.#whole;
    const by = Math.max(first - from, Math.min(last - to, (to - from) * part));
    this.show([from + by, to + by]);
  }

  /** Show a range, null for all, and say so to who follows. */
  show(range) {
    this.setRange(range);
    this.options.zoomed?.(range);
  }

  /** Let the browser keep the values that are shown as a file. */
  save() {
    const columns = Object.fromEntries(this.options.series.map(({ label }, place) => [label, this.#data[place + 1]]));
    save(`${this.options.title.toLowerCase().replaceAll(/[^a-z0-9]+/g, "-")}.csv`, csvOf({ ...this.options.places(), ...columns }));
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

  #markedAt(place) {
    return this.#marks.filter((mark) => mark.place === place).map(({ text }) => text);
  }

  #read(place) {
    const xs = this.#data[0];
    if (place === null || place === undefined || xs[place] === undefined) return setText(this.readout, this.#isEmpty ? EMPTY : "");
    const values = this.options.series.map(({ label }, series) => [label, this.#data[series + 1][place]])
      .filter(([, value]) => value !== null && value !== undefined)
      .map(([label, value]) => `${label} ${this.options.format(value)}`);
    setText(this.readout, `${this.options.xName} ${this.options.formatX(xs[place])}: ${[...values, ...this.#markedAt(place)].join(", ")}`);
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
    const [xs, ...columns] = this.#data, hasMarks = this.#marks.length > 0;
    const heads = [this.options.xName, ...this.options.series.map(({ label }) => label), ...(hasMarks ? ["what happened"] : [])];
    const rows = [];
    for (let place = xs.length - 1; place >= Math.max(0, xs.length - TABLE_ROWS); place -= 1) {
      const cells = columns.map((values) => (values[place] === null ? "" : this.options.format(values[place])));
      if (hasMarks) cells.push(this.#markedAt(place).join(", "));
      rows.push(h("tr", {}, h("th", { scope: "row" }, this.options.formatX(xs[place])), cells.map((text) => h("td", {}, text))));
    }
    const caption = h("caption", {}, `${this.options.title}: the last ${rows.length} of ${xs.length} points, the newest first`);
    const head = h("tr", {}, heads.map((text) => h("th", { scope: "col" }, text)));
    fill(this.table.lastChild, h("table", {}, caption, h("thead", {}, head), h("tbody", {}, rows)));
  }
}
