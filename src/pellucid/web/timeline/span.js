// @ts-check
// The span of time that the timeline shows: what is kept, the busy time, closer and further; and its axis in pixels.

import { roundTicks } from "../draw/lines.js";
import { signal } from "../html.js";
import { inTime } from "../parts/numbers.js";
import { arrivalOf, endOf } from "./life.js";

export const MIN_SPAN = 500; // microseconds
const PAUSE = 1e6; // microseconds without any request, which end a busy time

/** What a view keeps between two visits. @param {{views: any}} session */
export function timelineState(session) {
  return (session.views.timeline ??= {
    /** What the reader zoomed to; null: the busy time around the cursor. */
    chosen: signal(/** @type {Span | null} */ (null)),
    /** The busy time as it was found last, and when. */
    busy: { seq: -1, us: -1, span: /** @type {Span | null} */ (null) },
    /** What the lanes shown are of: a search, as it was typed. */
    search: signal(""),
  });
}

/** What is shown: what the reader zoomed to, else the busy time around the cursor. @param {{store: Store, cursor: Cursor, views: any}} session */
export function spanOf(session) {
  const { store, cursor } = session;
  const { chosen, busy } = timelineState(session);
  if (chosen.value) return within(chosen.value, wholeSpan(store));
  const [seq, us] = [store.head.seq, cursor.timeUs.peek()];
  if (busy.seq !== seq || busy.us !== us) Object.assign(busy, { seq, us, span: busySpan(store, us) });
  return /** @type {Span} */ (busy.span);
}

/**
 * All that is kept.
 * @param {Store} store
 * @returns {Span}
 */
export function wholeSpan(store) {
  let from = store.steps.length > 0 ? startOf(store, store.steps.first) : store.head.t_us;
  for (const request of store.requestsAt(Infinity)) from = Math.min(from, arrivalOf(store, request));
  return { from, to: Math.max(store.head.t_us, from + MIN_SPAN) };
}

/**
 * The busy time at a moment: requests with no pause of a second between them. While it lasts, there is room for what comes: the axis is stretched now and then.
 * @param {Store} store
 * @param {number} timeUs
 * @returns {Span}
 */
export function busySpan(store, timeUs) {
  /** @type {Span | null} */
  let busy = null;
  for (const request of store.requestsAt(Infinity)) {
    const from = arrivalOf(store, request);
    const to = endOf(store, request);
    if (busy && from <= busy.to + PAUSE) busy.to = Math.max(busy.to, to);
    else if (!busy || from <= timeUs) busy = { from, to };
    else break;
  }
  if (!busy) return wholeSpan(store);
  let length = Math.max(busy.to - busy.from, MIN_SPAN);
  if (busy.to === store.head.t_us) {
    const room = 2 ** Math.floor(Math.log2(length)) / 8;
    length = Math.ceil(length / room) * room;
  }
  return { from: busy.from, to: busy.from + length };
}

/**
 * A span within bounds: not shorter than MIN_SPAN, not outside.
 * @param {Span} span
 * @param {Span} bounds
 * @returns {Span}
 */
export function within({ from, to }, bounds) {
  const length = Math.max(MIN_SPAN, Math.min(to - from, bounds.to - bounds.from));
  const start = Math.max(bounds.from, Math.min(from, bounds.to - length));
  return { from: start, to: start + length };
}

/**
 * Closer (`by` below 1) or further away, around a moment.
 * @param {Span} span
 * @param {number} by
 * @param {number} around
 * @param {Span} bounds
 */
export function zoomed(span, by, around, bounds) {
  const middle = around >= span.from && around <= span.to ? around : (span.from + span.to) / 2;
  const length = Math.max(MIN_SPAN, (span.to - span.from) * by);
  const share = (middle - span.from) / (span.to - span.from);
  return within({ from: middle - share * length, to: middle + (1 - share) * length }, bounds);
}

/**
 * Earlier or later, by a share of its length.
 * @param {Span} span
 * @param {number} by
 * @param {Span} bounds
 */
export function moved(span, by, bounds) {
  const length = span.to - span.from;
  return within({ from: span.from + by * length, to: span.to + by * length }, bounds);
}

/**
 * When a step began: its event is sent at its end.
 * @param {Store} store
 * @param {number} row
 */
export function startOf({ steps }, row) {
  return steps.get("t_us", row) - steps.get("sched_us", row) - steps.get("fwd_us", row) - steps.get("sample_us", row) - steps.get("emit_us", row);
}

const ROUNDING_US = 4; // by which a step may seem to begin before the end of the one before: a half for each of its times
/** @type {WeakMap<Store["steps"], {ends: number[], next: number, lanes: Uint8Array}>} */
const known = new WeakMap();

/**
 * The lanes of steps: those that are under way at the same time, on several machines, have different ones.
 * @param {Store} store
 * @returns {{num: number, of: (row: number) => number}} how many there are, and which a step has
 */
export function stepLanes(store) {
  const { steps } = store;
  const kept = known.get(steps) ?? { ends: [0], next: 0, lanes: new Uint8Array(steps.capacity) };
  known.set(steps, kept);
  for (let row = Math.max(kept.next, steps.first); row < steps.end; row++) {
    const began = Math.max(0, startOf(store, row));
    let lane = kept.ends.findIndex((end) => end - ROUNDING_US <= began);
    if (lane < 0) lane = kept.ends.length;
    kept.ends[lane] = began + steps.get("t_us", row) - startOf(store, row);
    kept.lanes[row % steps.capacity] = lane;
  }
  kept.next = steps.end;
  return { num: kept.ends.length, of: (row) => kept.lanes[row % steps.capacity] };
}

/**
 * The rows of steps that ended in a span or just after it, up to the moment of the cursor.
 * @param {Store} store
 * @param {Span} span
 * @param {number} seq
 * @returns {[number, number]} the first, and the one after the last
 */
export function rowsIn(store, span, seq) {
  const first = store.steps.find("t_us", span.from);
  const end = Math.min(store.steps.find("t_us", span.to) + 1, store.rowAt(store.steps, seq) + 1);
  return [first, Math.max(first, end)];
}

/** Where time lies in a picture: beside the names of lanes. @param {number} width */
export const gutterOf = (width) => (width < 480 ? 34 : 48);

/**
 * @param {Span} span
 * @param {number} width of the picture
 * @returns {(us: number) => number} x of a moment
 */
export function scaleOf(span, width) {
  const gutter = gutterOf(width);
  const perUs = (width - gutter - 4) / (span.to - span.from);
  return (us) => gutter + Math.max(-8, Math.min((us - span.from) * perUs, width + 8));
}

export const AXIS = 22; // pixels: the height of the axis

/**
 * The moment at a place of a picture, the opposite of its scale.
 * @param {Span} span
 * @param {number} width of the picture
 * @param {number} x
 */
export function timeAt(span, width, x) {
  const gutter = gutterOf(width);
  return span.from + ((x - gutter) / (width - gutter - 4)) * (span.to - span.from);
}

/**
 * Clears what is drawn anew: all, or what lies behind the last step that was drawn, and some pixels before.
 * @param {Surface} surface
 * @param {Span} span
 * @param {number} drawnTo the end of that step
 * @param {number} bottom
 * @returns {[number, number]} the moment from which on steps are drawn, and the left end in pixels
 */
export function partToDraw({ ctx, width, isFresh }, span, drawnTo, bottom) {
  const gutter = gutterOf(width);
  if (isFresh) return [span.from, gutter];
  const perPixel = (span.to - span.from) / (width - gutter - 4);
  const left = Math.max(gutter, Math.floor(scaleOf(span, width)(drawnTo)) - 8);
  ctx.clearRect(left, 0, width, bottom);
  return [drawnTo - 16 * perPixel, left];
}

/** @param {CanvasRenderingContext2D} ctx @param {number} left @param {number} width @param {number} bottom */
export function clipTo(ctx, left, width, bottom) {
  ctx.beginPath();
  ctx.rect(left, 0, width, bottom);
  ctx.clip();
}

/**
 * @param {Surface} surface
 * @param {Span} span
 * @param {(us: number) => number} x
 * @param {number} bottom
 */
export function drawAxis({ ctx, width, palette, isFresh }, span, x, bottom) {
  ctx.font = `14px ${palette.ui}`;
  ctx.textBaseline = "alphabetic";
  for (const at of roundTicks(span.to - span.from, 10, Math.max(2, width / 110))) {
    const left = x(span.from + at);
    ctx.fillStyle = palette.line;
    ctx.fillRect(left, 0, 1, bottom);
    if (!isFresh) continue;
    ctx.fillStyle = palette.ink3;
    const text = at === 0 ? "0" : `+${inTime(at)}`;
    if (left + ctx.measureText(text).width < width) ctx.fillText(text, left, bottom + 15);
  }
}

/**
 * @param {Surface} surface
 * @param {number} x
 * @param {number} bottom
 */
export function drawCursor({ ctx, palette }, x, bottom) {
  ctx.fillStyle = palette.ink;
  ctx.fillRect(x, 0, 1.5, bottom);
}
