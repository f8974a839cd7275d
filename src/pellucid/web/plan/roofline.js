// @ts-check
// The roofline with prefill and decode, and the steps of this session beside what the formula gives for them.

import { logarithmic, powerTicks } from "../draw/lines.js";
import { Picture } from "../draw/picture.js";
import { stepTime } from "../formulas.js";
import { html } from "../html.js";
import { Badge, count, digits, inPrefix, inTime, median } from "../parts/numbers.js";
import { Empty, Legend, Panel, Why } from "../parts/panel.js";
import { numberOf } from "./estimate.js";

const HEIGHT = 300;
const [LEFT, RIGHT, ABOVE, BELOW] = [58, 16, 16, 36];
const rate = (/** @type {number} */ value) => `${inPrefix(value)}FLOP/s`;

/**
 * @param {{state: PlanState, measured: MeasuredStep[], asTable: {value: boolean}}} props
 */
export function Roofline({ state, measured, asTable }) {
  const estimate = /** @type {Estimate} */ (state.estimate.value);
  const { flops_per_second: F, bandwidth_bytes_per_second: W } = estimate.machine;
  const value = (/** @type {string} */ name) => numberOf(estimate, name)?.value ?? 0;
  const points = ["prefill", "decode"].map((name) => {
    const intensity = value(`${name}_intensity`);
    return { name, intensity, rate: value(`${name}_flops`) / value(`${name}_seconds`), seconds: value(`${name}_seconds`), isCompute: intensity > F / W };
  });
  const dots = measured.map((step) => ({ ...step, intensity: step.flops / step.bytes, rate: step.flops / (step.us * 1e-6) }));
  const xs = [F / W, ...points.map((each) => each.intensity), ...dots.map((each) => each.intensity)];
  const [lowX, highX] = [10 ** Math.floor(Math.log10(Math.min(...xs) / 2)), 10 ** Math.ceil(Math.log10(Math.max(...xs) * 2))];
  const lowest = Math.min(lowX * W, ...dots.map((each) => each.rate));
  const [lowY, highY] = [10 ** Math.floor(Math.log10(lowest)), 10 ** Math.ceil(Math.log10(F * 1.2))];
  const [prefill, decode] = points;

  /** @param {Surface} surface */
  const draw = ({ ctx, width, palette }) => {
    const x = logarithmic(lowX, highX, LEFT, width - RIGHT);
    const y = logarithmic(lowY, highY, HEIGHT - BELOW, ABOVE);
    ctx.font = `11px ${palette.ui}`;
    ctx.lineWidth = 1;
    ctx.textBaseline = "middle";
    ctx.textAlign = "right";
    for (const tick of powerTicks(lowY, highY)) {
      ctx.strokeStyle = palette.line;
      ctx.beginPath();
      ctx.moveTo(LEFT, y(tick));
      ctx.lineTo(width - RIGHT, y(tick));
      ctx.stroke();
      ctx.fillStyle = palette.ink3;
      ctx.fillText(inPrefix(tick), LEFT - 8, y(tick));
    }
    ctx.textBaseline = "alphabetic";
    ctx.textAlign = "center";
    for (const tick of powerTicks(lowX, highX)) ctx.fillText(digits(tick), x(tick), HEIGHT - BELOW + 16);
    ctx.textAlign = "right";
    ctx.fillText("operations a byte moved", width - RIGHT, HEIGHT - 4);
    ctx.textAlign = "left";
    ctx.fillText("FLOP/s", 4, HEIGHT - 4);
    // The roof: bandwidth up to the ridge, then the peak.
    const roof = new Path2D();
    roof.moveTo(x(lowX), y(Math.max(lowY, lowX * W)));
    roof.lineTo(x(F / W), y(F));
    roof.lineTo(x(highX), y(F));
    const below = new Path2D(roof);
    below.lineTo(x(highX), HEIGHT - BELOW);
    below.lineTo(x(lowX), HEIGHT - BELOW);
    ctx.fillStyle = palette.water2;
    ctx.globalAlpha = 0.45;
    ctx.fill(below);
    ctx.globalAlpha = 1;
    ctx.strokeStyle = palette.water;
    ctx.lineWidth = 2;
    ctx.stroke(roof);
    for (const dot of dots) {
      ctx.globalAlpha = 0.55;
      ctx.fillStyle = dot.kind === "decode" ? palette.owners[1] : dot.kind === "prefill" ? palette.owners[2] : palette.ink3;
      ctx.beginPath();
      ctx.arc(x(dot.intensity), y(Math.max(lowY, dot.rate)), 2.5, 0, 7);
      ctx.fill();
    }
    ctx.globalAlpha = 1;
    for (const point of points) {
      const [px, py] = [x(point.intensity), y(point.rate)];
      ctx.fillStyle = palette.ink;
      ctx.strokeStyle = palette.panel;
      ctx.lineWidth = 2;
      ctx.beginPath();
      ctx.arc(px, py, 6, 0, 7);
      ctx.fill();
      ctx.stroke();
      ctx.font = `600 12px ${palette.ui}`;
      const isRight = px > width - 110;
      ctx.textAlign = isRight ? "right" : "left";
      ctx.fillStyle = palette.ink;
      ctx.fillText(point.name, px + (isRight ? -10 : 10), py + 18);
    }
  };
  const label = `Roofline of ${estimate.machine.name}: peak ${rate(F)}, ridge at ${digits(F / W)} operations a byte; prefill at ${digits(prefill.intensity)}, decode at ${digits(decode.intensity)}.`;
  const all = [...points.map((point) => ({ ...point, name: `${point.name}, estimated` })), ...dots.map((dot) => ({ name: `step ${dot.step}, ${dot.kind}`, intensity: dot.intensity, rate: dot.rate, seconds: dot.us / 1e6 }))];
  return html`<${Panel} title="Roofline" about=${`ridge at ${digits(F / W)} operations a byte; bandwidth ${inPrefix(W)}B/s, peak ${rate(F)}`}>
    <${Picture}
      label=${label}
      draw=${draw}
      inputs=${[estimate, measured]}
      height=${HEIGHT}
      asTable=${asTable}
      twin=${{
        columns: ["point", "operations a byte", "FLOP/s", "time"],
        rows: () => all.map((each) => [each.name, digits(each.intensity), rate(each.rate), inTime(each.seconds * 1e6)]),
      }}
    />
    <${Legend}
      items=${[
        { label: "the roof", colour: "var(--water)", pattern: "line" },
        { label: "this workload, estimated", colour: "var(--ink)" },
        ...(dots.length > 0 ? [{ label: "measured prefill steps", colour: "var(--o3)" }, { label: "measured decode steps", colour: "var(--o2)" }, { label: "both in one step", colour: "var(--ink3)" }] : []),
      ]}
    />
    <${Why} lead=${decode.isCompute ? "Decode waits for arithmetic." : "Decode waits for memory."}>
      A decode step of ${state.batch.value} ${state.batch.value === 1 ? "request" : "requests"} does ${digits(decode.intensity)} operations for each byte it reads; this machine could do ${digits(F / W)} in that
      time. ${decode.isCompute ? "More requests at once would not make it faster." : "More requests at once use the same reading of the weights."} Prefill of ${state.prompt.value} tokens
      does ${digits(prefill.intensity)} and waits for ${prefill.isCompute ? "arithmetic" : "memory"}.
    <//>
  <//>`;
}

const MOST = 2000; // newest steps that are looked at

/** @type {("prefill" | "decode" | "mixed")[]} */
const KINDS = ["prefill", "decode", "mixed"];

/**
 * The newest steps up to a row, each with its estimate.
 * @param {Store["steps"]} steps
 * @param {number} endRow the row after the last that counts
 * @param {{F: number, W: number}} machine operations and bytes a second
 * @returns {MeasuredStep[]}
 */
export function measuredSteps(steps, endRow, { F, W }) {
  const found = [];
  for (let row = Math.max(steps.first, endRow - MOST); row < endRow; row++) {
    const flops = steps.get("flops", row);
    const bytes = steps.get("w_bytes", row) + steps.get("kv_read_bytes", row) + steps.get("kv_write_bytes", row);
    const us = steps.get("fwd_us", row);
    if (flops <= 0 || bytes <= 0 || us <= 0) continue;
    found.push({ kind: KINDS[steps.get("kind", row)], step: steps.get("step", row), us, predictedUs: stepTime.of({ flops, F, bytes, W }) * 1e6, flops, bytes });
  }
  return found;
}

/**
 * How far the steps of each kind are from the formula.
 * @param {MeasuredStep[]} steps
 */
export function errors(steps) {
  return KINDS.map((kind) => {
    const own = steps.filter((each) => each.kind === kind);
    if (own.length === 0) return null;
    return {
      kind, count: own.length, us: median(own.map((each) => each.us)), predictedUs: median(own.map((each) => each.predictedUs)),
      ratio: median(own.map((each) => each.us / each.predictedUs)),
      bytesPerSecond: median(own.map((each) => each.bytes / (each.us * 1e-6))), flopsPerSecond: median(own.map((each) => each.flops / (each.us * 1e-6))),
    };
  }).filter((each) => each !== null);
}

/**
 * @param {{state: PlanState, measured: MeasuredStep[]}} props
 */
export function Checked({ state, measured }) {
  if (!state.isOwn.value)
    return html`<${Panel} title="Measured in this session"><${Empty}><p>Choose the loaded model on this machine, as loaded: then its steps are laid over.</p><//><//>`;
  if (measured.length === 0)
    return html`<${Panel} title="Measured in this session"><${Empty}><p>No step has run yet. Generate something: its steps appear here beside their estimates.</p><//><//>`;
  const machine = /** @type {Estimate} */ (state.estimate.value).machine;
  const rows = errors(measured);
  const largest = rows.reduce((most, row) => (row.count > most.count ? row : most));
  return html`<${Panel} title="Measured in this session" about=${`the newest ${count(measured.length)} steps, medians; each against the formula for its own operations and bytes`}>
    <div class="wide-table"><table>
      <thead><tr><th scope="col">steps</th><th class="number" scope="col">how many</th><th class="number" scope="col">measured</th><th class="number" scope="col">by formula</th><th class="number" scope="col">measured / formula</th><th class="number" scope="col">reached</th></tr></thead>
      <tbody>
        ${rows.map(
          (row) => html`<tr>
            <th scope="row">${row.kind}</th>
            <td class="number">${count(row.count)}<${Badge} of="steps" kind="C" from="step events" /></td>
            <td class="number">${inTime(row.us)}<${Badge} of="measured time" kind="M" from="step.fwd_us, median" /></td>
            <td class="number">${inTime(row.predictedUs)}<${Badge} of="estimated time" kind="E" formula=${stepTime} inputs=${{ F: machine.flops_per_second, W: machine.bandwidth_bytes_per_second }} from="step.flops and its bytes" /></td>
            <td class="number"><b>${digits(row.ratio)}</b><${Badge} of="ratio" kind="M" from="median of step.fwd_us / formula" /></td>
            <td class="number">${inPrefix(row.bytesPerSecond)}B/s · ${inPrefix(row.flopsPerSecond)}FLOP/s</td>
          </tr>`,
        )}
      </tbody>
    </table></div>
    <${Why} lead=${`Half of the ${largest.kind} steps took more than ${digits(largest.ratio)} times the formula, half less.`}>
      The formula counts arithmetic and bytes only: 1 would be a step without any overhead. Small models pay for the work around each matrix,
      and what else this machine does shows here too.
    <//>
  <//>`;
}
