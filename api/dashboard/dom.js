// Elements from data. Everything that is not an element becomes a text node: there is no way to markup here.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element. `on`: listeners by event; `style`: properties; other attributes as they are, none for null. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === "style") {
      for (const [property, text] of Object.entries(value)) element.style.setProperty(property, text);
    } else if (name === "href") {
      if (leadsSomewhere(value)) element.setAttribute("href", value);
    } else {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
}

/** Whether an address is one to follow: a page of ours or of the web, and no script. */
function leadsSomewhere(address) {
  return /^(\/|#|\?|https?:\/\/)/.test(address);
}

/** Put these children in place of what is there; nothing is touched where nothing changed. */
export function put(element, ...children) {
  const made = document.createDocumentFragment();
  append(made, children);
  if (element.childNodes.length === made.childNodes.length) {
    const old = [...element.childNodes];
    if ([...made.childNodes].every((node, place) => node.isEqualNode(old[place]))) return;
  }
  element.replaceChildren(made);
}

/**
 * A table that scrolls by itself where it is wider than the page. `columns`: {label, number?}. Roles are said
 * though the elements have them: narrow pages lay some tables out as cards, and browsers forget them then.
 */
export function table(caption, columns, rows, attributes = {}) {
  const heads = columns.map((column) =>
    h("th", { scope: "col", role: "columnheader", class: column.number ? "number" : null }, column.label),
  );
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      { role: "table", ...attributes },
      h("caption", { class: "unseen" }, caption),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads)),
      h("tbody", { role: "rowgroup" }, rows),
    ),
  );
}

/** A row of a table: the cells by column, the first one naming the row. */
export function row(columns, cells, attributes = {}) {
  return h(
    "tr",
    { role: "row", ...attributes },
    columns.map((column, place) =>
      h(
        place === 0 ? "th" : "td",
        {
          scope: place === 0 ? "row" : null,
          role: place === 0 ? "rowheader" : "cell",
          class: column.number ? "number" : null,
        },
        cells[place],
      ),
    ),
  );
}
