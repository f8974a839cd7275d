// @ts-check
// Compare: the same work done two ways by this engine, side by side: with and without the cache, formats of it, one and many.

import { Curves, Figures } from "../compare/figures.js";
import { Loops } from "../compare/loops.js";
import { compareState, KINDS } from "../compare/run.js";
import { html } from "../html.js";
import { Choice, focusOn, press, Prompt, Slider, submits, tableKey } from "../parts/controls.js";
import { useAsTable } from "../draw/picture.js";
import { useKeys } from "../parts/keys.js";
import { NeedsServer, Panel, Refused } from "../parts/panel.js";

/** @type {Record<string, string>} */
const ABOUT = {
  cache: "the same prompt twice on engines of their own over the same weights: one keeps keys and values, one computes them again for each token",
  kv_dtype: "the same prompt with the KV cache in three formats",
  batch: "the same requests one after the other, then together",
};

/** @param {{session: Session}} props */
export function View({ session }) {
  const state = compareState(session);
  const asTable = useAsTable();
  state.version.value;
  useKeys("Compare", [
    press("r", "run", "#compare-run"),
    { keys: ["k"], says: "the next kind of comparison", run: state.nextKind },
    focusOn("/", "to the prompt", "compare-prompt"),
    { keys: [","], says: "a token back", run: () => state.move(-1) },
    { keys: ["."], says: "a token on", run: () => state.move(1) },
    { keys: ["Escape"], says: "the end, or what runs", run: () => (state.at.value = -1) },
    tableKey(asTable),
  ]);
  return html`
    <${Ask} session=${session} state=${state} />
    <${Loops} state=${state} />
    <${Figures} state=${state} />
    <${Curves} state=${state} asTable=${asTable} />
  `;
}

/** What is compared. Running it runs all arms on this engine. @param {{session: Session, state: CompareState}} props */
function Ask({ session, state }) {
  const { kind, stop } = state;
  const run = () => session.source.canRun && state.start();
  return html`<${Panel} title="The comparison" about=${ABOUT[kind.value]}>
    <form class="compare-ask" onSubmit=${submits(run)}>
      <${Choice} label="compare" of=${kind} options=${KINDS} onChoose=${() => (state.at.value = -1)} />
      <${Prompt} id="compare-prompt" rows=${1} of=${state.prompt} onEnter=${run} />
      <${Slider} label="tokens" min=${4} max=${256} step=${4} of=${state.tokens} />
      ${kind.value === "batch" && html`<${Slider} label="requests" min=${2} max=${32} of=${state.batch} />`}
      ${stop.value
        ? html`<button type="button" onClick=${() => stop.value?.abort()}>Stop</button>`
        : html`<button id="compare-run" class="primary" disabled=${!session.source.canRun}>Run ${kind.value === "kv_dtype" ? "all three" : "both"}</button>`}
    </form>
    <${NeedsServer} session=${session} what="a comparison" />
    <${Refused} problem=${state.problem.value} />
  <//>`;
}
