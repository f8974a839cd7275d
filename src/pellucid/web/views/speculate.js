// @ts-check
// Speculate: what was guessed, what the model chose, and whether it paid.

import { html, useSignal } from "../html.js";
import { useKeys } from "../parts/keys.js";
import { Panel } from "../parts/panel.js";
import { Paid } from "../speculate/paid.js";
import { ByPosition, Rounds } from "../speculate/rounds.js";

const REPEATS = "The cat sat on the mat. The dog sat on the mat. The cat sat on the mat. The dog sat on the mat. The cat sat on";

/** @param {{session: import("../state/session.js").Session}} props */
export function View({ session }) {
  const { cursor } = session;
  const seq = cursor.seq.value;
  const request = session.request.value;
  const rounds = request ? request.drafts.filter((each) => each.seq <= seq) : [];
  return html`
    <div class="column">
      <${Start} session=${session} />
      <${Rounds} session=${session} rounds=${rounds} />
    </div>
    <div class="column">
      <${Paid} session=${session} />
      <${ByPosition} rounds=${rounds} />
    </div>
  `;
}

/** @param {{session: import("../state/session.js").Session}} props */
function Start({ session }) {
  const { runs, source, store } = session;
  const prompt = useSignal(REPEATS);
  source.name.value;
  const canRun = source.isLive && source.status.value === "open" && runs.active.value.length === 0;
  const run = () => {
    if (!canRun) return;
    runs.start("/v1/completions", { prompt: prompt.value, max_tokens: 48, temperature: 0, ignore_eos: true }).catch(() => {});
  };
  useKeys("Speculate", [
    { keys: ["/"], says: "to the prompt", run: () => document.getElementById("speculate-prompt")?.focus() },
    { keys: ["r"], says: "run", run: () => document.getElementById("speculate-run")?.click() },
  ]);
  const speculation = store.hello?.speculation;
  return html`<${Panel} title="A text to guess" about=${speculation && `this engine speculates: ${speculation}`}>
    <form class="ask" onSubmit=${(/** @type {Event} */ event) => {
      event.preventDefault();
      run();
    }}>
      <label class="spoken" for="speculate-prompt">prompt</label>
      <textarea id="speculate-prompt" rows="2" spellcheck=${false} value=${prompt.value} onInput=${(/** @type {any} */ event) => (prompt.value = event.target.value)}></textarea>
      <div class="row"><button id="speculate-run" class="primary" disabled=${!canRun}>Generate 48 tokens</button></div>
      ${!source.isLive && html`<p class="faint">This is a recorded run: generating needs <code>pellucid serve</code>.</p>`}
      ${runs.problem.value && html`<p class="why trouble"><b>The server refused.</b> ${runs.problem.value}</p>`}
    </form>
  <//>`;
}
