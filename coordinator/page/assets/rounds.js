// The rows of rounds that have ended, as columns. There are never more than MAX_ROWS of them, however long a tab is open.

export const POINTS = 512;
export const MAX_ROWS = 2048;

export class Rounds {
  constructor(columns = { number: [] }) {
    this.columns = columns;
  }

  get length() {
    return this.columns.number.length;
  }

  /** Number of the round that follows the last row. */
  get next() {
    const last = this.length - 1;
    return last < 0 ? 0 : this.columns.number[last] + this.columns.rounds[last];
  }

  /** Return the values of one field. */
  get(name) {
    return this.columns[name] ?? [];
  }

  /** Return the last row as an object, or null. */
  get last() {
    return this.length ? this.row(this.length - 1) : null;
  }

  row(place) {
    return Object.fromEntries(Object.entries(this.columns).map(([name, values]) => [name, values[place]]));
  }

  /** Return these rows and the newer ones of a page; null if some are missed between, or there are too many. */
  with(columns) {
    const first = columns.number.findIndex((number) => number >= this.next);
    if (first < 0) return this;
    if (columns.number[first] !== this.next || this.length + columns.number.length - first > MAX_ROWS) return null;
    const grown = {};
    for (const name of Object.keys(columns)) {
      grown[name] = this.get(name).concat(first ? columns[name].slice(first) : columns[name]);
    }
    return new Rounds(grown);
  }

  /** Return these rows with finer ones in the place of those that cover the same rounds, as far as these go. */
  refined(finer) {
    const numbers = this.get("number"), end = Math.min(finer.next, this.next);
    const before = numbers.findIndex((number) => number >= finer.get("number")[0]);
    const after = numbers.findIndex((number) => number >= end);
    const kept = finer.get("number").findLastIndex((number) => number < end) + 1;
    if (before < 0 || !kept) return this;
    const columns = {};
    for (const [name, values] of Object.entries(this.columns)) {
      const rest = after < 0 ? [] : values.slice(after);
      columns[name] = [...values.slice(0, before), ...finer.get(name).slice(0, kept), ...rest];
    }
    return new Rounds(columns);
  }
}
