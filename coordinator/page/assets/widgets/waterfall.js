// A waterfall: a row for each client of a round, with a bar for each piece of its time.

import { fill, h, scrollingTable } from "../elements.js";
import { bytes, counted, duration, percent, shortId, visible } from "../format.js";
import { term } from "../glossary.js";
import { longest, piecesOf } from "./pieces.js";
import { FATES, PARTS } from "../words.js";

const SVG = "http://www.w3.org/2000/svg";
const MIN_LETTER_PERCENT = 2.5;
const TICKS = 4;
const LATE = 1.5; // times the usual time, after which a result is late
/** Lines of the patterns in a square of 8 by 8, by the name that the table of parts gives them. */
const HATCHES = {
  "": "", "-": "M0 4H8", "|": "M4 0V8", "\\": "M0 0L8 8", "/": "M0 8L8 0", "--": "M0 2H8M0 6H8", "||": "M2 0V8M6 0V8", x: "M0 0L8 8M0 8L8 0",
  "+": "M0 4H8M4 0V8", "..": "M2 2h1v1h-1zM6 6h1v1h-1z", ".": "M3 3h2v2h-2z",
};
const MARKS = { applied: "✓", lost: "△", rejected: "✕", failed: "✕", missing: "○", idle: "–" };

function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Return the patterns that bars are filled with; they must be in the page once. */
export function patterns() {
  const found = Object.entries(PARTS).map(([part, { colour, hatch }]) =>
    s("pattern", { id: `part-${part}`, width: 8, height: 8, patternUnits: "userSpaceOnUse" },
      s("rect", { width: 8, height: 8, fill: colour }), s("path", { d: HATCHES[hatch], class: "hatch" })));
  return s("svg", { class: "unseen", "aria-hidden": "true", width: 0, height: 0 }, s("defs", {}, ...found));
}

/** Return the legend: each letter and pattern with its meaning. */
export function legend() {
  const shown = Object.entries(PARTS).map(([part, { letter, label }]) =>
    h("li", {}, s("svg", { class: "swatch", "aria-hidden": "true" },
      s("rect", { width: "100%", height: "100%", fill: `url(#part-${part})`, class: "piece" })),
    `${letter} `, term(label)));
  return h("ul", { class: "legend" }, shown);
}

/** Return the end of the time that rows with these pieces show, in seconds. */
export function endOf(rows, roundS) {
  return rows.reduce((end, { pieces }) => pieces.reduce((most, { start, seconds }) => Math.max(most, start + seconds), end), roundS) || 1;
}

const labelOf = ({ part, isOpen }) => (isOpen && part === "unknown" ? "nothing reported yet" : PARTS[part].label);

function bar(piece, endS) {
  const { part, start, seconds, isOpen, isBeside = false } = piece;
  const x = (start / endS) * 100, width = (seconds / endS) * 100;
  const text = `${labelOf(piece)}: ${duration(seconds)}${isOpen ? " so far" : ""}`;
  const rect = s("rect", {
    x: `${x}%`, y: isBeside ? "55%" : "10%", width: `${width}%`, height: isBeside ? "35%" : "80%", fill: `url(#part-${part})`, class: isOpen ? "piece open" : "piece",
  }, s("title", {}, text));
  if (width < MIN_LETTER_PERCENT || isBeside) return [rect];
  return [rect, s("text", { x: `${x + width / 2}%`, y: "50%", class: "letter" }, PARTS[part].letter)];
}

function line(seconds, endS, name) {
  const x = `${(seconds / endS) * 100}%`;
  return s("line", { x1: x, x2: x, y1: "0", y2: "100%", class: name });
}

/** Return an axis of seconds. */
export function axis(endS) {
  const shown = [];
  for (let tick = 0; tick <= TICKS; tick += 1) {
    const anchor = tick === 0 ? "start" : tick === TICKS ? "end" : "middle";
    shown.push(s("text", { x: `${(tick / TICKS) * 100}%`, y: "70%", "text-anchor": anchor }, duration((endS * tick) / TICKS)));
  }
  return s("svg", { class: "axis", "aria-hidden": "true" }, ...shown);
}

/** Return the slowest part of a client in words, such as "upload 8 s, 61 %, 2.1 MB/s"; "" if nothing is reported. */
export function slowestPart(client, pieces) {
  const found = longest(pieces.filter(({ part }) => part !== "unknown"));
  if (found === null) return "";
  const total = pieces.reduce((sum, { seconds }) => sum + seconds, 0);
  const moved = { upload: client.uploaded_bytes ?? client.result_bytes, download: client.downloaded_bytes }[found.part];
  const rate = moved && !found.isOpen ? `, ${bytes(moved / found.seconds)}/s` : "";
  return `${PARTS[found.part].label} ${duration(found.seconds)}, ${percent(found.seconds / total)}${rate}`;
}

/** A client's name and the beginning of its id. */
export function called({ name, client_id: id }) {
  return name ? `${visible(name)} (${shortId(id)})` : shortId(id);
}

/** The same as a link to its own page. */
export function clientLink(client, router) {
  return h("a", { href: router.link("member", client.client_id) }, h("bdi", {}, called(client)));
}

/** Return whether a round that is under way waits for a client's result. */
export function isAwaited(client) {
  return client.batches > 0 && client.fate === "missing";
}

/** Return the state of a client's work: [text, class]. */
function standing(client, isUnderWay, isTraining) {
  if (isUnderWay && isAwaited(client)) {
    return [client.committed_s === null ? "… awaited: nothing has come yet" : "… awaited: its result is being sent", "missing"];
  }
  if (isUnderWay && client.fate === "lost") { // whether it is applied, the round's end decides
    const isAttesting = !isTraining && client.witness && client.attested_s === null;
    return [isAttesting ? "✓ came; its attestation is awaited" : "✓ came", "applied"];
  }
  return [`${MARKS[client.fate]} ${FATES[client.fate]}`, client.fate];
}

/** Return when a client's result usually comes, where it is awaited. */
function usually(client, usualS, roundS) {
  if (usualS === undefined || usualS === null || !isAwaited(client)) return null;
  const isLate = roundS > LATE * usualS;
  return h("span", { class: isLate ? "late" : "quiet" }, `usually there after ${duration(usualS)}${isLate ? ": it is late" : ""}`);
}

/**
 * Return a waterfall of these clients.
 *
 * @param {Object[]} clients of a round, in the order in which they are shown.
 * @param {Object} round { roundS, trainS, isUnderWay, usual }: how long it took, or has taken; trainS is null if it is not over;
 *   `usual` has the seconds after which results usually come, by client.
 */
export function waterfall(clients, { roundS, trainS, isUnderWay, usual = new Map() }, router) {
  const rows = clients.map((client) => ({ client, pieces: piecesOf(client, roundS, isUnderWay) }));
  const endS = endOf(rows, roundS);
  const items = rows.map(({ client, pieces }) => {
    const said = pieces.map((piece) => `${labelOf(piece)} ${duration(piece.seconds)}${piece.isOpen ? " so far" : ""}`);
    const lines = [line(roundS, endS, "end")];
    if (trainS !== null) lines.push(line(trainS, endS, "trained"));
    const [stands, fate] = standing(client, isUnderWay, trainS === null);
    const came = client.delivered_s === null ? "" : `result after ${duration(client.delivered_s)}`;
    const slow = slowestPart(client, pieces);
    return h("li", { "data-client": client.client_id },
      h("p", { class: "who" }, clientLink(client, router), client.witness ? term("witness", " · witness") : null,
        h("span", { class: `fate ${fate}` }, stands), isUnderWay ? usually(client, usual.get(client.client_id), roundS) : null,
        h("span", { class: "quiet" }, [counted(client.batches, "batch", "es"), came].filter(Boolean).join(", ")),
        slow ? h("span", { class: "slow" }, `longest: ${slow}`) : null,
        client.detail ? h("span", { class: "quiet" }, h("bdi", {}, visible(client.detail))) : null),
      s("svg", { class: "bars", role: "img", "aria-label": said.join(", ") || "nothing is reported yet" }, ...pieces.flatMap((piece) => bar(piece, endS)), ...lines));
  });
  return h("div", { class: "waterfall" }, axis(endS), h("ol", {}, items));
}

/** Return the same as a table of numbers. */
export function table(clients, caption, router, isUnderWay = false) {
  const parts = Object.keys(PARTS).filter((part) => part !== "unknown");
  const head = ["client", ...parts.map((part) => PARTS[part].label), "result", "end of its work"];
  const rows = clients.map((client) => [clientLink(client, router), ...parts.map((part) => duration(client[`${part}_s`] ?? null)),
    bytes(client.result_bytes || null), isUnderWay && isAwaited(client) ? "awaited" : FATES[client.fate]]);
  return scrollingTable(caption, caption, head, rows);
}

/** Put a waterfall in the place of the one before, and leave the focus on the same client. */
export function replaceWaterfall(place, content) {
  const focused = place.contains(document.activeElement) ? document.activeElement.closest("[data-client]")?.dataset.client : undefined;
  fill(place, content);
  if (focused !== undefined) place.querySelector(`[data-client="${CSS.escape(focused)}"] a`)?.focus({ preventScroll: true });
}
