// @ts-check
// The load: how many requests, how fast they arrive, how long they are, what they share, and the limits for goodput.

import { html } from "../html.js";
import { Choice, Panel, Slider } from "../parts/panel.js";

/** @param {{session: import("../state/session.js").Session, state: import("./state.js").ServeState}} props */
export function Ask({ session, state }) {
  const { source } = session;
  source.name.value;
  const canRun = source.isLive && source.status.value === "open";
  /**
   * @param {string} label
   * @param {import("@preact/signals-core").Signal<number>} value
   * @param {{min: number, max: number, step?: number, unit?: string}} range
   */
  const slider = (label, value, { min, max, step = 1, unit = "" }) =>
    html`<${Slider} label=${label} min=${min} max=${max} step=${step} value=${value.value} shown=${`${value.value} ${unit}`} onInput=${(/** @type {number} */ n) => (value.value = n)} />`;
  return html`<${Panel} title="The load" about="requests like any others; the same arrivals, lengths and prompts under both disciplines">
    <form
      class="serve-ask"
      onSubmit=${(/** @type {Event} */ event) => {
        event.preventDefault();
        state.start();
      }}
    >
      <div class="sliders">
        ${slider("requests", state.requests, { min: 2, max: 120 })} ${slider("arrivals", state.rate, { min: 0.5, max: 60, step: 0.5, unit: "/s" })}
        ${slider("prompts around", state.promptTok, { min: 8, max: 256, step: 8, unit: "tok" })} ${slider("answers around", state.outputTok, { min: 8, max: 128, step: 8, unit: "tok" })}
        ${slider("shared prefix", state.prefixTok, { min: 0, max: 256, step: 16, unit: "tok" })} ${slider("static batches of", state.seats, { min: 2, max: 32 })}
        ${slider("good: first in", state.firstSlo, { min: 0.05, max: 3, step: 0.05, unit: "s" })} ${slider("good: each in", state.betweenSlo, { min: 0.005, max: 0.5, step: 0.005, unit: "s" })}
        ${slider("price an hour", state.price, { min: 0, max: 10, step: 0.25 })} ${slider("seed", state.seed, { min: 0, max: 99 })}
      </div>
      <div class="row">
        <${Choice} label="batching" value=${state.discipline.value} options=${[["both", "both"], ["static", "static"], ["continuous", "continuous"]]}
          onChoose=${(/** @type {string} */ name) => (state.discipline.value = name)} />
        ${state.stop.value
          ? html`<button type="button" id="load-stop" onClick=${() => state.stop.value?.abort()}>Stop</button>`
          : html`<button id="load-run" class="primary" disabled=${!canRun}>Send the load</button>`}
      </div>
    </form>
    ${!source.isLive && html`<p class="faint small">This is a recorded run: a load needs <code>pellucid serve</code>.</p>`}
    ${state.problem.value && html`<p class="why trouble"><b>The server refused.</b> ${state.problem.value}</p>`}
  <//>`;
}
