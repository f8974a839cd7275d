// @ts-check
// The model, the machine and the workload that are planned for.

import { html } from "../html.js";
import { count } from "../parts/format.js";
import { Choice, Panel, Slider } from "../parts/panel.js";

/** @type {[string, string][]} */
const WEIGHTS = [["", "as loaded"], ["none", "bf16"], ["int8", "int8"], ["int4", "int4"]];
/** @type {[string, string][]} */
const CACHE = [["", "as loaded"], ["bf16", "bf16"], ["int8", "int8"], ["int4", "int4"]];

/** @param {{session: import("../state/session.js").Session, state: import("./state.js").PlanState}} props */
export function Ask({ session, state }) {
  const { estimate } = state;
  const shapes = estimate.value?.shapes ?? [];
  const machines = estimate.value?.machines ?? ["this"];
  session.source.name.value;
  return html`<${Panel} title="What runs where" about="move a slider: everything is computed again">
    <div class="plan-ask">
      <div class="pick">
        <label for="plan-shape">model</label>
        <select id="plan-shape" value=${state.shape.value} onChange=${(/** @type {any} */ event) => (state.shape.value = event.target.value)}>
          <option value="">${session.store.hello?.model.name ?? "the loaded model"} (loaded)</option>
          ${shapes.map((name) => html`<option value=${name}>${name}</option>`)}
        </select>
      </div>
      <div class="pick">
        <label for="plan-machine">machine</label>
        <select id="plan-machine" value=${state.machine.value} onChange=${(/** @type {any} */ event) => (state.machine.value = event.target.value)}>
          ${machines.map((name) => html`<option value=${name}>${name === "this" ? "this machine" : `${name} (data sheet)`}</option>`)}
        </select>
      </div>
      <${Choice} label="weights" value=${state.quantization.value} options=${WEIGHTS} onChoose=${(/** @type {string} */ name) => (state.quantization.value = name)} />
      <${Choice} label="KV cache" value=${state.kv_cache_dtype.value} options=${CACHE} onChoose=${(/** @type {string} */ name) => (state.kv_cache_dtype.value = name)} />
      <${Powers} label="prompt" unit="tokens" most=${17} value=${state.prompt} />
      <${Powers} label="answer" unit="tokens" most=${14} value=${state.output} />
      <${Powers} label="requests at once" unit="" most=${10} value=${state.batch} />
      <${Slider} label="price an hour" min=${0} max=${10} step=${0.05} value=${state.price_per_hour.value} shown=${state.price_per_hour.value.toFixed(2)}
        onInput=${(/** @type {number} */ value) => (state.price_per_hour.value = value)} />
    </div>
    ${!session.source.isLive && html`<p class="faint small">This is a recorded run: estimates need <code>pellucid serve</code>.</p>`}
    ${state.problem.value &&
    html`<p class="why trouble"><b>The server could not say.</b> ${state.problem.value} <button class="quiet" onClick=${state.retry}>ask again</button></p>`}
  <//>`;
}

/**
 * A slider over powers of two, in quarters between them.
 * @param {{label: string, unit: string, most: number, value: import("@preact/signals-core").Signal<number>}} props
 */
function Powers({ label, unit, most, value }) {
  return html`<${Slider}
    label=${label}
    min=${0}
    max=${most}
    step=${0.25}
    value=${Math.log2(value.value)}
    shown=${`${count(value.value)} ${unit}`}
    onInput=${(/** @type {number} */ power) => (value.value = Math.round(2 ** power))}
  />`;
}
