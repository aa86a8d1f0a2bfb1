// What an operator does to the run, with the admin token: each action asks first, and says how it went.

import { copyable } from "../widgets/copy.js";
import { ask } from "../widgets/dialog.js";
import { fill, h, newId, setText } from "../elements.js";
import { counted, digits, moment, shortId, visible, whole } from "../format.js";
import { operator } from "../operator.js";
import { prose } from "../refusals.js";
import { tokenForm } from "../token.js";
import { PHASES } from "../words.js";
import { joinCommand } from "./join.js";

const ASK_EVERY_MS = 5_000;
const MAX_SHOWN_ACTIONS = 200;
const HOUR_S = 3_600;
const ASK_ACCESS_EVERY_MS = 30_000;
const NO_INVITATIONS = {
  open: "This run is open: anyone may join, and nobody needs an invitation.",
  keys: "This run admits keys, and takes no invitations: “epochal access add” admits one.",
};

export default class OperatePanel {
  #stop = null;
  #stopAccess = null;
  #stopStatus = null;
  #shownActions = null; // the coordinator's answer
  #logged = ""; // what is in the list

  mount(element, store, place) {
    this.store = store;
    this.outcome = h("p", { role: "status" });
    this.entry = h("div");
    this.actions = h("div", { hidden: true });
    this.log = h("div", {}, h("p", { class: "quiet" }, "Asking the coordinator…"));
    this.now = h("p");
    fill(element, h("h1", {}, "Operate"), this.now, this.entry, this.outcome, this.actions,
      h("h2", {}, "Actions so far"), this.log);
    this.#addActions(place);
    this.#showEntry();
  }

  update(place) {
    const { document } = this.store;
    if (document !== null) {
      setText(this.now, `${whole(Math.min(document.step - 1, document.total_steps))} of ${counted(document.total_steps, "step")} done; phase ${document.run_state}: ${PHASES[document.run_state] ?? "not known here"}.`);
      this.lastStep.min = String(document.step);
    }
    if (this.#shownActions !== null) this.#showLog(this.#shownActions);
    if (place.rest[0] === "eject" && place.rest[1] !== this.ejectPlace) {
      this.ejectPlace = this.wantedMember = place.rest[1];
      this.#stopStatus?.hurry();
    }
    if (this.#stop !== null || this.store.runId === null) return;
    this.#follow();
    this.#stopAccess = this.store.poll(() => this.store.path("join"), ASK_ACCESS_EVERY_MS, ({ access }) => {
      const why = NO_INVITATIONS[access] ?? "";
      this.inviteButton.disabled = why !== "";
      setText(this.noInvitations, why);
    });
    this.#stopStatus = this.store.poll(() => this.store.path("status"), ASK_EVERY_MS, (status) => this.#showPossible(status));
  }

  /** Let be pressed what can be done now, and list the members that can be ejected. */
  #showPossible({ run_state: phase, pausing, finish_after: end, members }) {
    const focused = document.activeElement;
    const isEnded = phase === "Finished", isPaused = phase === "Paused" || pausing;
    this.buttons.pause.disabled = isEnded || isPaused;
    this.buttons.resume.disabled = isEnded || !isPaused;
    this.buttons.end.disabled = isEnded;
    this.buttons.endNot.disabled = isEnded || end === null;
    this.buttons.eject.disabled = !members.length;
    if (focused?.disabled) focused.closest("section").querySelector("button:enabled")?.focus();
    const named = members.map(({ client_id: id, name }) => [id, `${name ? `${visible(name)}, ` : ""}${shortId(id)}…`])
      .sort(([, one], [, other]) => one.localeCompare(other));
    const listed = named.map(([id]) => id).join();
    if (listed === this.listed && this.wantedMember === undefined) return;
    this.listed = listed;
    const chosen = this.wantedMember ?? this.client.value;
    fill(this.client, named.length ? h("option", { value: "" }, "Choose a member") : h("option", { value: "" }, "No member is present"),
      named.map(([id, text]) => h("option", { value: id }, text)));
    this.client.value = named.some(([id]) => id === chosen) ? chosen : "";
    this.wantedMember = undefined;
  }

  unmount() {
    this.#stop?.();
    this.#stopAccess?.();
    this.#stopStatus?.();
  }

  #follow() {
    const { store } = this;
    this.#stop?.();
    this.#stop = store.poll(() => store.path("actions"), ASK_EVERY_MS, (answer) => {
      this.#shownActions = answer;
      this.#showLog(answer);
    }, (problem) => {
      this.#logged = "";
      fill(this.log, h("p", { role: "alert" }, `The actions could not be read: ${visible(problem.message)}`));
    });
  }

  #showEntry() {
    this.actions.hidden = !operator.hasToken;
    if (operator.hasToken) {
      fill(this.entry, h("p", {}, "The coordinator accepts the admin token in this page's memory. ",
        h("button", { type: "button", on: { click: () => this.#forget() } }, "Forget it")));
      return;
    }
    const why = "The actions need the admin token, which the coordinator printed at its first start.";
    const same = h("p", {}, h("button", { type: "button", on: { click: () => this.#enter(() => operator.usePages()) } },
      "Use the token that opened this page"));
    fill(this.entry, tokenForm(why, (token) => this.#enter(() => operator.use(token))), this.store.api.hasToken ? same : null);
  }

  /** Take a token, if the coordinator accepts it. */
  async #enter(take) {
    take();
    setText(this.outcome, "Asking the coordinator…");
    this.outcome.className = "";
    try {
      await operator.check(this.store);
    } catch (problem) {
      operator.use(null);
      return this.#say(problem.wantsToken ? "This is not the run's admin token." : `The token could not be checked: ${refusedWords(problem)}`);
    }
    this.#showEntry();
    setText(this.outcome, "");
    this.actions.querySelector("button:enabled")?.focus();
  }

  #forget() {
    operator.use(null);
    fill(this.invited);
    this.#showEntry();
    setText(this.outcome, "The token is forgotten.");
    this.entry.querySelector("input")?.focus();
  }

  #addActions() {
    const field = (label, attributes) => {
      const id = newId("operate");
      const input = h("input", { id, autocomplete: "off", spellcheck: "false", ...attributes });
      return [input, h("div", { class: "field" }, h("label", { for: id }, label), input)];
    };
    const button = (label, does) => h("button", { type: "button", on: { click: does } }, label);
    const buttons = this.buttons = {
      pause: button("Pause…", () => this.#pause()), resume: button("Resume…", () => this.#resume()),
      end: button("End after this step…", () => this.#end()), endNot: button("Take the end back…", () => this.#endNot()),
      invite: button("Invite…", () => this.#invite()), eject: button("Eject…", () => this.#eject()),
    };
    const action = (title, text, fields, ...does) => h("section", { class: "action" },
      h("h3", {}, title), h("p", {}, text), fields, h("p", { class: "buttons" }, does));
    const [lastStep, lastStepField] = field("Last step", { type: "number", min: 1, step: 1, inputmode: "numeric" });
    const clientId = newId("operate"), client = h("select", { id: clientId });
    const clientField = h("div", { class: "field" }, h("label", { for: clientId }, "Member"), client);
    const [uses, usesField] = field("How many clients may use it", { type: "number", min: 1, step: 1, value: 1, inputmode: "numeric" });
    const [hours, hoursField] = field("For how many hours; empty: without an end",
      { type: "number", min: 1, step: 1, value: 24, inputmode: "numeric" });
    Object.assign(this, { lastStep, client, uses, hours, invited: h("div") });
    this.noInvitations = h("p", { id: newId("operate"), class: "quiet" });
    this.inviteButton = buttons.invite;
    this.inviteButton.setAttribute("aria-describedby", this.noInvitations.id);
    fill(this.actions,
      action("Pause", "The round under way ends, a checkpoint is made, and the run waits until it is resumed.", null, buttons.pause, buttons.resume),
      action("End after a step", "The run ends once this step was applied, with a checkpoint.", lastStepField, buttons.end, buttons.endNot),
      action("Invite", "A code with which clients may join, where the run asks for one.", [usesField, hoursField, this.noInvitations], buttons.invite),
      this.invited,
      action("Eject a member", "It is removed, and its key may not join again.", clientField, buttons.eject),
    );
  }

  async #do(question, lines, yes, doing, request, done) {
    if (!(await ask(question, lines, yes))) {
      setText(this.outcome, "Nothing was done.");
      this.outcome.className = "";
      return null;
    }
    setText(this.outcome, `${doing}…`);
    this.outcome.className = "";
    try {
      const answer = await request();
      setText(this.outcome, done);
      this.outcome.className = "good";
      this.#follow();
      this.#stopStatus?.hurry();
      return answer ?? {};
    } catch (problem) {
      setText(this.outcome, `${doing} failed: ${refusedWords(problem)}`);
      this.outcome.className = "bad";
      return null;
    }
  }

  #pause() {
    return this.#do("Pause the run?", ["The round under way ends first. Members stay, and wait."], "Pause", "Pausing",
      () => operator.act(this.store, "pause"), "The run pauses after this round.");
  }

  #resume() {
    return this.#do("Resume the run?", ["It goes on as soon as enough members are there."], "Resume", "Resuming",
      () => operator.act(this.store, "resume"), "The run goes on.");
  }

  #end() {
    const step = Number(this.lastStep.value);
    const least = this.store.document?.step ?? 1;
    if (!Number.isSafeInteger(step) || step < least) return this.#say(`The last step must be a whole number, ${whole(least)} or more.`);
    return this.#do(`End the run after step ${whole(step)}?`, ["It then makes a checkpoint and is finished. Nothing is trained after that."],
      "End the run", "Ending", () => operator.act(this.store, "finish", { method: "PUT", body: { after_step: step } }),
      `The run ends after step ${whole(step)}.`);
  }

  #endNot() {
    return this.#do("Take the end back?", ["The run then ends as its state file says."], "Take it back", "Taking the end back",
      () => operator.act(this.store, "finish", { method: "PUT", body: { after_step: null } }), "The run ends as its state file says.");
  }

  #eject() {
    const id = this.client.value;
    if (!id) return this.#say("Choose a member first.");
    return this.#do(`Eject ${this.client.selectedOptions[0].textContent}?`, [`Id ${id}.`, "Its work in this round is lost, and its key may not join again."],
      "Eject", "Ejecting", () => operator.act(this.store, `clients/${id}/eject`), `Member ${shortId(id)}… was ejected.`);
  }

  async #invite() {
    const uses = Number(this.uses.value), hours = this.hours.value.trim() === "" ? null : Number(this.hours.value);
    if (!(Number.isSafeInteger(uses) && uses >= 1)) return this.#say("How many clients: a whole number, 1 or more.");
    if (hours !== null && !(hours > 0)) return this.#say("For how many hours: a number above 0, or nothing.");
    const howLong = hours === null ? "without an end" : `for ${counted(hours, "hour")}`;
    const told = await this.#do(`Invite ${counted(uses, "client")}?`,
      [`The code is good ${howLong}. Whoever has it may join.`], "Invite", "Inviting",
      () => operator.act(this.store, "invitations", { body: { uses, expires_in_s: hours === null ? null : hours * HOUR_S } }),
      "The invitation is made.");
    if (told !== null) await this.#showInvitation(told.code);
  }

  async #showInvitation(code) {
    const guide = await this.store.api.json(this.store.path("join")).catch(() => null);
    const shown = [h("p", {}, "The code is shown this once. Send it to who may join:"), copyable("Invitation code", code).element];
    if (guide !== null) {
      const command = joinCommand({ ...guide, access: "invitations" }, this.store.api.base, { invitation: code });
      shown.push(h("p", {}, "The command with it:"), copyable("Command that joins with the invitation", command).element);
    }
    fill(this.invited, shown);
  }

  #say(text) {
    setText(this.outcome, text);
    this.outcome.className = "bad";
  }

  #showLog({ actions }) {
    const logged = `${actions.length} ${actions.at(-1)?.at_s}`;
    if (logged === this.#logged) return;
    this.#logged = logged;
    if (!actions.length) return fill(this.log, h("p", {}, "No operator has done anything yet."));
    const rows = actions.slice(-MAX_SHOWN_ACTIONS).reverse().map((action) => h("tr", {},
      h("td", {}, moment(action.at_s)), h("td", {}, visible(action.name)), h("td", { class: "others" }, prose(argumentsOf(action)))));
    fill(this.log, h("div", { class: "scrolls", tabindex: 0, role: "region", "aria-label": "Actions so far" }, h("table", {},
      h("caption", {}, "From the journal, the newest first"),
      h("thead", {}, h("tr", {}, ["When", "Action", "With"].map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, rows))));
  }
}

/** What an action was done with, in words. */
function argumentsOf({ name: action, arguments: given }) {
  if (action === "finish" && given.after_step === null) return "the end taken back";
  const words = Object.entries(given).filter(([, value]) => value !== null).map(([name, value]) => {
    const shown = name.endsWith("_s") ? moment(value) : typeof value === "number" ? numberOf(value) : visible(value);
    return `${visible(name.replace(/_s$/, "").replaceAll("_", " "))} ${shown}`;
  });
  return words.join(", ");
}

const numberOf = (value) => (Number.isInteger(value) ? whole(value) : digits(value));

/** A refusal in words. */
function refusedWords(problem) {
  const words = {
    forbidden: "this is not the admin token. Forget it, and enter the right one.",
    unauthorized: "the coordinator wants the admin token.",
    unreachable: "the coordinator does not answer; whether it was done, the list below says once it answers.",
  };
  return words[problem.kind] ?? visible(problem.message);
}
