// @ts-check
// The formula checked: steps of this session beside the time that the formula gives them.

import { stepTime } from "../formulas.js";
import { html } from "../html.js";
import { count, digits, inTime, scaled } from "../parts/format.js";
import { Badge } from "../parts/numbers.js";
import { Empty, Panel, Why } from "../parts/panel.js";
import { errors } from "./measured.js";

/**
 * @param {{state: import("./state.js").PlanState, measured: import("./measured.js").Measured[]}} props
 */
export function Checked({ state, measured }) {
  if (!state.isOwn.value)
    return html`<${Panel} title="Measured in this session"><${Empty}><p>Choose the loaded model on this machine, as loaded: then its steps are laid over.</p><//><//>`;
  if (measured.length === 0)
    return html`<${Panel} title="Measured in this session"><${Empty}><p>No step has run yet. Generate something: its steps appear here beside their estimates.</p><//><//>`;
  const machine = /** @type {import("./state.js").Estimate} */ (state.estimate.value).machine;
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
            <td class="number">${scaled(row.bytesPerSecond).join(" ")}B/s · ${scaled(row.flopsPerSecond).join(" ")}FLOP/s</td>
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
