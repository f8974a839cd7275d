// @ts-check
// One lane for each request: queue hatched, prompt solid, a tick for each decode step, rounds of drafts, preemptions outlined.

import { hatch, hue, hueVariable } from "../draw/hues.js";
import { Picture } from "../draw/picture.js";
import { html } from "../html.js";
import { count, inTime } from "../parts/format.js";
import { Legend, Panel } from "../parts/panel.js";
import { ENDED } from "../state/store.js";
import { axisTicks, gutterOf, lifeOf, rowsIn, scaleOf, startOf } from "./window.js";

const MAX_LANES = 64;
const MAX_HEIGHT = 520;
const AXIS = 22;

/** @typedef {{state: string, from: number, to: number}} Phase */
/** @typedef {"prefill" | "decode" | "round" | "again"} Work */

/**
 * The drafts of a request that a step verified.
 * @param {EngineRequest} request
 * @param {number} step
 * @returns {any | undefined} the event draft
 */
export function draftOf({ drafts }, step) {
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
 * @returns {Work}
 */
export function workOf(request, step, tokens, context) {
  if (context <= (request.added?.prompt_tok ?? 0)) return "prefill";
  if (tokens === 1) return "decode";
  return draftOf(request, step) ? "round" : request.added ? "again" : "prefill";
}

/**
 * Visits each request of each of some steps.
 * @param {Store} store
 * @param {[number, number]} rows of the table of steps
 * @param {(request: EngineRequest, row: number, work: Work, tokens: number) => void} visit
 */
export function eachPass(store, [first, end], visit) {
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
 * @returns {Phase[]}
 */
export function phasesOf(store, request, seq, now) {
  /** @type {Phase[]} */
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
export function countPasses(store, requests, seq) {
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
  const now = cursor.timeUs.value;
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
  let width = 600;

  /** @param {Surface} surface */
  const draw = (surface) => {
    const { ctx, palette } = surface;
    width = surface.width;
    const x = scaleOf(span, width);
    const gutter = gutterOf(width);
    const bottom = requests.length * height;
    drawAxis(surface, span, x, bottom);
    requests.forEach((request, lane) => {
      const top = lane * height;
      if (request === chosen) {
        ctx.fillStyle = palette.water2;
        ctx.fillRect(0, top, width, height);
      }
      if (height >= 12) {
        ctx.fillStyle = hue(palette, request.number);
        ctx.font = `600 12px ${palette.mono}`;
        ctx.textBaseline = "middle";
        ctx.fillText(request.name, 4, top + height / 2, gutter - 8);
      }
    });
    ctx.save();
    ctx.beginPath();
    ctx.rect(gutter, 0, width - gutter, bottom);
    ctx.clip();
    const tall = height - gap;
    requests.forEach((request, lane) => {
      const y = lane * height + gap / 2;
      const colour = hue(palette, request.number);
      for (const phase of phasesOf(store, request, seq, now)) {
        if (phase.to < span.from || phase.from > span.to) continue;
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
    const lastTick = new Float64Array(requests.length).fill(-Infinity);
    eachPass(store, rowsIn(store, span, seq), (request, row, work) => {
      const lane = laneOf.get(request.number);
      if (lane === undefined) return;
      const y = lane * height + gap / 2;
      const right = x(store.steps.get("t_us", row));
      ctx.fillStyle = hue(palette, request.number);
      if (work === "prefill" || work === "again") {
        const left = x(startOf(store, row));
        ctx.fillRect(left + 0.5, y, Math.max(1.5, right - left - 1), tall);
        if (work === "again") {
          ctx.fillStyle = palette.coral;
          ctx.fillRect(left + 0.5, y + tall - 3, Math.max(1.5, right - left - 1), 3);
        }
        return;
      }
      if (right - lastTick[lane] < 0.75) return; // denser than pixels
      lastTick[lane] = right;
      ctx.fillRect(right - 2, y, 2, tall);
      if (work === "round") drawRound(surface, draftOf(request, store.steps.get("step", row)), right - 2, y, tall);
    });
    ctx.restore();
    if (!isLive && now >= span.from && now <= span.to) drawCursor(surface, x(now), bottom);
  };

  const counts = () => countPasses(store, all, seq);
  const label = `${count(requests.length)} ${requests.length === 1 ? "request" : "requests"} in ${inTime(span.to - span.from)}.`;
  return html`<${Panel} title="Requests" about=${label} actions=${actions}>
    <${Picture}
      label=${label}
      draw=${draw}
      inputs=${[seq, now, chosen?.req, span.from, span.to, requests.length]}
      height=${requests.length * height + AXIS}
      asTable=${asTable}
      cells=${{
        count: requests.length,
        columns: 1,
        describe: (/** @type {number} */ lane) =>
          `${requests[lane].name}: ${phasesOf(store, requests[lane], seq, now).map(({ state, from, to }) => `${state} ${inTime(to - from)}`).join(", ")}`,
        rect: (/** @type {number} */ lane) => ({ x: 1, y: lane * height + 1, width: width - 2, height: height - 2 }),
        hit: (/** @type {number} */ _x, /** @type {number} */ y) => (y >= 0 && y < requests.length * height ? Math.floor(y / height) : -1),
        choose: (/** @type {number} */ lane) => (selection.req.value = requests[lane].req),
      }}
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
        { label: "in the queue", pattern: /** @type {"hatched"} */ ("hatched"), colour: hueVariable(chosen ?? 0) },
        { label: "a chunk of its prompt", colour: hueVariable(chosen ?? 0) },
        { label: "a decode step", pattern: /** @type {"ticks"} */ ("ticks"), colour: hueVariable(chosen ?? 0) },
        { label: "squares: drafts, filled if right", pattern: /** @type {"outlined"} */ ("outlined"), colour: hueVariable(chosen ?? 0) },
        { label: "preempted", pattern: /** @type {"outlined"} */ ("outlined"), colour: "var(--coral)" },
        { label: "underlined: computed once more", pattern: /** @type {"line"} */ ("line"), colour: "var(--coral)" },
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
 * @param {Surface} surface
 * @param {Span} span
 * @param {(us: number) => number} x
 * @param {number} bottom
 */
export function drawAxis({ ctx, width, palette }, span, x, bottom) {
  ctx.font = `11px ${palette.ui}`;
  ctx.textBaseline = "alphabetic";
  for (const at of axisTicks(span, width)) {
    const left = x(span.from + at);
    ctx.fillStyle = palette.line;
    ctx.fillRect(left, 0, 1, bottom);
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
