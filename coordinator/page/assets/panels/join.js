// How to join: the command for this run at the address at which the reader sees it, and what the machine must have.

import { copyable, quoted, reached } from "../widgets/copy.js";
import { fill, h, newId, setText } from "../elements.js";
import { bytes, visible, whole } from "../format.js";
import { CERTIFICATE_FILE, INSTALL, INSTALL_NOTE } from "../words.js";

const ASK_EVERY_MS = 30_000;
const KEY_FILE = "me.key";
const LOOPBACK = /^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/;

/** Return the words of the command that joins a run, as a shell takes them. */
export function joinCommand(guide, base, { invitation = "", data = "", name = "" } = {}) {
  const words = ["epochal", "client", reached(base, guide), "--trainer", quoted(guide.trainer)];
  words.push("--key", KEY_FILE, "--new-key");
  if (name) words.push("--name", quoted(name));
  if (guide.access === "invitations") words.push("--invitation", invitation ? quoted(invitation) : "CODE");
  if (guide.data.own) words.push("--data", data ? quoted(data) : "PATH");
  if (guide.own_base) words.push("--base", "DIR");
  if (guide.data.insecure) words.push("--insecure");
  return words.join(" ");
}

/** Return the words of the command with which the run's operator talks to its newest checkpoint. */
export function sampleCommand(guide, base) {
  return ["epochal", "sample", reached(base, guide), "--chat", ...(guide.own_base ? ["--base", "DIR"] : [])].join(" ");
}

/** Return the command that installs what the run needs. */
export function installCommand(guide) {
  return guide.extras.length ? INSTALL[1].replace("EXTRAS", guide.extras.join(",")) : INSTALL[0];
}

const SOURCES = {
  "made up": () => "Made-up tokens: there is nothing to fetch.",
  server: (places) => `A data server, which your machine must reach: ${places}.`,
  http: (places) => `Token files, which your machine must reach: ${places}.`,
  bucket: (places) => `Token files in a bucket: ${places}. Your machine needs credentials that may read it, if it is not public.`,
  files: (places) => `Token files of your own: your machine needs a copy of the run's data. The run calls them ${places}.`,
  rows: (places) => `Parquet or Arrow files of samples: ${places}.`,
  mixture: (places) => `A mixture of several data sets, described in ${places}.`,
};

function dataWords({ kind, places, place_count: count, own }) {
  const more = count > places.length ? ` and ${whole(count - places.length)} more` : "";
  const words = SOURCES[kind](places.map(visible).join(", ") + more);
  return own && kind !== "files" ? `${words} Your machine needs a copy of its own, which --data names.` : words;
}

function trainerWords(guide) {
  const name = visible(guide.trainer);
  if (guide.packaged) return `The trainer ${name}, from a package that your machine must have; the run's operator knows which.`;
  const own = guide.own_base ? " The base of the run's adapter is in no repository: your machine needs a copy, which --base names." : "";
  if (guide.trainer === "torch") return `PyTorch and transformers (the extra ${guide.extras[0]}).${own}`;
  if (guide.trainer === "null") return "Nothing to compute with: this run does no arithmetic.";
  return "The embedded model needs no further package.";
}

function gpuWords({ trainer, packaged, room }) {
  if (packaged) return "As its package asks for.";
  if (trainer !== "torch") return "None: it computes on the processor.";
  const memory = room === null ? "" : ` with more than ${bytes(room.trainer_bytes)} of memory free: activations come on top`;
  return `One that PyTorch uses (CUDA or MPS)${memory}. Without one a client computes on the processor.`;
}

function roomWords(guide) {
  const { room } = guide;
  if (room === null) {
    return [["Memory and disk", "Not known yet: the run has no first checkpoint."]];
  }
  const limit = guide.spool_limit_bytes;
  return [
    ["Memory", `${bytes(room.trainer_bytes)} for the model's ${whole(room.parameter_count)} parameters, their gradients and the `
      + "optimizer, on the GPU if there is one; activations come on top."],
    ...(room.base_bytes ? [["Base", `${bytes(room.base_bytes)} of files that no step changes, and as much memory for them; less with --base-precision nf4.`]] : []),
    ["Disk", `${bytes(room.spool_bytes)} for temporary files (--spool names their folder)`
      + (limit === null ? "." : `; the run allows ${bytes(limit)}.`)],
    ["Network", `${bytes(room.download_bytes)} to download once; then in each round ${bytes(room.result_bytes)} up and `
      + `${bytes(room.update_bytes)} down.`],
  ];
}

function certificateWords({ own_certificate: sha256 }) {
  return `The coordinator's, which is its own authority: get ${CERTIFICATE_FILE} from the run's operator, and give the commands above in its `
    + `folder. “openssl x509 -noout -fingerprint -sha256 -in ${CERTIFICATE_FILE}” prints ${sha256.toUpperCase().match(/../g).join(":")}.`;
}

function accessWords(guide) {
  if (guide.access === "invitations") return "An invitation, which the run's operator gives you.";
  if (guide.access === "keys") {
    return `A key that the operator has admitted: make one with “epochal key new ${KEY_FILE}”, and send the operator the public `
      + `key that “epochal key show ${KEY_FILE}” prints.`;
  }
  return "Nothing: anyone may join.";
}

export default class JoinPanel {
  #guide = null;
  #stop = null;
  #given = { invitation: "", data: "", name: "" };

  mount(element, store) {
    this.store = store;
    this.needs = h("dl", { class: "facts" });
    this.notes = h("div");
    this.fields = h("div", { class: "fields" });
    this.install = copyable("Command that installs", "");
    this.join = copyable("Command that joins", "");
    this.doctor = copyable("Command that checks the machine", "");
    this.sample = copyable("Command that talks to the run", "");
    this.talk = h("section", {}, h("h2", {}, "Talk to it"), this.sample.element,
      h("p", { class: "quiet" }, "The newest checkpoint answers on the machine that asks, which needs the run's admin token in "
        + "EPOCHAL_ADMIN_TOKEN; --serve in place of --chat serves programs that speak OpenAI's API."));
    this.said = h("p", { role: "status" }, "Asking the coordinator…");
    this.ended = h("p", { class: "warning", hidden: true }, "This run has ended: a client that joins now finds nothing to train, and ends at once.");
    this.body = h("div", { hidden: true },
      h("h2", {}, "1. Install, once"), this.install.element, h("p", { class: "quiet" }, INSTALL_NOTE),
      h("h2", {}, "2. Check your machine (this does not join)"), this.doctor.element,
      h("h2", {}, "3. Join"), this.fields, this.join.element,
      h("p", { class: "quiet" }, `The key in ${KEY_FILE} is your place in the run: with it a client that returns goes on as the same `
        + "member. Ctrl-C finishes the round and leaves. The client's log names the address of its own page here."),
      this.notes,
      h("h2", {}, "What your machine must have"), this.needs,
      this.talk,
    );
    fill(element, h("h1", {}, "Join"), this.ended, this.said, this.body);
  }

  update() {
    this.ended.hidden = this.store.document?.run_state !== "Finished";
    if (this.#stop !== null || this.store.runId === null) return;
    const { store } = this;
    const path = () => store.path("join");
    this.#stop = store.poll(path, ASK_EVERY_MS, (guide) => this.#told(guide), (problem) => this.#failed(problem));
  }

  unmount() {
    this.#stop?.();
  }

  #failed(problem) {
    if (this.#guide === null) setText(this.said, `The coordinator does not answer how to join: ${visible(problem.message)}`);
  }

  #told(guide) {
    if (JSON.stringify(guide) === JSON.stringify(this.#guide)) return;
    this.#guide = guide;
    this.body.hidden = false;
    setText(this.said, `To join ${visible(guide.run_id)}, at the address at which you see this page:`);
    if (!this.fields.childElementCount) this.#addFields(guide);
    const needs = [
      ["Admission", accessWords(guide)],
      ["Software", `Python 3.11 or newer, epochal ${visible(guide.version)}. ${trainerWords(guide)}`],
      ["GPU", gpuWords(guide)],
      ...(guide.own_certificate && this.store.api.base.protocol === "https:" ? [["Certificate", certificateWords(guide)]] : []),
      ["Data", dataWords(guide.data)],
      ...roomWords(guide),
    ];
    if (guide.task_encoder !== null) needs.push(["Package", `The one that has the task encoder ${visible(guide.task_encoder)}, which packs the samples; --allow-package names it.`]);
    fill(this.needs, needs.flatMap(([word, text]) => [h("dt", {}, word), h("dd", {}, text)]));
    fill(this.notes, this.#warnings(guide).map((text) => h("p", { class: "warning" }, text)));
    this.#showCommands();
  }

  #warnings(guide) {
    const warnings = [];
    const isHere = LOOPBACK.test(this.store.api.base.hostname);
    if (isHere) {
      warnings.push("You see this page at an address that only this machine can reach: another machine needs the coordinator's own "
        + "name or address in its place.");
    }
    if (guide.data.loopback && !isHere) {
      warnings.push("The run's data have an address that only the machine itself can reach: on another one, name a copy or a server "
        + "with --data.");
    }
    if (guide.data.insecure) {
      warnings.push("The data server has no TLS: --insecure says that the network may read the samples and the client's ticket for them.");
    }
    if (this.store.api.base.protocol === "https:" && !guide.own_certificate) {
      warnings.push("If your browser was set to trust this page's certificate, the client must trust it too: --tls-ca FILE.");
    }
    return warnings;
  }

  #addFields(guide) {
    const add = (name, label, hint, attributes = {}) => {
      const id = newId("join"), hintId = newId("join");
      const input = h("input", {
        id, type: "text", autocomplete: "off", spellcheck: "false", maxlength: 256, "aria-describedby": hintId, ...attributes,
        on: { input: () => { this.#given[name] = input.value.trim(); this.#showCommands(); } },
      });
      this.fields.append(h("div", { class: "field" }, h("label", { for: id }, label), input, h("span", { id: hintId, class: "quiet" }, hint)));
    };
    if (guide.access === "invitations") add("invitation", "Invitation code", "It goes into the command below, and nowhere else.");
    if (guide.data.own) add("data", "Your copy of the data", "A path on your machine.");
    add("name", "Name", "Shown to everyone who sees the run; optional.", { maxlength: 64 });
  }

  #showCommands() {
    this.install.setText(installCommand(this.#guide));
    this.doctor.setText(`epochal doctor ${reached(this.store.api.base, this.#guide)}`);
    this.join.setText(joinCommand(this.#guide, this.store.api.base, this.#given));
    this.sample.setText(sampleCommand(this.#guide, this.store.api.base));
    this.talk.hidden = this.#guide.packaged || this.#guide.trainer === "null";
  }
}
