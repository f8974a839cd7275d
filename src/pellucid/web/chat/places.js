// @ts-check
// Where a word of a shown answer stands in its source, and which token of the engine's that is.

/** The place in an answer's source at a point of the window; -1: there is no text. @param {number} x @param {number} y */
export function offsetAt(x, y) {
  const caret = caretAt(x, y);
  const piece = /** @type {HTMLElement | null | undefined} */ (caret?.node.parentElement?.closest("[data-at]"));
  if (!caret || !piece) return -1;
  const before = document.createRange();
  before.setStart(piece, 0);
  before.setEnd(caret.node, caret.offset);
  return Number(piece.dataset.at) + before.toString().length;
}

/** @param {number} x @param {number} y @returns {{node: Node, offset: number} | null} */
function caretAt(x, y) {
  const page = /** @type {any} */ (document); // browsers differ in the name
  if (page.caretPositionFromPoint) {
    const found = page.caretPositionFromPoint(x, y);
    return found && { node: found.offsetNode, offset: found.offset };
  }
  const found = page.caretRangeFromPoint?.(x, y);
  return found && { node: found.startContainer, offset: found.startOffset };
}

/**
 * The token that a place in an answer is of, as far as the engine's events are here.
 * @param {Session} session
 * @param {Message} message
 * @param {number} at
 * @returns {{request: EngineRequest, pos: number, from: number, to: number} | null} `from`, `to`: of its text in the answer's source
 */
export function tokenAt({ store }, message, at) {
  const part = message.parts?.findLast(({ from }) => from <= at) ?? message.parts?.[0];
  const request = part && part.boot === store.hello?.boot_id ? store.requests.get(part.req) : undefined;
  if (!part || !request) return null;
  const tokens = request.tokens.map((row) => store.token(row)).filter((token) => token !== null);
  const whole = tokens.map(({ text }) => text).join("");
  const next = message.parts?.find(({ from }) => from > part.from)?.from ?? message.text.length;
  // The request's text has what the answer's has not, reasoning above all.
  const begin = Math.max(0, whole.lastIndexOf(message.text.slice(part.from, next)));
  let from = part.from - begin;
  for (const { text, pos } of tokens) {
    const to = from + text.length;
    if (to > at && text) return { request, pos, from: Math.max(from, part.from), to };
    from = to;
  }
  const last = tokens.at(-1);
  return last ? { request, pos: last.pos, from: from - last.text.length, to: from } : null;
}

/**
 * Where the text of a token begins in an answer; -1: it is not of its text.
 * @param {Session} session
 * @param {Message} message
 * @param {EngineRequest} request
 * @param {number} pos
 */
export function placeOf({ store }, message, request, pos) {
  const part = message.parts?.findLast(({ req }) => req === request.req);
  if (!part) return -1;
  const tokens = request.tokens.map((row) => store.token(row)).filter((token) => token !== null);
  const next = message.parts?.find(({ from }) => from > part.from)?.from ?? message.text.length;
  const begin = Math.max(0, tokens.map(({ text }) => text).join("").lastIndexOf(message.text.slice(part.from, next)));
  const before = tokens.filter((token) => token.pos < pos).reduce((length, { text }) => length + text.length, 0);
  return part.from + before - begin;
}

/**
 * Marks the token at a place of a shown answer, and selects it for all views.
 * @param {HTMLElement} box
 * @param {Session} session
 * @param {Message} message
 * @param {number} at
 * @returns {(() => void) | undefined} takes the mark away
 */
export function markToken(box, session, message, at) {
  const found = tokenAt(session, message, at);
  if (found) {
    session.selection.req.value = found.request.req;
    session.selection.pos.value = found.pos;
  }
  const marks = /** @type {any} */ (CSS).highlights;
  if (!marks) return undefined;
  const { from, to } = found ?? { from: at, to: at + (/^\s*\S*/.exec(message.text.slice(at))?.[0].length ?? 1) };
  const ranges = rangesOf(box, from, to);
  marks.set("looked", new /** @type {any} */ (globalThis).Highlight(...ranges));
  ranges[0]?.startContainer.parentElement?.scrollIntoView({ block: "nearest" });
  return () => marks.delete("looked");
}

/** The shown text of a stretch of the source. @param {HTMLElement} box @param {number} from @param {number} to */
function rangesOf(box, from, to) {
  const ranges = [];
  for (const piece of /** @type {NodeListOf<HTMLElement>} */ (box.querySelectorAll("[data-at]"))) {
    let at = Number(piece.dataset.at);
    const texts = document.createTreeWalker(piece, NodeFilter.SHOW_TEXT);
    for (let node = texts.nextNode(); node; node = texts.nextNode()) {
      const { length } = /** @type {Text} */ (node);
      if (at < to && at + length > from) {
        const range = document.createRange();
        range.setStart(node, Math.max(0, from - at));
        range.setEnd(node, Math.min(length, to - at));
        ranges.push(range);
      }
      at += length;
    }
  }
  return ranges;
}
