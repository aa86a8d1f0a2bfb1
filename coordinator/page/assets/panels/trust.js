// What lets somebody trust the run: audits, what witnesses vouched for, what was quarantined, and what was refused.

import { fill, h, setText } from "../elements.js";
import { duration, moment, shortId, visible, whole } from "../format.js";
import { isUsual, prose, refusalRows } from "../refusals.js";

const ASK_EVERY_MS = 5_000;

export default class TrustPanel {
  #stop = null;
  #told = null;

  mount(element, store, place, router) {
    this.store = store;
    this.router = router;
    this.said = h("p", { role: "status" }, "Asking the coordinator…");
    this.body = h("div");
    fill(element, h("h1", {}, "Trust"), this.said, this.body);
  }

  update() {
    const { store } = this;
    if (store.runId === null || this.#stop !== null) return;
    this.#stop = store.poll(() => store.path("trust"), ASK_EVERY_MS, (answer) => this.#show(answer), (problem) => {
      setText(this.said, `The coordinator does not say: ${visible(problem.message)}`);
    });
  }

  unmount() {
    this.#stop?.();
  }

  #show(trust) {
    const age = trust.audit === null ? "" : `, ${duration(Math.max(0, trust.at_s - trust.audit.recorded_s))} ago`;
    setText(this.said, summaryOf(trust, age));
    const shown = JSON.stringify({ ...trust, at_s: 0, version: 0 }); // both change with each answer
    if (shown === this.#told) return;
    this.#told = shown;
    const focused = document.activeElement?.dataset?.part;
    fill(this.body, auditOf(trust.audit), replicaOf(trust), this.#quarantine(trust), refusalsOf(trust));
    if (focused) this.body.querySelector(`[data-part="${focused}"]`)?.focus({ preventScroll: true });
  }

  #quarantine({ quarantined_batches: count, quarantined, names }) {
    const parts = [h("h2", {}, "Quarantine")];
    if (!count) return [...parts, h("p", { class: "good" }, "No data left the run: none failed on several clients.")];
    parts.push(h("p", { class: "warning" }, `${whole(count)} ${count === 1 ? "batch" : "batches"} left the run: they are not trained on.`));
    const rows = quarantined.map(({ batch_id: { start, end }, clients, message }) => [
      start === end ? whole(start) : `${whole(start)} to ${whole(end)}`,
      prose(visible(message)),
      clients.flatMap((id, place) => [place ? ", " : null,
        h("a", { href: this.router.link("member", id) }, h("bdi", {}, visible(names[id] || shortId(id))))]),
    ]);
    parts.push(table("quarantine", "Batches, why, and the clients that failed on them", ["Batches", "Why", "Clients"], rows));
    if (quarantined.length < count) parts.push(h("p", { class: "quiet" }, "`epochal quarantine list` shows all."));
    return parts;
  }
}

function summaryOf({ audit, vouched, is_vouched_known: known, quarantined_batches: count }, age) {
  const parts = [audit === null ? "No audit was reported yet" : audit.report.problems.length
    ? `The last audit found ${whole(audit.report.problems.length)} ${audit.report.problems.length === 1 ? "problem" : "problems"}${age}`
    : `The last audit found no problem${age}`];
  parts.push(vouched === null ? (known ? "no replica was vouched for yet" : "who vouched for the last replica is not known") : `${whole(vouched.vouched)} of ${whole(vouched.witnesses)} `
    + "witnesses vouched for the last replica");
  parts.push(count ? `${whole(count)} batches are quarantined` : "nothing is quarantined");
  return `${parts.join("; ")}.`;
}

function auditOf(recorded) {
  const parts = [h("h2", {}, "The last audit")];
  if (recorded === null) {
    return [...parts, h("p", {}, "None was reported. The operator's “epochal audit --record” replays the journal and counts every batch; "
      + "with --recompute it computes the model again.")];
  }
  const { report, step, recorded_s: at } = recorded;
  const recomputed = report.recomputed_steps === null ? "not asked for"
    : `${whole(report.recomputed_steps)} replicas, ${report.replicas_identical ? "all as attested" : "not all as attested"}`;
  parts.push(facts([
    ["When", `${moment(at)}, at step ${whole(step)}`],
    ["Outcome", report.problems.length ? "problems were found" : "no problem was found"],
    ["Rounds", `${whole(report.rounds)} outcomes replayed; documents ${report.replay_identical ? "identical" : "different"}`],
    ["Batches", `${whole(report.applied)} applied, ${whole(report.duplicates)} twice, ${whole(report.missing)} missing, `
      + `${whole(report.quarantined)} quarantined, ${whole(report.unapplied)} not yet applied`],
    ["Model computed again", recomputed],
    ["Blobs", `${whole(report.blobs)} checked, ${whole(report.wrong_blobs)} missing or wrong`],
    ["Chains", h("span", { class: "hash" }, `records ${report.record_chain}, replicas ${report.replica_chain}`)],
  ]));
  parts.push(...list("Problems", report.problems, "bad"), ...list("Remarks", report.remarks, ""));
  parts.push(h("p", { class: "quiet" }, "An audit is the operator's word; anyone with the run directory can repeat it."));
  return parts;
}

function list(title, texts, mark) {
  return texts.length ? [h("h3", {}, title), h("ul", {}, texts.map((text) => h("li", { class: mark }, h("bdi", {}, visible(text)))))] : [];
}

function replicaOf({ vouched, is_vouched_known: known, checkpoint_step: step, checkpoint_digest: digest }) {
  const none = known ? "none was vouched for yet: no round was applied"
    : "not known: the last applied round is in a part of the journal that is not kept any more";
  const rows = vouched === null ? [["Replica", none]] : [
    ["Replica", `after step ${whole(vouched.replica_step)}, ${moment(vouched.at_s)}`],
    ["Digest", h("span", { class: "hash" }, vouched.replica_digest)],
    ["Vouched for by", `${whole(vouched.vouched)} of ${whole(vouched.witnesses)} witnesses; ${whole(vouched.quorum)} had to agree`],
    ["Another digest", vouched.differed ? `${whole(vouched.differed)} witnesses had one, and fetch the model anew` : "no witness had one"],
  ];
  if (step !== null) rows.push(["Checkpoint", `after step ${whole(step)}: `, digest]);
  return [h("h2", {}, "The model that all agree on"), facts(rows)];
}

const HEADS = ["Kind", "Number", "What it means"];

function refusalsOf({ refusals, refused_requests: requests, refused_since_s: since }) {
  const usual = requests.filter(isUsual), others = requests.filter((found) => !isUsual(found));
  const parts = [
    h("h2", {}, "Refusals"),
    refusals.length
      ? table("refusals", "Results and checkpoints that broke a rule, and failures that clients reported, since the run began", HEADS, refusalRows(refusals))
      : h("p", { class: "good" }, "No result or checkpoint broke a rule, and no client reported a failure."),
    others.length
      ? table("requests", `Requests that this coordinator refused since ${moment(since)}, and that tell of a mistake or a fault`, HEADS, refusalRows(others))
      : h("p", { class: "good" }, `No request was refused since ${moment(since)} that tells of a mistake or a fault.`),
  ];
  if (usual.length) {
    parts.push(h("h3", {}, "Usual refusals"),
      h("p", {}, "These happen in healthy runs, too: clients come, go, and are early or late. They wait, repeat, or go on by themselves."),
      table("usual", `Usual refusals of requests since ${moment(since)}`, HEADS, refusalRows(usual)));
  }
  return parts;
}

function facts(rows) {
  return h("dl", { class: "facts" }, rows.flatMap(([word, text, hash]) => [h("dt", {}, word),
    h("dd", {}, text, hash ? h("span", { class: "hash" }, hash) : null)]));
}

function table(part, caption, heads, rows) {
  return h("div", { class: "scrolls", tabindex: 0, role: "region", "aria-label": caption, "data-part": part },
    h("table", {}, h("caption", {}, caption),
      h("thead", {}, h("tr", {}, heads.map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((text) => h("td", {}, text)))))));
}
