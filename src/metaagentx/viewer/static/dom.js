// Builds elements. A text is always a text node: nothing that a model wrote can become markup.

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

export function s(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

export function replace(element, ...children) {
  element.replaceChildren(...flat(children));
  return element;
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "vars") for (const [key, part] of Object.entries(value)) element.style.setProperty(key, part);
    else if (name === "value" && "value" in element) element.value = value;
    else if (name === "checked") element.checked = value;
    else if (name === "href") element.setAttribute("href", safe(value));
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...flat(children));
  return element;
}

// Links lead to a place in this page or to a file of this server, whatever is in them.
function safe(href) {
  const text = String(href);
  return text.startsWith("#") || text.startsWith("export?") ? text : "#/";
}

function flat(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : String(child)));
}
