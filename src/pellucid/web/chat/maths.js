// @ts-check
// Formulas in Markdown: $...$, $$...$$, \(...\) and \[...\] become tokens, KaTeX reads them, and each node of its MathML becomes an element. What is no formula stays as it was written.

import { h, html, useEffect, useMemo, useSignal } from "../html.js";

/** @type {[string, string, boolean][]} opened by, closed by, in lines of its own */
const KINDS = [
  ["$$", "$$", true],
  ["\\[", "\\]", true],
  ["\\(", "\\)", false],
  ["$", "$", false],
];
const MAX_LENGTH = 5_000; // characters of a formula
const MAX_LINES = 60; // of one
/** Of MathML: no links, no markup of others, nothing that loads. */
const ELEMENTS = new Set(
  "math semantics mrow mi mn mo ms mtext mspace mfrac msqrt mroot msub msup msubsup munder mover munderover mmultiscripts mtable mtr mtd mstyle mpadded mphantom menclose".split(" "),
);
const ATTRIBUTES = new Set(
  (
    "display displaystyle scriptlevel mathvariant mathcolor mathbackground mathsize stretchy symmetric fence separator largeop movablelimits accent accentunder form lspace rspace minsize maxsize " +
    "width height depth voffset linethickness notation columnalign columnspacing columnlines rowalign rowspacing rowlines"
  ).split(" "),
);
const OPTIONS = { output: "mathml", throwOnError: true, trust: false, strict: "ignore", maxSize: 20, maxExpand: 500 };

/** Has a reader of Markdown see formulas. @param {any} parser a MarkdownIt */
export function readFormulas(parser) {
  parser.inline.ruler.before("escape", "formula", inText);
  parser.block.ruler.before("fence", "formula", inLines, { alt: ["paragraph", "reference", "blockquote", "list"] });
}

/** A formula within a text. Dollars are money before a blank or a digit. @param {any} state @param {boolean} silent */
function inText(state, silent) {
  const { src, pos } = state;
  const kind = KINDS.find(([open]) => src.startsWith(open, pos));
  if (!kind) return false;
  const [open, close, isDisplay] = kind;
  const begin = pos + open.length;
  const ahead = src.slice(begin, begin + MAX_LENGTH);
  let length = ahead.indexOf(close);
  if (close[0] === "$") while (length > 0 && ahead[length - 1] === "\\") length = ahead.indexOf(close, length + 1);
  const tex = length < 0 ? "" : ahead.slice(0, length);
  if (!tex.trim() || (open === "$" && (/^\s|\s$/.test(tex) || /\d/.test(src[begin + length + 1] ?? "")))) return false;
  state.pos = begin + length + close.length;
  if (!silent) Object.assign(state.push("formula", "", 0), { content: tex, markup: src.slice(pos, state.pos), meta: { isDisplay } });
  return true;
}

/** A formula in lines of its own, of which none is empty. @param {any} state @param {number} first @param {number} end @param {boolean} silent */
function inLines(state, first, end, silent) {
  const at = state.bMarks[first] + state.tShift[first];
  const kind = KINDS.find(([open, , isDisplay]) => isDisplay && state.src.startsWith(open, at));
  if (!kind || state.sCount[first] - state.blkIndent >= 4) return false;
  for (let line = first; line < Math.min(end, first + MAX_LINES) && state.eMarks[line] - at <= MAX_LENGTH; line += 1) {
    if (line > first && (state.isEmpty(line) || state.sCount[line] < state.blkIndent)) return false;
    const from = line === first ? at + 2 : state.bMarks[line];
    const found = state.src.slice(from, state.eMarks[line]).trimEnd().indexOf(kind[1]);
    if (found < 0) continue;
    const written = state.src.slice(at, state.eMarks[line]).trimEnd();
    const tex = state.getLines(first, line + 1, state.blkIndent, false).trim().slice(2, -2);
    if (from + found + 2 !== at + written.length || !tex.trim()) return false;
    if (silent) return true;
    Object.assign(state.push("formula", "", 0), { content: tex, markup: written, map: [first, line + 1], block: true, meta: { isDisplay: true } });
    state.line = line + 1;
    return true;
  }
  return false;
}

/** KaTeX, once a formula is shown. @type {Promise<any> | null} */
let reader = null;

/** @param {{tex: string, written: string, isDisplay: boolean, at: number}} props */
export function Formula({ tex, written, isDisplay, at }) {
  const katex = useSignal(/** @type {any} */ (null));
  useEffect(() => {
    // @ts-expect-error: no module but a script, which leaves its name on the window
    reader ??= import("katex").then(() => /** @type {any} */ (globalThis).katex);
    reader.then((loaded) => (katex.value = loaded), () => {});
  }, []);
  const known = katex.value;
  const shown = useMemo(() => known && drawn(known, tex, isDisplay), [known, tex, isDisplay]);
  if (!shown) return html`<span data-at=${at}>${written}</span>`;
  if (!isDisplay) return html`<span data-at=${at}>${shown}</span>`;
  return html`<div class="wide-table" data-at=${at} tabindex="0" role="region" aria-label="formula">${shown}</div>`;
}

/** The formula as elements; null: it is none. @param {any} katex @param {string} tex @param {boolean} isDisplay */
function drawn(katex, tex, isDisplay) {
  try {
    return element(katex.__renderToDomTree(tex, { ...OPTIONS, displayMode: isDisplay }).children[0]);
  } catch {
    return null;
  }
}

/** @param {any} node of KaTeX @returns {any} */
function element({ type, text, attributes, children }) {
  if (type === undefined) return text;
  if (!ELEMENTS.has(type)) return null;
  const kept = Object.entries(attributes).filter(([name]) => ATTRIBUTES.has(name));
  return h(type, Object.fromEntries(kept), ...children.map(element));
}
