// A table of many rows, of which only those in sight are elements: the same few are used again while it scrolls.
//
// It is a grid as W3C's ARIA Authoring Practices describe it (pattern "grid"): its one tab stop is the grid, the
// arrow keys, PageUp, PageDown, Home and End move the active cell, and Enter opens its row. Each column's header is a
// button that sorts.

import { fill, h, newId, setText } from "../elements.js";

const OVERSCAN = 10; // rows above and below those in sight: what is scrolled to is there before it is seen
const REST_MS = 100; // after which those around them follow, when it has scrolled fast
const UNKNOWN_HEIGHT = 36;
const collator = new Intl.Collator("en", { numeric: true });

/** Return an order of two values: numbers by size, text as people sort it, ids by their digits, what is not known last. */
export function compare(first, second, isDescending, isId = false) {
  const isFirstKnown = first !== null && first !== undefined && first !== "";
  const isSecondKnown = second !== null && second !== undefined && second !== "";
  if (!isFirstKnown || !isSecondKnown) return Number(isSecondKnown) - Number(isFirstKnown);
  const order = isId ? (first < second ? -1 : Number(first > second))
    : typeof first === "string" ? collator.compare(first, second) : first - second;
  return isDescending ? -order : order;
}

/**
 * The rows are numbers from 0; what they show, the columns say.
 *
 * Each column is { name, title, hint, width (in characters), isText, isId, value(row), tie(row), text(row), sayWhy(row) }: `value`
 * is what is sorted by, `tie`, if there is one, an id by which rows of the same value are, `text` what is shown, and `sayWhy`, if there is one, a longer text for the cell's title.
 */
export class Grid {
  #rows = []; // numbers of the rows that are shown, in their order
  #all = 0;
  #keyOf = String;
  #pool = [];
  #height = UNKNOWN_HEIGHT;
  #active = { place: 0, column: 0 };
  #activeKey = null;
  #observer = null;
  #drawn = null; // what was drawn last: { first, from, to }; null if all of it is to be drawn anew
  #timer = null;

  /**
   * @param {string} label the grid's name.
   * @param {Object[]} columns see above; the first one's cells are links.
   * @param {function(number): string} addressOf where a row leads.
   * @param {string} empty the text that is shown where there is no row.
   */
  constructor(label, columns, addressOf, empty) {
    this.columns = columns;
    this.addressOf = addressOf;
    this.empty = empty;
    this.sorted = { name: columns[0].name, isDescending: false };
    this.matches = null; // function(row): whether it is shown
    /** Called when rows are sorted or filtered. */
    this.onOrder = () => {};
    this.#build(label);
  }

  #build(label) {
    const id = newId("grid");
    this.id = id;
    this.buttons = new Map();
    const heads = this.columns.map((column, place) => {
      const button = h("button", { type: "button", on: { click: () => this.sort(column.name) } },
        h("span", {}, column.title), h("span", { class: "grid-arrow", "aria-hidden": "true" }));
      this.buttons.set(column.name, button);
      return h("div", {
        role: "columnheader", "aria-colindex": place + 1, title: column.hint, class: column.isText ? "" : "grid-number",
      }, button);
    });
    const head = h("div", { role: "rowgroup", class: "grid-head" },
      h("div", { role: "row", "aria-rowindex": 1, class: "grid-row" }, heads));
    this.body = h("div", { role: "rowgroup", class: "grid-body" });
    this.element = h("div", {
      id, role: "grid", class: "grid", tabindex: 0, "aria-label": label, "aria-colcount": this.columns.length,
      on: {
        scroll: () => this.#draw(),
        keydown: (event) => this.#pressed(event),
        click: (event) => this.#clicked(event),
      },
    }, head, this.body);
    const others = this.columns.slice(1), first = "var(--grid-first)"; // which is narrower on a telephone: it stays in sight
    const widths = others.map(({ width }) => `minmax(${width}ch, ${width}fr)`).join(" ");
    this.element.style.setProperty("--grid-columns", `minmax(${first}, ${this.columns[0].width}fr) ${widths}`);
    this.element.style.setProperty("--grid-width", `calc(${first} + ${others.reduce((sum, { width }) => sum + width, 0)}ch)`);
    this.head = head;
    this.#showSorted();
  }

  /** Begin to follow the grid's size. It must be in the page. */
  connect() {
    this.#observer = new ResizeObserver(() => this.#measure());
    this.#observer.observe(this.element);
    this.#measure();
  }

  disconnect() {
    clearTimeout(this.#timer);
    this.#observer?.disconnect();
  }

  /**
   * Show these rows. The active row stays the active one, wherever it is now.
   *
   * @param {number} count of rows.
   * @param {function(number): string} keyOf names a row, whatever its number is in the next answer.
   */
  setRows(count, keyOf) {
    this.#all = count;
    this.#keyOf = keyOf;
    this.order();
  }

  /** Numbers of the rows that are shown, in their order. */
  get shown() {
    return this.#rows;
  }

  /** Number of all rows, those that the filter leaves out included. */
  get total() {
    return this.#all;
  }

  /** Sort by a column; by the same one again: the other way round. */
  sort(name, isDescending = null) {
    const column = this.columns.find((found) => found.name === name);
    const isSame = this.sorted.name === name;
    this.sorted = { name, isDescending: isDescending ?? (isSame ? !this.sorted.isDescending : !column.isText) };
    this.#showSorted();
    this.element.scrollTop = 0;
    this.order();
  }

  /** Filter and sort again. */
  order() {
    const column = this.columns.find(({ name }) => name === this.sorted.name);
    const rows = [];
    for (let row = 0; row < this.#all; row += 1) if (this.matches === null || this.matches(row)) rows.push(row);
    const values = new Array(this.#all);
    for (const row of rows) values[row] = column.value(row);
    const { isDescending } = this.sorted;
    const tied = (first, second) => (column.tie ? compare(column.tie(first), column.tie(second), isDescending, true) : 0) || first - second;
    rows.sort((first, second) => compare(values[first], values[second], isDescending, column.isId) || tied(first, second));
    this.#rows = rows;
    const found = this.#activeKey === null ? -1 : rows.findIndex((row) => this.#keyOf(row) === this.#activeKey);
    if (found >= 0) this.#active.place = found;
    else this.#active.place = Math.max(0, Math.min(this.#active.place, rows.length - 1));
    this.element.setAttribute("aria-rowcount", rows.length + 1);
    this.#drawn = null;
    this.#sizeBody();
    this.#draw();
    this.onOrder();
  }

  #showSorted() {
    for (const [name, button] of this.buttons) {
      const isSorted = name === this.sorted.name;
      const direction = this.sorted.isDescending ? "descending" : "ascending";
      button.parentElement.setAttribute("aria-sort", isSorted ? direction : "none");
      setText(button.lastChild, isSorted ? (this.sorted.isDescending ? "▼" : "▲") : "");
    }
  }

  #measure() {
    const probe = this.head.firstChild.getBoundingClientRect().height;
    const height = Math.max(20, Number.parseFloat(getComputedStyle(this.body).getPropertyValue("line-height")) || probe);
    if (height !== this.#height) this.#height = height;
    this.#sizeBody();
    this.#drawn = null;
    this.#draw();
  }

  #sizeBody() {
    this.body.style.height = `${Math.max(1, this.#rows.length) * this.#height}px`;
  }

  /** Rows that are in sight: the first one's place, and the number of them. */
  get #window() {
    const inSight = Math.max(0, this.element.clientHeight - this.head.offsetHeight);
    return { first: Math.floor(this.element.scrollTop / this.#height), count: Math.ceil(inSight / this.#height) + 1 };
  }

  #draw(isWhole = false) {
    const { first, count } = this.#window;
    const isFresh = this.#drawn === null;
    const isFast = !isFresh && !isWhole && Math.abs(first - this.#drawn.first) > OVERSCAN;
    const beyond = isFast ? 0 : OVERSCAN; // while it scrolls fast, only rows in sight are made
    const from = Math.max(0, first - beyond), to = Math.min(this.#rows.length, first + count + beyond);
    if (!isFresh && from === this.#drawn.from && to === this.#drawn.to) return;
    this.#drawn = { first, from, to };
    clearTimeout(this.#timer);
    if (isFast) this.#timer = setTimeout(() => this.#draw(true), REST_MS);
    const size = Math.max(1, count + 2 * OVERSCAN);
    if (this.#pool.length !== size) this.#resizePool(size);
    if (isFresh) for (const shown of this.#pool) if (shown.place < from || shown.place >= to) this.#hide(shown);
    for (let place = from; place < to; place += 1) this.#show(place, isFresh);
    if (!this.#rows.length) this.#showEmpty();
    this.#markActive();
  }

  #resizePool(size) {
    fill(this.body);
    this.#pool = Array.from({ length: size }, () => {
      const cells = this.columns.map((column, place) => {
        const text = document.createTextNode("");
        const inner = place === 0 ? h("a", { tabindex: -1 }, text) : text;
        const cell = h("div", {
          role: "gridcell", "aria-colindex": place + 1, class: column.isText ? "grid-text" : "grid-number",
        }, inner);
        return { cell, text };
      });
      const element = h("div", { role: "row", class: "grid-row", hidden: true }, cells.map(({ cell }) => cell));
      this.body.append(element);
      return { element, cells, link: cells[0].cell.firstChild, place: -1, isOn: false };
    });
  }

  #show(place, isFresh) {
    const shown = this.#pool[place % this.#pool.length];
    if (shown.place === place && shown.isOn && !isFresh) return;
    const row = this.#rows[place];
    if (shown.place !== place) {
      shown.element.style.transform = `translateY(${place * this.#height}px)`;
      shown.element.setAttribute("aria-rowindex", place + 2);
      shown.cells.forEach(({ cell }, column) => { cell.id = `${this.id}-${place}-${column}`; });
      shown.place = place;
    } else if (isFresh) {
      shown.element.style.transform = `translateY(${place * this.#height}px)`;
    }
    for (let number = 0; number < this.columns.length; number += 1) {
      const column = this.columns[number], { cell, text } = shown.cells[number];
      const wanted = column.text(row);
      if (text.nodeValue !== wanted) text.nodeValue = wanted;
      if (column.sayWhy) {
        const why = column.sayWhy(row);
        if (why) cell.title = why; else if (cell.title) cell.removeAttribute("title");
      }
    }
    shown.link.href = this.addressOf(row);
    shown.element.classList.toggle("grid-odd", place % 2 === 1);
    if (!shown.isOn) {
      shown.isOn = true;
      shown.element.hidden = false;
    }
  }

  #hide(shown) {
    shown.place = -1;
    if (!shown.isOn) return;
    shown.isOn = false;
    shown.element.hidden = true;
  }

  #showEmpty() {
    const cell = h("div", { role: "gridcell", "aria-colspan": this.columns.length, class: "grid-empty" }, this.empty);
    fill(this.body, h("div", { role: "row", "aria-rowindex": 2, class: "grid-row" }, cell));
    this.#pool = [];
  }

  #markActive() {
    const { place, column } = this.#active;
    const shown = this.#pool.length ? this.#pool[place % this.#pool.length] : null;
    this.marked?.classList.remove("grid-active");
    this.marked = shown?.isOn && shown.place === place ? shown.cells[column].cell : null;
    this.marked?.classList.add("grid-active");
    if (this.marked === null) this.element.removeAttribute("aria-activedescendant");
    else this.element.setAttribute("aria-activedescendant", this.marked.id);
  }

  #activate(place, column) {
    if (!this.#rows.length) return;
    this.#active = {
      place: Math.max(0, Math.min(place, this.#rows.length - 1)),
      column: Math.max(0, Math.min(column, this.columns.length - 1)),
    };
    this.#activeKey = this.#keyOf(this.#rows[this.#active.place]);
    this.#reveal();
    this.#draw();
    this.#markActive();
    this.marked?.scrollIntoView?.({ block: "nearest", inline: "nearest" });
  }

  #reveal() {
    const top = this.#active.place * this.#height, headHeight = this.head.offsetHeight;
    const inSight = this.element.clientHeight - headHeight;
    if (top < this.element.scrollTop) this.element.scrollTop = top;
    else if (top + this.#height > this.element.scrollTop + inSight) {
      this.element.scrollTop = top + this.#height - inSight;
    }
  }

  #pressed(event) {
    if (event.target !== this.element || event.altKey || event.metaKey) return;
    const { place, column } = this.#active;
    const page = Math.max(1, this.#window.count - 2), last = this.#rows.length - 1;
    const moves = {
      ArrowDown: [place + 1, column],
      ArrowUp: [place - 1, column],
      ArrowRight: [place, column + 1],
      ArrowLeft: [place, column - 1],
      PageDown: [place + page, column],
      PageUp: [place - page, column],
      Home: event.ctrlKey ? [0, 0] : [place, 0],
      End: event.ctrlKey ? [last, this.columns.length - 1] : [place, this.columns.length - 1],
    };
    if (event.key in moves) this.#activate(...moves[event.key]);
    else if (event.key === "Enter" && this.#rows.length) location.hash = this.addressOf(this.#rows[place]);
    else return;
    event.preventDefault();
  }

  #clicked(event) {
    const cell = event.target.closest?.('[role="gridcell"]');
    const shown = cell && this.#pool.find(({ cells }) => cells.some((found) => found.cell === cell));
    if (!shown || event.target.closest("a")) return;
    this.#activate(shown.place, shown.cells.findIndex((found) => found.cell === cell));
  }
}
