// Figures as a file: a chart's columns as CSV (RFC 4180), and those of another run, read from such a file in the browser.

const MAX_FILE_CHARS = 32 * 1024 * 1024;
const MAX_FILE_ROWS = 200_000;
const MAX_LINE_CHARS = 4_000;
const ALLOWED = "allowed: the CSV of a loss chart of this page, or the JSON of a run's history";
const LOSS_NAMES = ["loss", "training"];
/** Columns by which rows have a place; all of them stand before a chart's own. */
export const PLACES = ["step", "tokens_total", "ended_s"];

/** Return columns, a list of values for each name, as CSV; unknown values are empty. */
export function csvOf(columns) {
  const field = (value) => (/[",\n\r]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const names = Object.keys(columns), lines = [names.map(field)];
  for (let place = 0; place < columns[names[0]].length; place += 1) {
    lines.push(names.map((name) => (Number.isFinite(columns[name][place]) ? String(columns[name][place]) : "")));
  }
  return lines.map((cells) => `${cells.join(",")}\r\n`).join("");
}

/** Let the browser keep a text as a file of this name. */
export function save(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

/** Return { step, loss, tokens_total, ended_s } of a file's text, as lists of numbers or null. Throws an `Error` in words. */
export function figuresIn(text) {
  if (text.length > MAX_FILE_CHARS) throw new Error(`it is larger than ${MAX_FILE_CHARS / 2 ** 20} MiB`);
  const columns = /^\s*\{/.test(text) ? fromJson(text) : fromCsv(text);
  const lossName = LOSS_NAMES.find((name) => Array.isArray(columns[name]));
  if (!Array.isArray(columns.step) || lossName === undefined) {
    throw new Error(`it has no column “${lossName === undefined ? "training" : "step"}”; ${ALLOWED}`);
  }
  const { length } = columns.step;
  if (!length || length > MAX_FILE_ROWS) throw new Error(`it has ${length} rows; allowed: 1 to ${MAX_FILE_ROWS}`);
  const found = { loss: numbers(columns[lossName], lossName, length) };
  for (const name of PLACES) found[name] = name in columns ? numbers(columns[name], name, length) : null;
  if (found.step.includes(null)) throw new Error("a row of it has no step");
  return found;
}

function numbers(values, name, length) {
  if (!Array.isArray(values) || values.length !== length) throw new Error(`its column “${name}” is not as long as the others`);
  return values.map((value, place) => {
    if (value === null || value === "") return null;
    const number = Number(value);
    if (!Number.isFinite(number)) throw new Error(`“${String(value).slice(0, 40)}” in row ${place + 1} of its column “${name}” is no number`);
    return number;
  });
}

function fromJson(text) {
  try {
    const found = JSON.parse(text);
    return found.rounds ?? found;
  } catch {
    throw new Error(`it begins as JSON and is none; ${ALLOWED}`);
  }
}

function fromCsv(text) {
  const [head, ...lines] = text.trim().split(/\r?\n/);
  if ([head, ...lines].some(({ length }) => length > MAX_LINE_CHARS)) throw new Error(`a line of it has more than ${MAX_LINE_CHARS} characters; ${ALLOWED}`);
  const fields = (line) => line.split(/,(?=(?:[^"]*"[^"]*")*[^"]*$)/).map((field) => field.replace(/^"(.*)"$/s, "$1").replaceAll('""', '"'));
  const names = fields(head), rows = lines.map(fields);
  const odd = rows.findIndex((row) => row.length !== names.length);
  if (odd >= 0) throw new Error(`row ${odd + 1} of it has ${rows[odd].length} fields, its first line ${names.length}; ${ALLOWED}`);
  return Object.fromEntries(names.map((name, column) => [name, rows.map((row) => row[column])]));
}

/** Return the values at these places, on straight lines between those of a file; null before its first and after its last. */
export function placedAt(places, xs, ys) {
  const known = xs.flatMap((x, place) => (x === null || ys[place] === null ? [] : [[x, ys[place]]])).sort(([one], [other]) => one - other);
  let after = 0;
  return places.map((x) => {
    while (after < known.length && known[after][0] < x) after += 1;
    if (after === known.length || (after === 0 && known[0][0] > x)) return null;
    const [toX, toY] = known[after], [fromX, fromY] = known[Math.max(0, after - 1)];
    return toX === fromX ? toY : fromY + ((toY - fromY) * (x - fromX)) / (toX - fromX);
  });
}
