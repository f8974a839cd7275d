// @ts-check
// A lane for each request: what it waited for, its steps, how it ended. Only the lanes that are seen are drawn.

import { hatch, hue, hueVariable } from "../draw/hues.js";
import { Picture } from "../draw/picture.js";
import { html, useLayoutEffect, useRef, useSignal } from "../html.js";
import { count, inTime, several } from "../parts/numbers.js";
import { Legend, Panel, Why } from "../parts/panel.js";
import { matcherOf, SEARCHES } from "./find.js";
import { TimeGestures } from "./gestures.js";
import { arrivalOf, endOf, phasesOf } from "./life.js";
import { AXIS, clipTo, drawAxis, drawCursor, partToDraw, rowsIn, scaleOf, startOf, stepLanes } from "./span.js";

const MIN_LANE = 14; // pixels: its name can be read
const MAX_LANE = 36;
const MAX_SEEN = 520; // pixels of lanes; more of them scroll

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
 * @param {{session: Session, span: Span, gestures: TimeChanges, search: {value: string}, asTable: {value: boolean}, actions: any}} props `search`: signal
 */
export function Lanes({ session, span, gestures, search, asTable, actions }) {
  const { store, cursor, selection } = session;
  const seq = cursor.seq.value;
  const now = cursor.timeUs.peek();
  const chosen = session.request.value;
  const within = store.requestsAt(seq).filter((request) => arrivalOf(store, request) <= span.to && endOf(store, request) >= span.from);
  const { matches, problem } = matcherOf(search.value);
  const requests = within.filter((request) => matches(store, request, seq));
  const height = requests.length === 0 ? MAX_LANE : Math.max(MIN_LANE, Math.min(MAX_LANE, Math.floor(MAX_SEEN / requests.length)));
  const gap = height > 20 ? 10 : 3;
  const seen = Math.min(requests.length * height, MAX_SEEN); // pixels
  const { scroller, top, reveal } = useScroll({ full: requests.length * height, seen, lane: height });
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
    const bottom = seen;
    const first = Math.floor(top.value / height);
    const shown = requests.slice(first, Math.ceil((top.value + seen) / height));
    const topOf = (/** @type {number} */ index) => (first + index) * height - top.value;
    const laneOf = new Map(shown.map((request, index) => [request.number, index]));
    const [since, left] = partToDraw(surface, span, drawnTo.current, bottom);
    ctx.save();
    if (!isFresh) clipTo(ctx, left, width, bottom);
    drawAxis(surface, span, x, bottom);
    if (isFresh) clipTo(ctx, 0, width, bottom);
    shown.forEach((request, lane) => {
      const top = topOf(lane);
      if (request === chosen) {
        ctx.fillStyle = palette.water2;
        ctx.fillRect(0, top, width, height);
      }
      if (isFresh) {
        ctx.fillStyle = hue(palette, request.hue);
        ctx.font = `600 14px ${palette.mono}`;
        ctx.textBaseline = "middle";
        ctx.fillText(request.name, 4, top + height / 2, left - 8);
      }
    });
    clipTo(ctx, left, width, bottom);
    const tall = height - gap;
    shown.forEach((request, lane) => {
      const y = topOf(lane) + gap / 2;
      const colour = hue(palette, request.hue);
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
    const begun = new Float64Array(shown.length);
    const last = new Float64Array(shown.length);
    const drawTicks = (/** @type {number} */ lane) => {
      if (!begun[lane]) return;
      ctx.fillStyle = hue(palette, shown[lane].hue);
      ctx.globalAlpha = last[lane] > begun[lane] ? 0.6 : 1;
      ctx.fillRect(begun[lane] - 2, topOf(lane) + gap / 2, last[lane] - begun[lane] + 2, tall);
      ctx.globalAlpha = 1;
    };
    const theirs = {
      from: Math.max(since, Math.min(...shown.map((request) => arrivalOf(store, request)))),
      to: Math.min(span.to, Math.max(...shown.map((request) => endOf(store, request)))),
    };
    const rows = rowsIn(store, theirs, seq);
    eachPass(store, rows, (request, row, work) => {
      const lane = laneOf.get(request.number);
      if (lane === undefined) return;
      const y = topOf(lane) + gap / 2;
      const right = x(store.steps.get("t_us", row));
      if (work === "prefill" || work === "again") {
        ctx.fillStyle = hue(palette, request.hue);
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
      ctx.fillStyle = hue(palette, request.hue);
      if (work === "round") drawRound(surface, draftOf(request, store.steps.get("step", row)), right - 2, y, tall);
    });
    shown.forEach((_, lane) => drawTicks(lane));
    ctx.restore();
    drawnTo.current = rows[1] > rows[0] && stepLanes(store).num === 1 ? store.steps.get("t_us", rows[1] - 1) : span.from;
    if (!isLive && now >= span.from && now <= span.to) drawCursor(surface, x(now), bottom);
  };

  const counts = () => countPasses(store, requests, seq);
  const label = `${several(requests.length, "request")} in ${inTime(Math.min(span.to, store.head.t_us) - span.from)}.`;
  const cells = /** @type {Cells} */ ({
    count: requests.length,
    columns: 1,
    describe: (lane) =>
      `${requests[lane].name}: ${phasesOf(store, requests[lane], seq, now).map(({ state, from, to }) => `${state} ${inTime(to - from)}`).join(", ")}`,
    rect: (lane) => {
      const y = lane * height - top.value;
      return y < 0 || y + height > seen ? null : { x: 1, y: y + 1, width: wide.current - 2, height: height - 2 };
    },
    hit: (_x, y) => (y >= 0 && y < seen ? Math.floor((y + top.value) / height) : -1),
    choose: (lane) => (selection.req.value = requests[lane].req),
    reveal,
  });
  const picture = html`<${Picture}
    label=${label}
    draw=${draw}
    inputs=${[chosen?.req, span.from, span.to, requests[0], requests.length, isLive || seq]}
    follows=${cursor.timeUs}
    moves=${top}
    keeps=${isLive ? `${span.from} ${span.to} ${requests[0]?.number} ${requests.length} ${chosen?.req}` : undefined}
    height=${seen + AXIS}
    asTable=${asTable}
    cells=${cells}
    twin=${{
      columns: ["request", "arrived, µs", "state", "queue, µs", "prompt tokens", "prefill chunks", "decode steps", "rounds", "drafts right", "preempted", "computed again"],
      rows: () => {
        const passes = counts();
        return requests.map((request) => {
          const of = /** @type {NonNullable<ReturnType<typeof passes.get>>} */ (passes.get(request));
          const queued = phasesOf(store, request, seq, now).filter(({ state }) => state === "waiting");
          return [
            request.name, Math.round(arrivalOf(store, request)), store.stateAt(request, seq)?.to ?? "",
            Math.round(queued.reduce((sum, { from, to }) => sum + to - from, 0)), request.added?.prompt_tok ?? "?", of.chunks, of.decodes,
            of.rounds, of.right, request.preempts.filter((each) => each.seq <= seq).length, of.again,
          ];
        });
      },
    }}
  />`;
  return html`<${Panel} title="Requests" about=${label} actions=${actions}>
    <input type="search" id="find-request" class="find" aria-label="find requests" placeholder=${`find: ${SEARCHES}`} data-tip=${SEARCHES} value=${search.value} spellcheck=${false}
      onInput=${(/** @type {any} */ { target }) => (search.value = target.value)} onKeyDown=${(/** @type {any} */ { key, target }) => key === "Escape" && target.blur()} />
    ${problem && html`<${Why} trouble lead=${`${problem} is no duration.`}>A duration is a number with us, ms, s or min, as in >200ms.<//>`}
    ${search.value.trim() && !problem && html`<p class="small dim found">${count(requests.length)} of ${several(within.length, "request")} in this time.</p>`}
    ${asTable.value
      ? picture
      : html`<div class="request-lanes" ref=${scroller} onScroll=${(/** @type {any} */ { target }) => (top.value = target.scrollTop)} style=${{ height: `${seen + AXIS}px` }}>
          <div style=${{ height: `${requests.length * height + AXIS}px` }}><${TimeGestures} span=${span} changes=${gestures}>${picture}<//></div>
        </div>`}
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
 * Lanes that scroll below their picture. Whoever sees the last lane goes on to see it when others come.
 * @param {{full: number, seen: number, lane: number}} heights in pixels: of all lanes, of those that are seen, of one
 */
function useScroll({ full, seen, lane }) {
  const scroller = useRef(/** @type {HTMLDivElement | null} */ (null));
  const top = useSignal(0);
  const before = useRef(0); // the height of all lanes then
  useLayoutEffect(() => {
    const box = scroller.current;
    if (box && (top.value + seen >= before.current || top.value + seen > full)) box.scrollTop = top.value = Math.max(0, full - seen);
    before.current = full;
  }, [full, seen]);
  const reveal = (/** @type {number} */ index) => {
    const box = scroller.current;
    if (!box) return;
    if (index * lane < top.value) box.scrollTop = top.value = index * lane;
    else if ((index + 1) * lane > top.value + seen) box.scrollTop = top.value = (index + 1) * lane - seen;
  };
  return { scroller, top, reveal };
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
