// @ts-check
// Plan: memory, speed and cost by formula, with this session's measurements laid over.

import { useAsTable } from "../draw/picture.js";
import { html, useMemo } from "../html.js";
import { useKeys } from "../parts/keys.js";
import { Empty, Panel } from "../parts/panel.js";
import { Ask } from "../plan/ask.js";
import { Checked } from "../plan/checked.js";
import { measuredSteps } from "../plan/measured.js";
import { Memory } from "../plan/memory.js";
import { Roofline } from "../plan/roofline.js";
import { Speed } from "../plan/speed.js";
import { planState } from "../plan/state.js";

/** @param {{session: import("../state/session.js").Session}} props */
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
  const focus = (/** @type {string} */ id) => () => document.getElementById(id)?.focus();
  useKeys("Plan", [
    { keys: ["m"], says: "choose the model", run: focus("plan-shape") },
    { keys: ["p"], says: "choose the machine", run: focus("plan-machine") },
    { keys: ["+"], says: "twice as many requests at once", run: () => (state.batch.value = Math.min(1024, state.batch.value * 2)) },
    { keys: ["-"], says: "half as many", run: () => (state.batch.value = Math.max(1, Math.round(state.batch.value / 2))) },
    { keys: ["t"], says: "tables instead of pictures", run: () => (asTable.value = !asTable.value) },
  ]);
  return html`
    <div class="column">
      <${Ask} session=${session} state=${state} />
      ${estimate && html`<${Memory} state=${state} />`}
    </div>
    <div class="column">
      ${estimate
        ? html`<${Speed} state=${state} /><${Roofline} state=${state} measured=${measured} asTable=${asTable} />`
        : html`<${Panel} title="Roofline"><${Empty}><p>${session.source.isLive ? "This machine is being measured, which takes a second or two." : "Estimates come from a running server."}</p><//><//>`}
    </div>
    ${estimate && html`<${Checked} state=${state} measured=${measured} />`}
  `;
}
