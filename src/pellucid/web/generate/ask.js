// @ts-check
// The prompt and how tokens are to be chosen. Running it is a request like any other client's.

import { html } from "../html.js";
import { Choice, Panel, Slider } from "../parts/panel.js";
import { EXAMPLES } from "./state.js";

/** @param {{session: import("../state/session.js").Session, state: import("./state.js").GenerateState}} props */
export function Ask({ session, state }) {
  const { runs, source } = session;
  source.name.value;
  const canRun = source.isLive && source.status.value === "open";
  const running = runs.active.value.at(-1);
  const run = () => {
    const { temperature, top_k, top_p, min_p, max_tokens, seed } = state;
    const params = {
      temperature: temperature.value, top_k: top_k.value, top_p: top_p.value, min_p: min_p.value, max_tokens: max_tokens.value,
      seed: seed.value,
    };
    const isChat = state.mode.value === "chat";
    const body = isChat ? { messages: [{ role: "user", content: state.prompt.value }] } : { prompt: state.prompt.value };
    state.whatIf.value = null;
    runs.start(isChat ? "/v1/chat/completions" : "/v1/completions", { ...body, ...params }).catch(() => {});
  };
  return html`<${Panel} title="The prompt" about="a request like any other client's">
    <form
      class="ask"
      onSubmit=${(/** @type {Event} */ event) => {
        event.preventDefault();
        run();
      }}
    >
      <label class="spoken" for="prompt">prompt</label>
      <textarea
        id="prompt"
        rows="2"
        spellcheck=${false}
        value=${state.prompt.value}
        onInput=${(/** @type {any} */ event) => (state.prompt.value = event.target.value)}
        onKeyDown=${(/** @type {KeyboardEvent} */ event) => {
          if (event.key === "Enter" && !event.shiftKey) {
            event.preventDefault();
            if (canRun) run();
          } else if (event.key === "Escape") /** @type {HTMLElement} */ (event.target).blur();
        }}
      ></textarea>
      <div class="row">
        <div class="examples">
          ${EXAMPLES.map(
            (text) => html`<button type="button" class="chip" onClick=${() => (state.prompt.value = text)}>${text}</button>`,
          )}
        </div>
        <${Choice}
          label="as"
          value=${state.mode.value}
          options=${[["text", "text"], ["chat", "a question"]]}
          onChoose=${(/** @type {string} */ mode) => (state.mode.value = mode)}
        />
        ${running
          ? html`<button type="button" onClick=${() => runs.stop(running)}>Stop</button>`
          : html`<button id="run" class="primary" disabled=${!canRun}>Generate</button>`}
      </div>
      <details class="knobs">
        <summary>
          <span>temperature ${state.temperature.value}</span><span>top-p ${state.top_p.value}</span>
          <span>top-k ${state.top_k.value || "all"}</span><span>${state.max_tokens.value} tokens</span><span>seed ${state.seed.value}</span>
        </summary>
        <div class="sliders">
          <${Slider} label="temperature" min=${0} max=${2} step=${0.05} value=${state.temperature.value} onInput=${set(state.temperature)} />
          <${Slider} label="top-p" min=${0.05} max=${1} step=${0.05} value=${state.top_p.value} onInput=${set(state.top_p)} />
          <${Slider} label="top-k" min=${0} max=${100} value=${state.top_k.value} shown=${state.top_k.value || "all"} onInput=${set(state.top_k)} />
          <${Slider} label="min-p" min=${0} max=${0.5} step=${0.01} value=${state.min_p.value} onInput=${set(state.min_p)} />
          <${Slider} label="at most" min=${1} max=${200} value=${state.max_tokens.value} shown=${`${state.max_tokens.value} tokens`} onInput=${set(state.max_tokens)} />
          <${Slider} label="seed" min=${0} max=${99} value=${state.seed.value} onInput=${set(state.seed)} />
        </div>
      </details>
      ${!source.isLive && html`<p class="faint">This is a recorded run: generating needs <code>pellucid serve</code>.</p>`}
      ${runs.problem.value && html`<p class="why trouble"><b>The server refused.</b> ${runs.problem.value}</p>`}
    </form>
  <//>`;
}

/** @param {import("./state.js").Numeric} numeric */
const set = (numeric) => (/** @type {number} */ value) => {
  numeric.value = value;
};
