// Making nodes, showing hostile text, writing numbers.
// Nothing here turns text into markup: children are nodes or text, and no attribute that loads or runs can be set.

const FORBIDDEN = new Set(["href", "src", "srcdoc", "style", "action", "formaction", "xlink:href", "data"]);

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") node.addEventListener(key, value);
    else if (FORBIDDEN.has(key) || key.startsWith("on")) throw new Error(`the attribute ${key} is never set here`);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

// h("div.card.wide", {title: "...", click: handler}, child, "text")
function h(kind, attributes, ...children) {
  const [name, ...classes] = kind.split(".");
  const node = document.createElement(name);
  if (classes.length) node.className = classes.join(" ");
  return fill(node, attributes, children);
}

function svg(name, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

// Letters that show nothing, or that move others about: controls, bidi marks, escapes, halves of surrogate pairs.
const UNSEEN = /(?![\n\t])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
const NAMES = new Map([
  [0, "NUL"], [7, "BEL"], [8, "BS"], [0x0d, "CR"], [0x1b, "ESC"], [0x7f, "DEL"], [0xad, "SHY"], [0x200b, "ZWSP"],
  [0x200c, "ZWNJ"], [0x200d, "ZWJ"], [0x200e, "LRM"], [0x200f, "RLM"], [0x202a, "LRE"], [0x202b, "RLE"],
  [0x202c, "PDF"], [0x202d, "LRO"], [0x202e, "RLO"], [0x2066, "LRI"], [0x2067, "RLI"], [0x2068, "FSI"],
  [0x2069, "PDI"], [0xfeff, "BOM"],
]);
const MOST_MARKS = 2000; // Beyond that many, marks are plain text: a text of nothing but controls must not fill memory.

function nameOf(letter) {
  const code = letter.codePointAt(0);
  return `⟨${NAMES.get(code) ?? "U+" + code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

// For titles and other places that take a string alone.
function spelled(text) {
  return String(text).replace(UNSEEN, nameOf);
}

// A text as nodes, with every unseen letter spelled out and marked.
function visible(text, most = MOST_MARKS) {
  const nodes = [];
  let from = 0;
  for (const found of text.matchAll(UNSEEN)) {
    if (nodes.length >= 2 * most) return [...nodes, spelled(text.slice(from))];
    if (found.index > from) nodes.push(text.slice(from, found.index));
    nodes.push(h("span.unseen", null, nameOf(found[0])));
    from = found.index + found[0].length;
  }
  if (from < text.length) nodes.push(text.slice(from));
  return nodes;
}

// A short text inside a line, kept from reordering what stands beside it.
function inline(text, most = 200) {
  const short = text.length > most ? cut(text, most) + "…" : text;
  return h("bdi", text.length > most ? { title: spelled(cut(text, 2000)) } : null, visible(short.replace(/\s+/g, " ")));
}

// The first letters of a text, never half of a pair.
function cut(text, most) {
  const last = text.charCodeAt(most - 1);
  return text.slice(0, last >= 0xd800 && last < 0xdc00 ? most - 1 : most);
}

const CLIP = 12000;
const PIECE = 50000;

// A text of any length: its beginning, and the rest on demand.
function longText(text, most = CLIP, kind = "div.text") {
  const box = h(kind, { dir: "auto" });
  if (!text) {
    box.append(h("span.faint", null, "(empty)"));
    return box;
  }
  const first = cut(text, most);
  box.append(...visible(first));
  if (first.length === text.length) return box;
  const more = h("button.more", {
    click: (event) => {
      event.stopPropagation();
      more.remove();
      for (let at = first.length; at < text.length; ) {
        const piece = cut(text.slice(at, at + PIECE), PIECE) || text.slice(at, at + PIECE);
        box.append(h("div.piece", null, visible(piece, 50)));
        at += piece.length;
      }
    },
  }, `… show all ${count(text.length)} letters`);
  box.append(more);
  return box;
}

const MINUS = "\u2212";

function count(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en-US").replace("-", MINUS);
}

function fixed(value, digits = 2) {
  return value === null || value === undefined || Number.isNaN(value) ? "–" : value.toFixed(digits).replace("-", MINUS);
}

function signed(value, digits = 2) {
  return value > 0 ? "+" + fixed(value, digits) : fixed(value, digits);
}

// As short as four figures allow.
function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size >= 10000) return count(value);
  if (size && size < 0.001) return value.toExponential(1).replace("-", MINUS).replace("e-", "e" + MINUS);
  return String(Number(value.toPrecision(4))).replace("-", MINUS);
}

function plural(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

function mean(values) {
  return values.length ? sum(values) / values.length : null;
}
