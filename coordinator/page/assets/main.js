// The page: its navigation, the panel that the address names, and how the connection is.

import { Api } from "./api.js";
import { fill, h, setText } from "./elements.js";
import { timeZone, visible } from "./format.js";
import { PANELS, panelOf } from "./panels.js";
import { Router } from "./router.js";
import { Store } from "./store.js";
import { tokenForm } from "./token.js";

const main = document.getElementById("main");
const api = new Api(new URL("../", import.meta.url));
const store = new Store(api);
const router = new Router(() => update());
const links = new Map(PANELS.filter(({ title }) => title !== undefined).map(({ name, title }) => [name, h("a", {}, title)]));

let shown = null; // { name, panel } of what is mounted
let wanted = null;

function showLinks(place) {
  const current = place.panel === "member" ? "members" : place.panel;
  for (const [name, link] of links) {
    link.href = router.link(name);
    if (name === current) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
}

async function showPanel(place) {
  const name = store.connection.state === "refused" ? "token" : panelOf(place.panel) === null ? "none" : place.panel;
  if (shown?.name === name) {
    wanted = null; // another one that is still being loaded is not, any more
    return shown.panel?.update(place);
  }
  if (wanted === name) return;
  wanted = name;
  const PanelClass = name in OWN ? OWN[name] : (await panelOf(name).load()).default;
  if (wanted !== name) return; // another one was asked for meanwhile
  wanted = null;
  shown?.panel.unmount();
  const isFirst = shown === null;
  fill(main);
  const panel = new PanelClass();
  shown = { name, panel };
  panel.mount(main, store, router.place, router);
  panel.update(router.place);
  if (!isFirst) main.focus({ preventScroll: true });
}

class TokenPanel {
  mount(element, ofStore) {
    const why = ofStore.api.hasToken
      ? `The coordinator did not accept the token: ${visible(ofStore.connection.problem.message)}`
      : "This run is shown to its members or to its operator only. A member's session token or the admin token opens it.";
    fill(element, h("h1", {}, "Who are you?"), tokenForm(why, (token) => ofStore.restart(token)));
  }

  update() {}

  unmount() {}
}

class NoPanel {
  mount(element, ofStore, place) {
    fill(element, h("h1", {}, "There is no such page"),
      h("p", {}, `Nothing here is called “${visible(place.panel)}”. `, h("a", { href: "#/" }, "Show the run")));
  }

  update() {}

  unmount() {}
}

const OWN = { token: TokenPanel, none: NoPanel };

const SAID = {
  connecting: () => "Connecting…",
  live: () => "Connected",
  hidden: () => "Paused while this tab is hidden",
  refused: () => "A token is needed",
  lost: ({ problem, attempt }) => {
    const why = problem === null || problem.name === "AbortError" ? "the connection ended" : visible(problem.message);
    return `Connection lost (${why}); trying again, attempt ${attempt}`;
  },
};

function update() {
  const { connection } = store;
  const status = document.getElementById("connection");
  setText(status, SAID[connection.state](connection));
  status.dataset.state = connection.state;
  const problem = store.problem?.wantsToken ? null : store.problem;
  setText(document.getElementById("notice"), problem === null ? "" : `Not all is shown yet: ${visible(problem.message)}`);
  const runName = store.runId === null ? "" : visible(store.runId), title = panelOf(router.place.panel)?.title ?? "";
  setText(document.getElementById("run-name"), runName);
  document.title = [runName, title, "Epochal"].filter(Boolean).join(" · ");
  showLinks(router.place);
  showPanel(router.place);
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
fill(document.getElementById("nav"), h("ul", {}, [...links.values()].map((link) => h("li", {}, link))));
setText(document.getElementById("zone"), `Times are of your time zone, ${timeZone()}.`);
store.subscribe(update);
update();
store.start();
