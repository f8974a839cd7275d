// @ts-check
// A text as its tokens: the prompt, then what the model chose, tinted by its probability. Arrow keys go from token to token.

import { html, useId, useLayoutEffect, useRef, useSignal } from "../html.js";
import { percent } from "./numbers.js";

const CHUNK = 16; // tokens that are rendered together
const LEAST = 64; // tokens whose lines are laid out together, at least: a block ends where a line of the text does
const BLOCK = 128; // and at most

/**
 * @param {object} props
 * @param {Piece[]} props.pieces
 * @param {number} props.chosen position; -1: none
 * @param {Map<number, number>} [props.read] share of attention by position, 0..1 of the largest
 * @param {boolean} props.isOpen whether more is to come
 * @param {boolean} props.withIds
 * @param {(pos: number) => void} props.onChoose
 */
export function TokenText({ pieces, chosen, read, isOpen, withIds, onChoose }) {
  const list = useId();
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const chunks = useRef(/** @type {Map<number, {own: Piece[], now: any[], element: any}>} */ (new Map())); // by first token
  /** @param {KeyboardEvent} event */
  const onKeyDown = (event) => {
    if (pieces.length === 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const first = pieces[0].pos;
    const last = pieces[pieces.length - 1].pos;
    /** @type {Record<string, number>} */
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -10, ArrowDown: 10 };
    let target = chosen < 0 ? last : chosen;
    if (event.key in moves) target += moves[event.key];
    else if (event.key === "Home") target = first;
    else if (event.key === "End") target = last;
    else return;
    event.preventDefault();
    event.stopPropagation();
    onChoose(Math.max(first, Math.min(last, target)));
    requestAnimationFrame(() => box.current?.querySelector(".chosen")?.scrollIntoView({ block: "nearest" }));
  };
  /** @type {number[][]} */
  const blocks = [];
  for (let start = 0, end = 0; start < pieces.length; start = end) {
    for (end = start + 1; end < pieces.length && end - start < BLOCK && !(end - start >= LEAST && pieces[end - 1].text.endsWith("\n")); ) end += 1;
    blocks.push([start, end]);
  }
  const chosenIndex = pieces.findIndex((piece) => piece.pos === chosen);
  const before = chunks.current;
  chunks.current = new Map();
  /** The same element while nothing in a chunk changes. @param {number} start @param {number} end */
  const chunkOf = (start, end) => {
    const isIn = chosenIndex >= start && chosenIndex < end;
    const now = [list, isIn ? chosen : -1, read, withIds];
    const own = pieces.slice(start, end);
    const old = before.get(start);
    const isSame = old?.own.length === own.length && old.now.every((each, index) => each === now[index]) && old.own.every((each, index) => isAlike(each, own[index]));
    const chunk = isSame ? old : { own, now, element: html`<${Chunk} key=${start} list=${list} pieces=${own} chosen=${isIn ? chosen : -1} read=${read} withIds=${withIds} />` };
    chunks.current.set(start, chunk);
    return chunk.element;
  };
  return html`<div
    ref=${box}
    class=${`tokens ${withIds ? "with-ids" : ""}`}
    role="listbox"
    tabindex="0"
    aria-label="Tokens. Arrow keys go from token to token."
    aria-activedescendant=${chosenIndex < 0 ? undefined : `${list}-${chosen}`}
    onKeyDown=${onKeyDown}
    onClick=${(/** @type {any} */ event) => {
      const token = event.target.closest?.("[data-pos]");
      if (token) onChoose(Number(token.dataset.pos));
    }}
  >
    <div>${blocks.map(([first, last]) => html`<div key=${first}>
      ${Array.from({ length: Math.ceil((last - first) / CHUNK) }, (_, index) => {
        const start = first + index * CHUNK;
        return chunkOf(start, Math.min(start + CHUNK, last));
      })}
      ${isOpen && last === pieces.length && html`<i class="caret" aria-hidden="true"></i>`}
    </div>`)}
      ${read && !withIds && html`<${Arcs} box=${box} chosen=${chosen} read=${read} count=${pieces.length} />`}</div>
  </div>`;
}

const LEAST_READ = 0.15; // of the largest share: arcs of less would hide the text

/**
 * Arcs from the chosen token to those that it read.
 * @param {{box: {current: HTMLElement | null}, chosen: number, read: Map<number, number>, count: number}} props `count`: of tokens
 */
function Arcs({ box, chosen, read, count }) {
  const arcs = useSignal(/** @type {{path: string, share: number}[]} */ ([]));
  useLayoutEffect(() => {
    const inner = box.current?.firstElementChild;
    if (!inner) return undefined;
    const place = () => {
      const origin = inner.getBoundingClientRect();
      const from = inner.querySelector(".chosen")?.getClientRects()[0];
      const found = [];
      for (const [pos, share] of from ? read : []) {
        const to = pos === chosen || share < LEAST_READ ? undefined : inner.querySelector(`[data-pos="${pos}"]`)?.getClientRects()[0];
        if (!from || !to) continue;
        const [x0, y0] = [from.left + from.width / 2 - origin.left, from.top - origin.top];
        const [x2, y2] = [to.left + to.width / 2 - origin.left, to.top - origin.top];
        const top = Math.min(y0, y2) - Math.min(16, 6 + Math.abs(x0 - x2) / 24);
        found.push({ path: `M${x0} ${y0}Q${(x0 + x2) / 2} ${top} ${x2} ${y2}`, share });
      }
      arcs.value = found;
    };
    place();
    const observer = new ResizeObserver(place);
    observer.observe(inner);
    return () => observer.disconnect();
  }, [read, chosen, count]);
  return html`<svg class="arcs" aria-hidden="true">${arcs.value.map(({ path, share }) => html`<path d=${path} stroke-width=${1 + 3 * share} />`)}</svg>`;
}

/** @param {Piece} one @param {Piece} other */
const isAlike = (one, other) => one.pos === other.pos && one.id === other.id && one.text === other.text && Object.is(one.p, other.p);

/** Some tokens of the text. @param {{list: string, pieces: Piece[], chosen: number, read?: Map<number, number>, withIds: boolean}} props */
const Chunk = ({ list, pieces, chosen, read, withIds }) =>
  pieces.map((piece) => {
    const share = read?.get(piece.pos) ?? 0;
    const style = /** @type {Record<string, string | number>} */ ({});
    const isUnseen = Number.isNaN(piece.p);
    if (!piece.isPrompt && !isUnseen) style["--p"] = piece.p.toFixed(3);
    if (share > 0.02) style["--read"] = Math.max(0.18, Math.min(1, share)).toFixed(2);
    const isSpecial = /^<[^<>\s]+>$|^\[[A-Z_]+\]$/.test(piece.text);
    const name = `t${piece.isPrompt ? " prompt" : ""}${isUnseen ? " unseen" : ""}${isSpecial ? " special" : ""}${piece.pos === chosen ? " chosen" : ""}${share > 0.02 ? " read" : ""}`;
    const said = piece.isPrompt ? "of the prompt" : isUnseen ? "its probability was not computed" : percent(piece.p);
    return html`<span
      key=${piece.pos}
      id=${`${list}-${piece.pos}`}
      class=${name}
      role="option"
      aria-selected=${piece.pos === chosen}
      aria-label=${`${piece.text}, position ${piece.pos}, ${said}`}
      data-pos=${piece.pos}
      data-tip=${`${legible(piece.text)} · position ${piece.pos} · ${said}`}
      style=${style}
    >${visible(piece.text)}${withIds && html`<sub>${piece.id}</sub>`}</span>`;
  });

/**
 * Text with line ends that can be seen; an empty token still has a width.
 * @param {string} text
 */
export function visible(text) {
  return text === "" ? "\u200b·" : text.replaceAll("\n", "↵\n");
}

const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/;
/** @type {Record<string, string>} */
const SIGNS = { " ": "␣", "\n": "↵", "\r": "␍", "\t": "⇥", "\u00a0": "⍽" };

/**
 * A token by itself: spaces at its ends and control characters are seen, right-to-left writing keeps to itself.
 * @param {string} text
 */
export function legible(text) {
  const spelled = text.replaceAll(/^ +| +$|[\n\r\t\u00a0]/g, (blank) => [...blank].map((each) => SIGNS[each]).join(""));
  if (spelled === "") return "∅";
  return RIGHT_TO_LEFT.test(text) ? `\u2068${spelled}\u2069` : spelled;
}
