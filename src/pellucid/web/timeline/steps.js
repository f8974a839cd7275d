// @ts-check
// The steps of the engine on the same axis as the lanes: scheduling, forward, sampling, emitting, and idle time between them.

import { hatch } from "../draw/hues.js";
import { Picture } from "../draw/picture.js";
import { html } from "../html.js";
import { count, inTime, percent } from "../parts/format.js";
import { Badge, Fact, Facts } from "../parts/numbers.js";
import { Legend, Panel, Why } from "../parts/panel.js";
import { STEP_KINDS } from "../state/store.js";
import { drawAxis, drawCursor, rowsIn, scaleOf, startOf } from "./lanes.js";

const HEIGHT = 44;
const AXIS = 22;

/** @type {[StepPart, string, "solid" | "hatched", "water" | "ink3"][]} in their order within a step */
export const PARTS = [
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
  const now = cursor.timeUs.value;
  const [first, end] = rowsIn(store, span, seq);
  const current = cursor.stepRow.value;
  const isLive = cursor.isLive.value;
  const sums = { sched_us: 0, fwd_us: 0, sample_us: 0, emit_us: 0 };
  let idle = 0;
  for (let row = first; row < end; row++) {
    for (const [field] of PARTS) sums[field] += steps.get(field, row);
    if (row > first) idle += steps.get("idle_us", row);
  }
  const busy = sums.sched_us + sums.fwd_us + sums.sample_us + sums.emit_us;
  const num = end - first;
  let x = scaleOf(span, 600);
  /** @param {Surface} surface */
  const draw = (surface) => {
    const { ctx, width, palette } = surface;
    x = scaleOf(span, width);
    drawAxis(surface, span, x, HEIGHT);
    let last = -Infinity;
    for (let row = first; row < end; row++) {
      let at = startOf(store, row);
      const right = x(steps.get("t_us", row));
      if (right - last < 0.5) continue; // denser than pixels
      last = right;
      for (const [field, , pattern, colour] of PARTS) {
        const left = x(at);
        at += steps.get(field, row);
        const wide = x(at) - left;
        const top = field === "fwd_us" ? 2 : 12;
        ctx.fillStyle = palette[colour];
        if (pattern === "hatched" && wide > 3) hatch(ctx, left, top, wide, HEIGHT - 2 - top, palette[colour], 4);
        else {
          ctx.globalAlpha = pattern === "hatched" ? 0.5 : 1;
          ctx.fillRect(left, top, Math.max(0.4, wide), HEIGHT - 2 - top);
          ctx.globalAlpha = 1;
        }
      }
    }
    if (!isLive && now >= span.from && now <= span.to) drawCursor(surface, x(now), HEIGHT);
  };
  const label = `${count(num)} steps in ${inTime(span.to - span.from)}.`;
  /** @param {number} row */
  const describe = (row) => `Step ${steps.get("step", row)}, ${STEP_KINDS[steps.get("kind", row)]}: ${PARTS.map(([field, name]) => `${name} ${inTime(steps.get(field, row))}`).join(", ")}`;
  const shown = current >= steps.first ? current : -1;
  return html`<${Panel} title="Steps" about="what the engine did, on the same axis; a click goes to that step">
    <${Picture}
      label=${label}
      draw=${draw}
      inputs=${[seq, now, span.from, span.to, num]}
      height=${HEIGHT + AXIS}
      asTable=${asTable}
      cells=${/** @type {Cells} */ ({
        count: num,
        columns: 10,
        describe: (index) => describe(first + index),
        rect: (index) => {
          const left = x(startOf(store, first + index));
          return { x: left, y: 2, width: Math.max(3, x(steps.get("t_us", first + index)) - left), height: HEIGHT - 4 };
        },
        hit: (px) => {
          for (let row = first; row < end; row++) if (px <= x(steps.get("t_us", row)) + 1) return px >= x(startOf(store, row)) - 1 ? row - first : -1;
          return -1;
        },
        choose: (index) => cursor.seekStep(first + index),
      })}
      twin=${{
        columns: ["step", "kind", "requests", "tokens", "idle, µs", ...PARTS.map(([, name]) => `${name}, µs`), "all four, µs"],
        rows: () =>
          Array.from({ length: num }, (_, index) => {
            const row = first + index;
            const parts = PARTS.map(([field]) => steps.get(field, row));
            const batch = store.batch(row);
            return [
              steps.get("step", row), STEP_KINDS[steps.get("kind", row)], batch.length, batch.reduce((sum, { q_tok }) => sum + q_tok, 0),
              steps.get("idle_us", row), ...parts, parts.reduce((sum, part) => sum + part, 0),
            ];
          }),
      }}
    />
    <${Legend} items=${PARTS.map(([, name, pattern, colour]) => ({ label: name, pattern, colour: `var(--${colour})` }))} />
    ${shown >= 0 &&
    html`<p class="small dim"><b>Step ${count(steps.get("step", shown))}</b> (${STEP_KINDS[steps.get("kind", shown)]}): ${PARTS.map(([field, name]) => `${name} ${inTime(steps.get(field, shown))}`).join(" + ")} = ${inTime(PARTS.reduce((sum, [field]) => sum + steps.get(field, shown), 0))}<${Badge} of="the step" kind="M" from="step.sched_us, fwd_us, sample_us, emit_us" /></p>`}
    ${num > 0 &&
    html`<${Facts}>
        <${Fact} label="forward" value=${percent(sums.fwd_us / Math.max(1, busy))} unit="of the steps' time" kind="M" from="Σ step.fwd_us of the steps shown" />
        <${Fact} label="sampling" value=${percent(sums.sample_us / Math.max(1, busy))} unit=${inTime(sums.sample_us)} kind="M" from="Σ step.sample_us of the steps shown" />
        <${Fact} label="schedule and emit" value=${percent((sums.sched_us + sums.emit_us) / Math.max(1, busy))} unit=${inTime(sums.sched_us + sums.emit_us)} kind="M" from="Σ step.sched_us + Σ step.emit_us of the steps shown" />
        <${Fact} label="idle" value=${percent(idle / Math.max(1, busy + idle))} unit=${inTime(idle)} kind="M" from="Σ step.idle_us between the steps shown" />
      <//>
      <${Why} lead=${`${count(num)} steps took ${inTime(busy)}:`}>
        ${inTime(busy / num)} each. The forward pass is ${percent(sums.fwd_us / Math.max(1, busy))} of that; what remains is the engine's own work around it.
      <//>`}
  <//>`;
}
