// The page's address after "#": which panel is shown, of what, and at which version of the run.
//
// "#/" is the run now, "#/round/12" a round, "#/?version=340" the run as it was at version 340.

/** Return { panel, rest, version } of the address: the panel's name, the words that follow it, and a number or null. */
export function parseAddress(hash) {
  const [path, query = ""] = hash.replace(/^#/, "").split("?", 2);
  const words = path.split("/").filter((word) => word !== "").map(decoded);
  const version = new URLSearchParams(query).get("version");
  return {
    panel: words[0] ?? "run",
    rest: words.slice(1),
    version: version !== null && /^\d{1,15}$/.test(version) ? Number(version) : null,
  };
}

function decoded(word) {
  try {
    return decodeURIComponent(word);
  } catch {
    return word;
  }
}

/** Return the address of a panel. */
export function addressOf({ panel = "run", rest = [], version = null }) {
  const words = panel === "run" && !rest.length ? [] : [panel, ...rest].map(encodeURIComponent);
  return `#/${words.join("/")}${version === null ? "" : `?version=${version}`}`;
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

  /** Return the address of a panel at the version that is shown. */
  link(panel, ...rest) {
    return addressOf({ panel, rest, version: this.place.version });
  }

  #read() {
    if (location.hash !== "" && !location.hash.startsWith("#/")) return; // a link within the page
    this.place = parseAddress(location.hash);
    this.changed(this.place);
  }
}
