// @ts-check
// The stretch of time that Timeline shows: the busy time around the cursor, or what the reader zoomed to, within what is kept.

import { signal } from "@preact/signals-core";
import { ENDED } from "../state/store.js";

export const MIN_SPAN = 500; // microseconds
const PAUSE = 1e6; // microseconds without any request, which end a busy time

/** What a view keeps between two visits. @param {Session} session */
export function timelineState(session) {
  return (session.views.timeline ??= {
    /** What the reader zoomed to; null: the busy time around the cursor. */
    chosen: signal(/** @type {Span | null} */ (null)),
  });
}

/**
 * When a request arrived, and when it ended or, if it has not, the newest moment.
 * @param {Store} store
 * @param {EngineRequest} request
 * @returns {Span}
 */
export function lifeOf(store, request) {
  const first = request.states[0]?.t_us ?? store.head.t_us;
  const last = request.states.at(-1);
  return { from: request.added?.arrive_us ?? first, to: last && ENDED.has(last.to) ? last.t_us : store.head.t_us };
}

/**
 * All that is kept.
 * @param {Store} store
 * @returns {Span}
 */
export function wholeSpan(store) {
  let from = store.steps.length > 0 ? startOf(store, store.steps.first) : store.head.t_us;
  for (const request of store.requestsAt(Infinity)) from = Math.min(from, lifeOf(store, request).from);
  return { from, to: Math.max(store.head.t_us, from + MIN_SPAN) };
}

/**
 * The busy time at a moment: requests with no pause of a second between them.
 * @param {Store} store
 * @param {number} timeUs
 * @returns {Span}
 */
export function busySpan(store, timeUs) {
  /** @type {Span | null} */
  let busy = null;
  for (const request of store.requestsAt(Infinity)) {
    const life = lifeOf(store, request);
    if (busy && life.from <= busy.to + PAUSE) busy.to = Math.max(busy.to, life.to);
    else if (!busy || life.from <= timeUs) busy = life;
    else break;
  }
  if (!busy) return wholeSpan(store);
  return { from: busy.from, to: Math.max(busy.to, busy.from + MIN_SPAN) };
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

/**
 * Moments for the axis: round ones, as many as fit.
 * @param {Span} span
 * @param {number} width
 */
export function axisTicks(span, width) {
  const rough = (span.to - span.from) / Math.max(2, width / 110);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough) ?? rough;
  const found = [];
  for (let at = 0; at <= span.to - span.from; at += step) found.push(at);
  return found;
}
