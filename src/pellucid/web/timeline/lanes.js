// @ts-check
// The span of time that is shown, and on its axis a lane for each request and the steps of the engine.

import { hatch, hue, hueVariable } from "../draw/hues.js";
import { roundTicks } from "../draw/lines.js";
import { Picture } from "../draw/picture.js";
import { html, signal, useRef } from "../html.js";
import { Badge, count, Fact, Facts, inTime, percent, several } from "../parts/numbers.js";
import { Legend, Panel, Why } from "../parts/panel.js";
import { ENDED, STEP_KINDS } from "../state/store.js";

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
 * The busy time at a moment: requests with no pause of a second between them. While it lasts, there is room for what comes: the axis is stretched now and then.
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

/**
 * The rows of steps that ended in a span or just after it, up to the moment of the cursor.
 * @param {Store} store
 * @param {Span} span
 * @param {number} seq
 * @returns {[number, number]} the first, and the one after the last
 */
function rowsIn(store, span, seq) {
  const first = store.steps.find("t_us", span.from);
  const end = Math.min(store.steps.find("t_us", span.to) + 1, store.rowAt(store.steps, seq) + 1);
  return [first, Math.max(first, end)];
}

/** Where time lies in a picture: beside the names of lanes. @param {number} width */
const gutterOf = (width) => (width < 480 ? 34 : 48);

/**
 * @param {Span} span
 * @param {number} width of the picture
 * @returns {(us: number) => number} x of a moment
 */
function scaleOf(span, width) {
  const gutter = gutterOf(width);
  const perUs = (width - gutter - 4) / (span.to - span.from);
  return (us) => gutter + Math.max(-8, Math.min((us - span.from) * perUs, width + 8));
}

const MAX_LANES = 64;
const MAX_HEIGHT = 520;
const AXIS = 22;

/**
 * The drafts of a request that a step verified.
 * @param {EngineRequest} request
 * @param {number} step
 * @returns {any | undefined} the event draft
 */
function draftOf({ drafts }, step) {
  let low = 0;
  let high = drafts.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (drafts[middle].step < step) low = middle + 1;
    else high = middle;
  }
  return drafts[low]?.step === step ? drafts[low] : undefined;
}

/**
 * @param {EngineRequest} request
 * @param {number} step
 * @param {number} tokens in this step
 * @param {number} context tokens of its text up to there
 * @returns {PassKind}
 */
function workOf(request, step, tokens, context) {
  if (context <= (request.added?.prompt_tok ?? 0)) return "prefill";
  if (tokens === 1) return "decode";
  return draftOf(request, step) ? "round" : request.added ? "again" : "prefill";
}

/**
 * Visits each request of each of some steps.
 * @param {Store} store
 * @param {[number, number]} rows of the table of steps
 * @param {(request: EngineRequest, row: number, work: PassKind, tokens: number) => void} visit
 */
function eachPass(store, [first, end], visit) {
  const { steps, batches, byNumber } = store;
  for (let row = first; row < end; row++) {
    const step = steps.get("step", row);
    const from = Math.max(batches.first, steps.get("batch_first", row));
    const to = steps.get("batch_first", row) + steps.get("batch_size", row);
    for (let i = from; i < to; i++) {
      const request = byNumber[batches.get("request", i)];
      const tokens = batches.get("q_tok", i);
      if (request) visit(request, row, workOf(request, step, tokens, batches.get("ctx_tok", i)), tokens);
    }
  }
}

/**
 * The phases of a request up to a moment, those without a change of state joined.
 * @param {Store} store
 * @param {EngineRequest} request
 * @param {number} seq
 * @param {number} now the time of that moment
 * @returns {RequestPhase[]}
 */
export function phasesOf(store, request, seq, now) {
  /** @type {RequestPhase[]} */
  const phases = [];
  let from = lifeOf(store, request).from;
  for (let i = 0; i < request.states.length; i++) {
    const { to: state, seq: at, t_us } = request.states[i];
    if (at > seq) break;
    if (i > 0) from = t_us;
    const last = phases.at(-1);
    if (last && i > 0) last.to = t_us;
    if (ENDED.has(state)) break;
    if (last?.state === state) last.to = now;
    else phases.push({ state, from, to: now });
  }
  return phases;
}

/**
 * What lanes say in numbers, which the table shows.
 * @param {Store} store
 * @param {EngineRequest[]} requests
 * @param {number} seq
 * @returns {Map<EngineRequest, {chunks: number, decodes: number, rounds: number, right: number, again: number}>}
 */
function countPasses(store, requests, seq) {
  const counts = new Map(requests.map((request) => [request, { chunks: 0, decodes: 0, rounds: 0, right: 0, again: 0 }]));
  eachPass(store, [store.steps.first, store.rowAt(store.steps, seq) + 1], (request, row, work) => {
    const of = counts.get(request);
    if (!of) return;
    if (work === "prefill") of.chunks += 1;
    else if (work === "decode") of.decodes += 1;
    else if (work === "again") of.again += 1;
    else {
      of.rounds += 1;
      of.right += draftOf(request, store.steps.get("step", row))?.n_right ?? 0;
    }
  });
  return counts;
}

/**
 * @param {{session: Session, span: Span, asTable: {value: boolean},
 *   actions: any}} props
 */
export function Lanes({ session, span, asTable, actions }) {
  const { store, cursor, selection } = session;
  const seq = cursor.seq.value;
  const now = cursor.timeUs.peek();
  const chosen = session.request.value;
  const all = store.requestsAt(seq).filter((request) => {
    const life = lifeOf(store, request);
    return life.from <= span.to && life.to >= span.from;
  });
  const requests = all.slice(-MAX_LANES);
  const laneOf = new Map(requests.map((request, index) => [request.number, index]));
  const height = requests.length === 0 ? 36 : Math.max(8, Math.min(36, Math.floor(MAX_HEIGHT / requests.length)));
  const gap = height > 20 ? 10 : height > 10 ? 3 : 1;
  const isLive = cursor.isLive.value;
  const drawnTo = useRef(0); // the end of the last step that was drawn
  const wide = useRef(600);

  /** @param {Surface} surface */
  const draw = (surface) => {
    const { ctx, width, palette, isFresh } = surface;
    const seq = cursor.seq.value;
    const now = cursor.timeUs.value;
    wide.current = width;
    const x = scaleOf(span, width);
    const bottom = requests.length * height;
    const [since, left] = partToDraw(surface, span, drawnTo.current, bottom);
    ctx.save();
    if (!isFresh) clipTo(ctx, left, width, bottom);
    drawAxis(surface, span, x, bottom);
    requests.forEach((request, lane) => {
      const top = lane * height;
      if (request === chosen) {
        ctx.fillStyle = palette.water2;
        ctx.fillRect(0, top, width, height);
      }
      if (height >= 12 && isFresh) {
        ctx.fillStyle = hue(palette, request.number);
        ctx.font = `600 12px ${palette.mono}`;
        ctx.textBaseline = "middle";
        ctx.fillText(request.name, 4, top + height / 2, left - 8);
      }
    });
    clipTo(ctx, left, width, bottom);
    const tall = height - gap;
    requests.forEach((request, lane) => {
      const y = lane * height + gap / 2;
      const colour = hue(palette, request.number);
      for (const phase of phasesOf(store, request, seq, now)) {
        if (phase.to < since || phase.from > span.to) continue;
        const left = x(phase.from);
        const wide = Math.max(1, x(phase.to) - left);
        if (phase.state === "waiting") hatch(ctx, left, y, wide, tall, colour);
        else if (phase.state === "preempted" || phase.state === "swapped") {
          ctx.strokeStyle = palette.coral;
          ctx.lineWidth = 1.5;
          ctx.strokeRect(left + 0.75, y + 0.75, Math.max(1, wide - 1.5), tall - 1.5);
        } else {
          ctx.globalAlpha = 0.2;
          ctx.fillStyle = colour;
          ctx.fillRect(left, y, wide, tall);
          ctx.globalAlpha = 1;
        }
      }
      const end = request.states.at(-1);
      if (end && end.seq <= seq && (end.to === "failed" || end.to === "cancelled")) {
        ctx.fillStyle = palette.coral;
        ctx.fillRect(x(end.t_us), y - 1, 3, tall + 2);
      }
    });
    // Ticks without a pixel between them become one bar.
    const begun = new Float64Array(requests.length);
    const last = new Float64Array(requests.length);
    const drawTicks = (/** @type {number} */ lane) => {
      if (!begun[lane]) return;
      ctx.fillStyle = hue(palette, requests[lane].number);
      ctx.globalAlpha = last[lane] > begun[lane] ? 0.6 : 1;
      ctx.fillRect(begun[lane] - 2, lane * height + gap / 2, last[lane] - begun[lane] + 2, tall);
      ctx.globalAlpha = 1;
    };
    const rows = rowsIn(store, { from: since, to: span.to }, seq);
    eachPass(store, rows, (request, row, work) => {
      const lane = laneOf.get(request.number);
      if (lane === undefined) return;
      const y = lane * height + gap / 2;
      const right = x(store.steps.get("t_us", row));
      if (work === "prefill" || work === "again") {
        ctx.fillStyle = hue(palette, request.number);
        const left = x(startOf(store, row));
        ctx.fillRect(left + 0.5, y, Math.max(1.5, right - left - 1), tall);
        if (work === "again") {
          ctx.fillStyle = palette.coral;
          ctx.fillRect(left + 0.5, y + tall - 3, Math.max(1.5, right - left - 1), 3);
        }
        return;
      }
      if (right - last[lane] >= 3) {
        drawTicks(lane);
        begun[lane] = right;
      }
      last[lane] = right;
      ctx.fillStyle = hue(palette, request.number);
      if (work === "round") drawRound(surface, draftOf(request, store.steps.get("step", row)), right - 2, y, tall);
    });
    requests.forEach((_, lane) => drawTicks(lane));
    ctx.restore();
    drawnTo.current = rows[1] > rows[0] ? store.steps.get("t_us", rows[1] - 1) : span.from;
    if (!isLive && now >= span.from && now <= span.to) drawCursor(surface, x(now), bottom);
  };

  const counts = () => countPasses(store, all, seq);
  const label = `${several(requests.length, "request")} in ${inTime(Math.min(span.to, store.head.t_us) - span.from)}.`;
  return html`<${Panel} title="Requests" about=${label} actions=${actions}>
    <${Picture}
      label=${label}
      draw=${draw}
      inputs=${[chosen?.req, span.from, span.to, requests[0], requests.length, isLive || seq]}
      follows=${cursor.timeUs}
      keeps=${isLive ? `${span.from} ${span.to} ${requests[0]?.number} ${requests.length} ${chosen?.req}` : undefined}
      height=${requests.length * height + AXIS}
      asTable=${asTable}
      cells=${/** @type {Cells} */ ({
        count: requests.length,
        columns: 1,
        describe: (lane) =>
          `${requests[lane].name}: ${phasesOf(store, requests[lane], seq, now).map(({ state, from, to }) => `${state} ${inTime(to - from)}`).join(", ")}`,
        rect: (lane) => ({ x: 1, y: lane * height + 1, width: wide.current - 2, height: height - 2 }),
        hit: (_x, y) => (y >= 0 && y < requests.length * height ? Math.floor(y / height) : -1),
        choose: (lane) => (selection.req.value = requests[lane].req),
      })}
      twin=${{
        columns: ["request", "arrived, µs", "state", "queue, µs", "prompt tokens", "prefill chunks", "decode steps", "rounds", "drafts right", "preempted", "computed again"],
        rows: () => {
          const passes = counts();
          return all.map((request) => {
            const of = /** @type {NonNullable<ReturnType<typeof passes.get>>} */ (passes.get(request));
            const queued = phasesOf(store, request, seq, now).filter(({ state }) => state === "waiting");
            return [
              request.name, Math.round(lifeOf(store, request).from), store.stateAt(request, seq)?.to ?? "",
              Math.round(queued.reduce((sum, { from, to }) => sum + to - from, 0)), request.added?.prompt_tok ?? "?", of.chunks, of.decodes,
              of.rounds, of.right, request.preempts.filter((each) => each.seq <= seq).length, of.again,
            ];
          });
        },
      }}
    />
    ${all.length > requests.length && html`<p class="small dim">The newest ${requests.length} of ${count(all.length)} requests; the table has all.</p>`}
    <${Legend}
      items=${[
        { label: "in the queue", pattern: "hatched", colour: hueVariable(chosen ?? 0) },
        { label: "a chunk of its prompt", colour: hueVariable(chosen ?? 0) },
        { label: "a decode step", pattern: "ticks", colour: hueVariable(chosen ?? 0) },
        { label: "squares: drafts, filled if right", pattern: "outlined", colour: hueVariable(chosen ?? 0) },
        { label: "preempted", pattern: "outlined", colour: "var(--coral)" },
        { label: "underlined: computed once more", pattern: "line", colour: "var(--coral)" },
      ]}
    />
  <//>`;
}

/**
 * Squares beside the tick, from below: the drafts of a round.
 * @param {Surface} surface
 * @param {any} draft
 * @param {number} x
 * @param {number} y
 * @param {number} tall
 */
function drawRound({ ctx, palette }, draft, x, y, tall) {
  const size = Math.max(2, Math.min(5, Math.floor(tall / draft.draft.length) - 1));
  for (let i = 0; i < draft.draft.length; i++) {
    const top = y + tall - (i + 1) * (size + 1) + 1;
    if (top < y - 1) break;
    if (i < draft.n_right) ctx.fillRect(x - size - 1, top, size, size);
    else {
      ctx.strokeStyle = palette.coral;
      ctx.lineWidth = 1;
      ctx.strokeRect(x - size - 0.5, top + 0.5, size - 1, size - 1);
    }
  }
}

/**
 * Clears what is drawn anew: all, or what lies behind the last step that was drawn, and some pixels before.
 * @param {Surface} surface
 * @param {Span} span
 * @param {number} drawnTo the end of that step
 * @param {number} bottom
 * @returns {[number, number]} the moment from which on steps are drawn, and the left end in pixels
 */
function partToDraw({ ctx, width, isFresh }, span, drawnTo, bottom) {
  const gutter = gutterOf(width);
  if (isFresh) return [span.from, gutter];
  const perPixel = (span.to - span.from) / (width - gutter - 4);
  const left = Math.max(gutter, Math.floor(scaleOf(span, width)(drawnTo)) - 8);
  ctx.clearRect(left, 0, width, bottom);
  return [drawnTo - 16 * perPixel, left];
}

/** @param {CanvasRenderingContext2D} ctx @param {number} left @param {number} width @param {number} bottom */
function clipTo(ctx, left, width, bottom) {
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
function drawAxis({ ctx, width, palette, isFresh }, span, x, bottom) {
  ctx.font = `11px ${palette.ui}`;
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
function drawCursor({ ctx, palette }, x, bottom) {
  ctx.fillStyle = palette.ink;
  ctx.fillRect(x, 0, 1.5, bottom);
}

const STEPS_HEIGHT = 44;

/** @type {[StepPart, string, "solid" | "hatched", "water" | "ink3"][]} in their order within a step */
export const STEP_PARTS = [
  ["sched_us", "schedule", "solid", "ink3"],
  ["fwd_us", "forward", "solid", "water"],
  ["sample_us", "sample", "hatched", "water"],
  ["emit_us", "emit", "hatched", "ink3"],
];

/** @param {{session: Session, span: Span, asTable: {value: boolean}}} props */
export function Steps({ session, span, asTable }) {
  const { store, cursor } = session;
  const { steps } = store;
  const seq = cursor.seq.value;
  const [first, end] = rowsIn(store, span, seq);
  const current = store.rowAt(steps, seq);
  const isLive = cursor.isLive.value;
  const sums = { sched_us: 0, fwd_us: 0, sample_us: 0, emit_us: 0 };
  let idle = 0;
  for (let row = first; row < end; row++) {
    for (const [field] of STEP_PARTS) sums[field] += steps.get(field, row);
    if (row > first) idle += steps.get("idle_us", row);
  }
  const busy = sums.sched_us + sums.fwd_us + sums.sample_us + sums.emit_us;
  const num = end - first;
  const drawnTo = useRef(0); // the end of the last step that was drawn
  const wide = useRef(600);
  const x = (/** @type {number} */ us) => scaleOf(span, wide.current)(us);
  /** @param {Surface} surface */
  const draw = (surface) => {
    const { ctx, width, palette, isFresh } = surface;
    wide.current = width;
    const now = cursor.timeUs.value;
    const x = scaleOf(span, width);
    const [since, left] = partToDraw(surface, span, drawnTo.current, STEPS_HEIGHT);
    ctx.save();
    if (!isFresh) clipTo(ctx, left, width, STEPS_HEIGHT);
    drawAxis(surface, span, x, STEPS_HEIGHT);
    const [from, to] = rowsIn(store, { from: since, to: span.to }, cursor.seq.value);
    for (let row = from, next = from; row < to; row = next) {
      // Steps that share a few pixels are drawn as one, with the sums of their parts.
      const times = [0, 0, 0, 0];
      const began = startOf(store, row);
      do {
        STEP_PARTS.forEach(([field], part) => (times[part] += steps.get(field, next)));
        next += 1;
      } while (next < to && x(steps.get("t_us", next)) - x(began) < 3);
      let at = began;
      STEP_PARTS.forEach(([field, , pattern, colour], part) => {
        const top = field === "fwd_us" ? 2 : 12;
        const left = x(at);
        const wide = x(at += times[part]) - left;
        ctx.fillStyle = palette[colour];
        ctx.globalAlpha = pattern === "hatched" ? 0.5 : 1;
        if (pattern === "hatched" && wide > 3) hatch(ctx, left, top, wide, STEPS_HEIGHT - 2 - top, palette[colour], 4);
        else ctx.fillRect(left, top, Math.max(0.4, wide), STEPS_HEIGHT - 2 - top);
      });
      ctx.globalAlpha = 1;
    }
    ctx.restore();
    drawnTo.current = to > from ? steps.get("t_us", to - 1) : span.from;
    if (!isLive && now >= span.from && now <= span.to) drawCursor(surface, x(now), STEPS_HEIGHT);
  };
  const label = `${several(num, "step")} in ${inTime(Math.min(span.to, store.head.t_us) - span.from)}.`;
  /** @param {number} row */
  const describe = (row) => `Step ${steps.get("step", row)}, ${STEP_KINDS[steps.get("kind", row)]}: ${STEP_PARTS.map(([field, name]) => `${name} ${inTime(steps.get(field, row))}`).join(", ")}`;
  const shown = current >= steps.first ? current : -1;
  return html`<${Panel} title="Steps" about="what the engine did, on the same axis; a click goes to that step">
    <${Picture}
      label=${label}
      draw=${draw}
      inputs=${[span.from, span.to, isLive || seq]}
      follows=${cursor.timeUs}
      keeps=${isLive ? `${span.from} ${span.to}` : undefined}
      height=${STEPS_HEIGHT + AXIS}
      asTable=${asTable}
      cells=${/** @type {Cells} */ ({
        count: num,
        columns: 10,
        describe: (index) => describe(first + index),
        rect: (index) => {
          const left = x(startOf(store, first + index));
          return { x: left, y: 2, width: Math.max(3, x(steps.get("t_us", first + index)) - left), height: STEPS_HEIGHT - 4 };
        },
        hit: (px) => {
          for (let row = first; row < end; row++) if (px <= x(steps.get("t_us", row)) + 1) return px >= x(startOf(store, row)) - 1 ? row - first : -1;
          return -1;
        },
        choose: (index) => cursor.seekStep(first + index),
      })}
      twin=${{
        columns: ["step", "kind", "requests", "tokens", "idle, µs", ...STEP_PARTS.map(([, name]) => `${name}, µs`), "all four, µs"],
        rows: () =>
          Array.from({ length: num }, (_, index) => {
            const row = first + index;
            const parts = STEP_PARTS.map(([field]) => steps.get(field, row));
            const batch = store.batch(row);
            return [
              steps.get("step", row), STEP_KINDS[steps.get("kind", row)], batch.length, batch.reduce((sum, { q_tok }) => sum + q_tok, 0),
              steps.get("idle_us", row), ...parts, parts.reduce((sum, part) => sum + part, 0),
            ];
          }),
      }}
    />
    <${Legend} items=${STEP_PARTS.map(([, name, pattern, colour]) => ({ label: name, pattern, colour: `var(--${colour})` }))} />
    ${shown >= 0 &&
    html`<p class="small dim"><b>Step ${count(steps.get("step", shown))}</b> (${STEP_KINDS[steps.get("kind", shown)]}): ${STEP_PARTS.map(([field, name]) => `${name} ${inTime(steps.get(field, shown))}`).join(" + ")} = ${inTime(STEP_PARTS.reduce((sum, [field]) => sum + steps.get(field, shown), 0))}<${Badge} of="the step" kind="M" from="step.sched_us, fwd_us, sample_us, emit_us" /></p>`}
    ${num > 0 &&
    html`<${Facts}>
        <${Fact} label="forward" value=${percent(sums.fwd_us / Math.max(1, busy))} unit="of the steps' time" kind="M" from="Σ step.fwd_us of the steps shown" />
        <${Fact} label="sampling" value=${percent(sums.sample_us / Math.max(1, busy))} unit=${inTime(sums.sample_us)} kind="M" from="Σ step.sample_us of the steps shown" />
        <${Fact} label="schedule and emit" value=${percent((sums.sched_us + sums.emit_us) / Math.max(1, busy))} unit=${inTime(sums.sched_us + sums.emit_us)} kind="M" from="Σ step.sched_us + Σ step.emit_us of the steps shown" />
        <${Fact} label="idle" value=${percent(idle / Math.max(1, busy + idle))} unit=${inTime(idle)} kind="M" from="Σ step.idle_us between the steps shown" />
      <//>
      <${Why} lead=${`${several(num, "step")} took ${inTime(busy)}:`}>
        ${inTime(busy / num)} each. The forward pass is ${percent(sums.fwd_us / Math.max(1, busy))} of that; what remains is the engine's own work around it.
      <//>`}
  <//>`;
}
