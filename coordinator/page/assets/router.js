// The page's address after "#": which panel is shown, and of what: "#/" is the run, "#/round/12" a round.

/** Return { panel, rest } of the address: the panel's name, and the words that follow it. */
export function parseAddress(hash) {
  const [panel = "run", ...rest] = hash.replace(/^#/, "").split("?")[0].split("/").filter((word) => word !== "").map(decoded);
  return { panel, rest };
}

function decoded(word) {
  try {
    return decodeURIComponent(word);
  } catch {
    return word;
  }
}

/** Return the address of a panel. */
export function addressOf({ panel = "run", rest = [] }) {
  const words = panel === "run" && !rest.length ? [] : [panel, ...rest].map(encodeURIComponent);
  return `#/${words.join("/")}`;
}

/** Follows the address, and calls `changed(place)` when it names another place. */
export class Router {
  constructor(changed) {
    this.changed = changed;
    this.place = parseAddress(location.hash);
    addEventListener("hashchange", () => this.#read());
  }

  /** Go to a place: what is left out stays as it is. `replace` adds no step to the browser's history. */
  go(change, { replace = false } = {}) {
    const place = { ...this.place, ...change };
    if (replace) {
      history.replaceState(null, "", addressOf(place));
      this.#read();
    } else {
      location.hash = addressOf(place);
    }
  }

  /** Return the address of a panel. */
  link(panel, ...rest) {
    return addressOf({ panel, rest });
  }

  #read() {
    if (location.hash !== "" && !location.hash.startsWith("#/")) return; // a link within the page
    this.place = parseAddress(location.hash);
    this.changed(this.place);
  }
}
