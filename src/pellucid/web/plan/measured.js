// @ts-check
// Steps of this session beside what the formula gives for the same steps: their own operations and bytes.

import { stepTime } from "../formulas.js";
import { html } from "../html.js";
import { count, digits, inPrefix, inTime } from "../parts/format.js";
import { Badge } from "../parts/numbers.js";
import { Empty, Panel, Why } from "../parts/panel.js";

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

/** @param {number[]} values not empty */
export function median(values) {
  const sorted = values.slice().sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
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
