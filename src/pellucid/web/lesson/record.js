// @ts-check
// The record at the end: what was predicted, run and answered. It stays in this browser and can be printed.

import { html } from "../html.js";
import { Panel } from "../parts/panel.js";
import { grade } from "./grading.js";

/** @param {{steps: import("./frame.js").Step[], all: Record<string, import("./frame.js").Progress>, onForget: () => void}} props */
export function Record({ steps, all, onForget }) {
  const done = steps.filter((step) => all[step.id]?.checked !== undefined);
  const mark = (/** @type {import("./grading.js").Question} */ question, /** @type {import("./frame.js").Progress} */ progress, /** @type {string | undefined} */ given) =>
    progress?.result && given !== undefined ? (grade(question, progress.result, given).isRight ? "right" : "corrected") : "–";
  return html`<${Panel} title="Your record" about=${`${done.length} of ${steps.length} steps; kept in this browser only`} actions=${html`<button onClick=${() => print()}>Print</button>
    <button class="quiet" onClick=${onForget}>forget it</button>`}>
    <table class="record">
      <thead><tr><th>step</th><th>predicted</th><th>answered</th><th>measured on</th></tr></thead>
      <tbody>
        ${steps.map((step) => {
          const progress = all[step.id] ?? {};
          return html`<tr>
            <td>${step.title}</td>
            <td>${mark(step.predict, progress, progress.predicted)}</td>
            <td>${mark(step.check, progress, progress.checked)}</td>
            <td>${progress.when ? `${progress.engine}, ${progress.when.slice(0, 10)}${progress.isRecorded ? ", recorded" : ""}` : "–"}</td>
          </tr>`;
        })}
      </tbody>
    </table>
    ${done.length === steps.length && html`<p class="why"><b>All steps are done.</b> You have seen prefill, decode, the cache, its blocks, batching and speculation in an engine that ran, and what
      your own runs cost.</p>`}
  <//>`;
}
