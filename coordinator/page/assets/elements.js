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
