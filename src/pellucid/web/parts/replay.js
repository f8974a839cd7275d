// @ts-check
// What a page without an engine shows where others ask one: the recorded runs, each with what was asked, to be played again.

import { html, useEffect } from "../html.js";

/**
 * @param {{session: Session, runs: RecordedRun[], nameOf: (body: any) => any, state: {stop: {value: AbortController | null}, play: (body: any) => void, asked: any},
 *   what: string}} props `nameOf`: what was asked, in words; `state.asked`: the body of the run that is shown, null: none yet; `what`: that needs an engine
 */
export function Replay({ session, runs, nameOf, state, what }) {
  const { answers } = session.recorded;
  const about = answers.value;
  const shown = state.asked ?? runs[0]?.body;
  const isFirst = !state.asked && runs.length > 0;
  useEffect(() => {
    if (isFirst) state.play(runs[0].body); // a view shows something as soon as it is opened
  }, [isFirst]);
  if (!about) return html`<p class="faint small" role="status">The recorded runs are being read …</p>`;
  const isRunning = state.stop.value !== null;
  return html`<div class="ask replay">
    <div class="examples">${runs.map(({ body }) => html`<button type="button" class="chip" aria-pressed=${body === shown} disabled=${isRunning} onClick=${() => state.play(body)}>${nameOf(body)}</button>`)}</div>
    <div class="row">
      ${shown.prompt !== undefined && html`<q class="mono">${shown.prompt}</q>`}
      ${isRunning
        ? html`<button type="button" onClick=${() => state.stop.value?.abort()}>Stop</button>`
        : html`<button type="button" id="replay" class="primary" onClick=${() => state.play(shown)}>Play it again</button>`}
    </div>
    <p class="faint small">Recorded from ${about.model} on ${about.machine}, ${about.when}: all figures are that run's own. ${what} of your own needs <code>pellucid serve</code>.</p>
  </div>`;
}
