// @ts-check
// The steps of the engine on the timeline's axis, each split into its parts.

import { hatch } from "../draw/hues.js";
import { Picture } from "../draw/picture.js";
import { html, useRef } from "../html.js";
import { Badge, count, Fact, Facts, inTime, percent, several } from "../parts/numbers.js";
import { Legend, Panel, Why } from "../parts/panel.js";
import { STEP_KINDS } from "../state/store.js";
import { TimeGestures } from "./gestures.js";
import { AXIS, clipTo, drawAxis, drawCursor, partToDraw, rowsIn, scaleOf, startOf, stepLanes } from "./span.js";

const STEPS_HEIGHT = 44;

/** @type {[StepPart, string, "solid" | "hatched", "water" | "ink3"][]} in their order within a step */
export const STEP_PARTS = [
  ["sched_us", "schedule", "solid", "ink3"],
  ["fwd_us", "forward", "solid", "water"],
  ["sample_us", "sample", "hatched", "water"],
  ["emit_us", "emit", "hatched", "ink3"],
];

/** @param {{session: Session, span: Span, gestures: TimeChanges, asTable: {value: boolean}}} props */
export function Steps({ session, span, gestures, asTable }) {
  const { store, cursor } = session;
  const { steps } = store;
  const seq = cursor.seq.value;
  const [first, end] = rowsIn(store, span, seq);
  const current = store.rowAt(steps, seq);
  const lanes = stepLanes(store);
  const numLanes = lanes.num;
  const laneHeight = (STEPS_HEIGHT - 4) / numLanes;
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
    for (let lane = 0; lane < numLanes; lane++) {
      const inLane = (/** @type {number} */ row) => {
        while (row < to && lanes.of(row) !== lane) row++;
        return row;
      };
      const bottom = 2 + (lane + 1) * laneHeight - (numLanes > 1 ? 1 : 0);
      for (let row = inLane(from), next = row; row < to; row = next) {
        // Steps that share a few pixels are drawn as one, with the sums of their parts.
        const times = [0, 0, 0, 0];
        const began = startOf(store, row);
        do {
          STEP_PARTS.forEach(([field], part) => (times[part] += steps.get(field, next)));
          next = inLane(next + 1);
        } while (next < to && x(steps.get("t_us", next)) - x(began) < 3);
        let at = began;
        STEP_PARTS.forEach(([field, , pattern, colour], part) => {
          const top = 2 + (lane + (field === "fwd_us" ? 0 : 0.25)) * laneHeight;
          const left = x(at);
          const wide = x(at += times[part]) - left;
          ctx.fillStyle = palette[colour];
          ctx.globalAlpha = pattern === "hatched" ? 0.5 : 1;
          if (pattern === "hatched" && wide > 3) hatch(ctx, left, top, wide, bottom - top, palette[colour], 4);
          else ctx.fillRect(left, top, Math.max(0.4, wide), bottom - top);
        });
        ctx.globalAlpha = 1;
      }
    }
    ctx.restore();
    // A step that others overlap ends behind the beginning of the next: then all is drawn again.
    drawnTo.current = to > from && numLanes === 1 ? steps.get("t_us", to - 1) : span.from;
    if (!isLive && now >= span.from && now <= span.to) drawCursor(surface, x(now), STEPS_HEIGHT);
  };
  const label = `${several(num, "step")} in ${inTime(Math.min(span.to, store.head.t_us) - span.from)}.`;
  /** @param {number} row */
  const describe = (row) => `Step ${steps.get("step", row)}, ${STEP_KINDS[steps.get("kind", row)]}: ${STEP_PARTS.map(([field, name]) => `${name} ${inTime(steps.get(field, row))}`).join(", ")}`;
  const shown = current >= steps.first ? current : -1;
  return html`<${Panel} title="Steps" about="what the engine did, on the same axis; a click goes to that step">
    <${TimeGestures} span=${span} changes=${gestures}>
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
            const top = 2 + lanes.of(first + index) * laneHeight;
            return { x: left, y: top, width: Math.max(3, x(steps.get("t_us", first + index)) - left), height: laneHeight };
          },
          hit: (px, py) => {
            const lane = Math.max(0, Math.min(numLanes - 1, Math.floor((py - 2) / laneHeight)));
            for (let row = first; row < end; row++) {
              if (lanes.of(row) === lane && px <= x(steps.get("t_us", row)) + 1) return px >= x(startOf(store, row)) - 1 ? row - first : -1;
            }
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
    <//>
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
        ${inTime(busy / num)} each. The forward pass is ${percent(sums.fwd_us / Math.max(1, busy))} of that; what remains is the engine's own work around it.${numLanes > 1 && html` Up to ${several(numLanes, "step")} were under way at the same time, on several machines: the forward pass of each has the wait for those before it.`}
      <//>`}
  <//>`;
}
