// @ts-check
// What is compared: the kind, the prompt and the length. Running it runs all arms on this engine.

import { html } from "../html.js";
import { Choice, Panel, Slider } from "../parts/panel.js";
import { KINDS } from "./state.js";

/** @type {Record<string, string>} */
const ABOUT = {
  cache: "the same prompt twice on engines of their own over the same weights: one keeps keys and values, one computes them again for each token",
  kv_dtype: "the same prompt with the KV cache in three formats",
  batch: "the same requests one after the other, then together",
};

/** @param {{session: import("../state/session.js").Session, state: import("./state.js").CompareState}} props */
export function Ask({ session, state }) {
  const { source } = session;
  source.name.value;
  const canRun = source.isLive && source.status.value === "open";
  return html`<${Panel} title="The comparison" about=${ABOUT[state.kind.value]}>
    <form
      class="compare-ask"
      onSubmit=${(/** @type {Event} */ event) => {
        event.preventDefault();
        state.start();
      }}
    >
      <${Choice} label="compare" value=${state.kind.value} options=${KINDS} onChoose=${(/** @type {string} */ kind) => {
        state.kind.value = kind;
        state.at.value = -1;
      }} />
      <label class="spoken" for="compare-prompt">prompt</label>
      <input
        id="compare-prompt"
        type="text"
        class="mono"
        spellcheck=${false}
        value=${state.prompt.value}
        onInput=${(/** @type {any} */ event) => (state.prompt.value = event.target.value)}
        onKeyDown=${(/** @type {KeyboardEvent} */ event) => event.key === "Escape" && /** @type {HTMLElement} */ (event.target).blur()}
      />
      <${Slider} label="tokens" min=${4} max=${256} step=${4} value=${state.tokens.value} onInput=${(/** @type {number} */ n) => (state.tokens.value = n)} />
      ${state.kind.value === "batch" &&
      html`<${Slider} label="requests" min=${2} max=${32} value=${state.batch.value} onInput=${(/** @type {number} */ n) => (state.batch.value = n)} />`}
      ${state.stop.value
        ? html`<button type="button" onClick=${() => state.stop.value?.abort()}>Stop</button>`
        : html`<button id="compare-run" class="primary" disabled=${!canRun}>Run both</button>`}
    </form>
    ${!source.isLive && html`<p class="faint">This is a recorded run: a comparison needs <code>pellucid serve</code>.</p>`}
    ${state.problem.value && html`<p class="why trouble"><b>The server refused.</b> ${state.problem.value}</p>`}
  <//>`;
}
