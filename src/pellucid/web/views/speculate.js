// @ts-check
// Speculate: the same text with and without drafts, what was drafted, what the model chose, and whether it paid.

import { html } from "../html.js";
import { several } from "../parts/numbers.js";
import { Choice, focusOn, NeedsServer, Panel, press, Prompt, Refused, Slider, submits, useKeys } from "../parts/panel.js";
import { Replay } from "../parts/replay.js";
import { Both, ByPosition, EXAMPLES, Paid, Rounds, roundsOf, speculateState } from "../speculate/drafts.js";

/** @param {{session: Session}} props */
export function View({ session }) {
  const state = speculateState(session);
  state.version.value;
  const rounds = roundsOf(session, state);
  useKeys("Speculate", [
    focusOn("/", "to the prompt", "speculate-prompt"),
    press("r", "run with and without drafts", "#speculate-both, #replay"),
    press("g", "generate on the engine that serves", "#speculate-run"),
  ]);
  const isDone = state.latest?.run.end;
  const table = html`<${Rounds} session=${session} state=${state} rounds=${rounds} />`;
  return html`
    <div class="column">
      <${Ask} session=${session} state=${state} />
      <${Both} state=${state} />
      ${!isDone && table}
    </div>
    <div class="column">
      <${Paid} session=${session} state=${state} />
      <${ByPosition} rounds=${rounds} />
    </div>
    ${isDone && table}
  `;
}

/** A recorded run in words. @param {any} body */
const nameOf = ({ prompt, drafter, num_drafts }) =>
  `${EXAMPLES.find(([, text]) => text === prompt)?.[0] ?? "another text"}, ${drafter === "ngram" ? "prompt lookup" : "draft model"}, ${several(num_drafts, "draft")} a round`;

/** @param {{session: Session, state: SpeculateState}} props */
function Ask({ session, state }) {
  const { runs, source, store } = session;
  if (source.isRecording) {
    const recorded = session.recorded.runs("/v1/compare", (body) => body.kind === "drafts");
    return html`<${Panel} title="A text to draft" about="a cheap helper guesses the next tokens, and one pass of the model checks them all">
      <${Replay} session=${session} runs=${recorded} nameOf=${nameOf} state=${state} what="A text" />
    <//>`;
  }
  const canRun = source.canRun && !state.stop.value && runs.active.value.length === 0;
  const both = () => canRun && state.start();
  const onEngine = () => {
    state.shown.value = "engine";
    runs.start("/v1/completions", { prompt: state.prompt.value, max_tokens: state.tokens.value, temperature: 0, ignore_eos: true }).catch(() => {});
  };
  return html`<${Panel} title="A text to draft" about="a cheap helper guesses the next tokens, and one pass of the model checks them all">
    <form class="ask" onSubmit=${submits(both)}>
      <${Prompt} id="speculate-prompt" of=${state.prompt} onEnter=${both} />
      <div class="sliders two">
        <${Slider} label="k, drafts a round" min=${1} max=${12} of=${state.k} />
        <${Slider} label="new tokens" min=${16} max=${128} step=${8} of=${state.tokens} />
      </div>
      <div class="row">
        <div class="examples">${EXAMPLES.map(([name, text]) => html`<button type="button" class="chip" onClick=${() => (state.prompt.value = text)}>${name}</button>`)}</div>
        <${Choice} label="drafts by" of=${state.drafter} options=${[["draft", "draft model"], ["ngram", "prompt lookup"]]} />
        ${state.stop.value
          ? html`<button type="button" onClick=${() => state.stop.value?.abort()}>Stop</button>`
          : html`<button id="speculate-both" class="primary" disabled=${!canRun}>Run with and without</button>`}
        <button type="button" id="speculate-run" disabled=${!canRun} onClick=${onEngine} data-tip=${`this engine speculates: ${store.hello?.speculation ?? "off"}`}>Generate on this server</button>
      </div>
      <p class="faint small">${state.drafter.value === "ngram"
        ? "Prompt lookup: where the last tokens stood before in the text, what followed there is the draft. It costs next to nothing and finds only repetitions."
        : "A draft model: a smaller model with the same tokens writes the draft. It costs a pass of its own for each draft, and guesses new text too."}</p>
      <${NeedsServer} session=${session} what="generating" />
      <${Refused} problem=${state.problem.value || runs.problem.value} />
    </form>
  <//>`;
}
