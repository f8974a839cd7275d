// @ts-check
// Plan: memory, speed and cost by formula, with this session's measurements laid over.

import { useAsTable } from "../draw/picture.js";
import { html, useMemo } from "../html.js";
import { count } from "../parts/numbers.js";
import { Choice, Empty, focusOn, Panel, Refused, Select, Slider, tableKey, useKeys } from "../parts/panel.js";
import { Checked, measuredSteps, Memory, planState, Roofline, Speed } from "../plan/estimate.js";

/** @param {{session: Session}} props */
export function View({ session }) {
  const state = planState(session);
  const { store, cursor } = session;
  const asTable = useAsTable();
  const estimate = state.estimate.value;
  const endRow = cursor.stepRow.value + 1;
  const isOwn = state.isOwn.value;
  const machine = estimate?.machine;
  const measured = useMemo(
    () => (machine && isOwn ? measuredSteps(store.steps, Math.min(endRow, store.steps.end), { F: machine.flops_per_second, W: machine.bandwidth_bytes_per_second }) : []),
    [endRow, machine, isOwn],
  );
  const { batch } = state;
  useKeys("Plan", [
    focusOn("m", "choose the model", "plan-shape"),
    focusOn("p", "choose the machine", "plan-machine"),
    { keys: ["+"], says: "twice as many requests at once", run: () => (batch.value = Math.min(1024, batch.value * 2)) },
    { keys: ["-"], says: "half as many", run: () => (batch.value = Math.max(1, Math.round(batch.value / 2))) },
    tableKey(asTable),
  ]);
  return html`
    <div class="column">
      <${Ask} session=${session} state=${state} />
      ${estimate && html`<${Memory} state=${state} />`}
    </div>
    <div class="column">
      ${estimate
        ? html`<${Speed} state=${state} /><${Roofline} state=${state} measured=${measured} asTable=${asTable} />`
        : html`<${Panel} title="Roofline"><${Empty}><p>${session.source.isRecording ? "The table of models is being read." : session.source.canRun ? "This machine is being measured, which takes a second or two." : "Estimates come from a running server."}</p><//><//>`}
    </div>
    ${estimate && html`<${Checked} state=${state} measured=${measured} />`}
  `;
}

/** @type {[string, number, number][]} what it is, tokens of prompt and answer */
const WORKLOADS = [["a short chat", 50, 200], ["a question about 100,000 tokens", 100_000, 200]];

/** The model, the machine and the workload that are planned for. @param {{session: Session, state: PlanState}} props */
function Ask({ session, state }) {
  const { machines = ["this"], shapes = [] } = state.estimate.value ?? {};
  const models = [["", `${session.store.hello?.model.name ?? "the loaded model"} (loaded)`], ...shapes.map((name) => [name, name])];
  const formats = (/** @type {string} */ plain) => [["", "as loaded"], [plain, "bf16"], ["int8", "int8"], ["int4", "int4"]];
  const cacheFormats = [...formats("bf16"), ["int8,int4", "keys int8, values int4"]];
  return html`<${Panel} title="What runs where" about="move a slider: everything is computed again">
    <div class="plan-ask">
      <div class="pick"><label for="plan-shape">model</label><${Select} id="plan-shape" of=${state.shape} options=${models} /></div>
      <div class="pick">
        <label for="plan-machine">machine</label>
        <${Select} id="plan-machine" of=${state.machine} options=${machines.map((name) => [name, name === "this" ? (session.source.isRecording ? "the recording's machine" : "this machine") : `${name} (data sheet)`])} />
      </div>
      <${Choice} label="weights" of=${state.quantization} options=${formats("none")} />
      <${Choice} label="KV cache" of=${state.kv_cache_dtype} options=${cacheFormats} />
      <div class="examples">${WORKLOADS.map(
        ([name, prompt, output]) => html`<button type="button" class="chip" onClick=${() => {
          state.prompt.value = prompt;
          state.output.value = output;
        }}>${name}</button>`,
      )}</div>
      <${Powers} label="prompt" unit="tokens" most=${17} of=${state.prompt} />
      <${Powers} label="answer" unit="tokens" most=${14} of=${state.output} />
      <${Powers} label="requests at once" most=${10} of=${state.batch} />
      <${Slider} label="price an hour" max=${10} step=${0.05} of=${state.price_per_hour} shown=${state.price_per_hour.value.toFixed(2)} />
    </div>
    ${session.source.isRecording && html`<p class="faint small">Computed here, by the formulas of <code>pellucid plan</code>.</p>`}
    <${Refused} lead="The server could not say." problem=${state.problem.value && html`${state.problem.value} <button class="quiet" onClick=${state.retry}>ask again</button>`} />
  <//>`;
}

/** A slider over powers of two, in quarters between them. @param {{label: string, unit?: string, most: number, of: Numeric}} props */
const Powers = ({ label, unit = "", most, of }) => html`<${Slider}
  label=${label} max=${most} step=${0.25} value=${Math.log2(of.value)} shown=${`${count(of.value)} ${unit}`}
  onInput=${(/** @type {number} */ power) => (of.value = Math.round(2 ** power))}
/>`;
