// What happened to a run, as marks in a chart: members that joined and left, checkpoints, pauses, and time without rounds.

import { counted, duration, whole } from "./format.js";

const LONG_PACES = 20; // a round that began so many times later than usual: the run was paused or down before it
const LONG_S = 10;

/** What may be marked, by kind. */
export const MARKS = {
  joined: { sign: "▲", label: "members joined", colour: "--series-5" },
  left: { sign: "▼", label: "members left", colour: "--series-2" },
  checkpoint: { sign: "◆", label: "checkpoint", colour: "--series-4", isLow: true },
  rewound: { sign: "↶", label: "rewound to here", colour: "--series-2", isLine: true },
  paused: { sign: "‖", label: "paused", colour: "--series-3", isLine: true },
  changed: { sign: "✎", label: "settings changed", colour: "--series-1", isLine: true },
  stood: { sign: "✕", label: "no rounds", colour: "--series-3", isLine: true },
};

/** Return the usual time from one round's start to the next one's, in seconds; null before two rounds. */
export function usualPace(started, counts) {
  const paces = started.slice(1).map((at, place) => (at - started[place]) / counts[place]).sort((one, other) => one - other);
  return paces.length ? paces[paces.length >> 1] : null;
}

/** Return whether so much time for a round is more than a run takes by itself. */
export function isLong(pace, usual) {
  return pace > LONG_PACES * usual;
}

/**
 * Return the marks of rows: [{ place, kind, text }].
 *
 * @param {Object} of the rows' columns: step, epoch, members, started_s, ended_s, rounds.
 * @param {Object[]} checkpoints those that are kept: [{ step }].
 * @param {Object[]} actions of operators: [{ name, arguments, at_s }].
 */
export function marksOf(of, checkpoints, actions) {
  const marks = [], count = of.step.length;
  const add = (place, kind, text) => marks.push({ place, kind, text });
  for (let place = 1; place < count; place += 1) {
    const more = of.members[place] - of.members[place - 1];
    if (more) add(place, more > 0 ? "joined" : "left", `${counted(Math.abs(more), "member")} ${more > 0 ? "joined" : "left"}`);
  }
  for (const { step } of checkpoints) {
    const place = of.step.findIndex((one) => one >= step);
    if (step && place >= 0) add(place, "checkpoint", `checkpoint of step ${whole(step)}`);
  }
  for (const { arguments: { to_step: step } } of actions.filter(({ name }) => name === "rewind")) {
    const place = of.step.findIndex((one) => one >= step);
    if (place >= 0) add(place, "rewound", `rewound to step ${whole(step)}`);
  }
  const changes = new Set();
  for (const { name, arguments: { at_step: step } = {} } of actions) {
    if (name === "change") changes.add(step);
    if (name === "withdraw change") changes.delete(step);
  }
  for (const step of changes) {
    const place = of.step.findIndex((one) => one >= step);
    if (place >= 0) add(place, "changed", `settings changed from step ${whole(step)}`);
  }
  const gaps = of.started_s.slice(1).map((at, place) => at - of.ended_s[place]), paused = new Set();
  for (const { at_s: at } of actions.filter(({ name }) => name === "pause")) {
    const place = of.started_s.findLastIndex((started) => started <= at);
    if (place < 0 || paused.has(place)) continue;
    paused.add(place);
    add(place, "paused", place < gaps.length ? `paused for ${duration(gaps[place])}` : "paused");
  }
  const usual = usualPace(of.started_s, of.rounds);
  gaps.forEach((gap, place) => {
    const isEpochs = of.epoch[place + 1] !== of.epoch[place]; // whose ends take time by themselves
    if (gap > LONG_S && isLong(gap, usual) && !isEpochs && !paused.has(place)) add(place, "stood", `no rounds for ${duration(gap)}`);
  });
  return marks;
}
