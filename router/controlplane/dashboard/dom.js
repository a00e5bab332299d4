// Elements, made and kept up to date. Whatever comes from the router is put in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes, properties of the same names, and children: nodes, texts, or nothing. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  put(element, ...children);
  return element;
}

/** Append children: nodes as they are, all else as text. */
export function put(element, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

/** Make these an element's only children. */
export function only(element, ...children) {
  element.replaceChildren();
  return put(element, ...children);
}

/** Set a text where it differs: what does not change keeps a selection, and is not announced again. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Build a part anew only where what it is made of has changed. */
export function memo(element, build) {
  let before;
  return (...made) => {
    const key = JSON.stringify(made);
    if (key === before) return;
    before = key;
    only(element, build(...made));
  };
}

/** Let a parent's children be one for each item, in order, keeping those whose key stays. */
export function keyed(parent, items, keyOf, make, update) {
  const old = new Map();
  for (const child of parent.children) old.set(child.dataset.key, child);
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = old.get(key);
    if (child) old.delete(key);
    else {
      child = make(item);
      child.dataset.key = key;
    }
    update?.(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const gone of old.values()) gone.remove();
}
