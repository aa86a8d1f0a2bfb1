// Elements with text. Text only ever becomes text: nothing here, or anywhere on the page, reads it as HTML.

/**
 * Return a new element.
 *
 * @param {string} tag its name, such as "p".
 * @param {Object} attributes by name; null and false leave one out, true sets it empty; `on` holds listeners by event.
 * @param {...(Node|string|number|null)} children in their order; null is left out.
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined).map(asNode));
  return element;
}

function asNode(child) {
  return child instanceof Node ? child : document.createTextNode(String(child));
}

/** Set an element's text if it is another one: so that a screen reader does not read the same again. */
export function setText(element, text) {
  const wanted = String(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}

/** Put these children in the place of all that an element has. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined).map(asNode));
}

let count = 0;

/** Return an id that no other element has. */
export function newId(prefix) {
  count += 1;
  return `${prefix}-${count}`;
}

/** Return a table that scrolls by itself where it is too wide. `label` names its region; a row's first cell is its header. */
export function scrollingTable(label, caption, heads, rows, attributes = {}) {
  const head = h("thead", {}, h("tr", {}, heads.map((text) => h("th", { scope: "col" }, text))));
  const body = rows.map(([first, ...cells]) => h("tr", {}, h("th", { scope: "row" }, first), cells.map((cell) => h("td", {}, cell))));
  return h("div", { class: "scrolls", tabindex: 0, role: "region", "aria-label": label, ...attributes },
    h("table", {}, caption ? h("caption", {}, caption) : null, head, h("tbody", {}, body)));
}
