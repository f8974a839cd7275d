// @ts-check
// Serve: a load on this engine, static against continuous batching on the same arrivals, and who waits for what.

import { useAsTable } from "../draw/picture.js";
import { html } from "../html.js";
import { Choice, press, Slider, submits, TableButton, tableKey } from "../parts/controls.js";
import { useKeys } from "../parts/keys.js";
import { Empty, Legend, NeedsServer, Panel, Refused } from "../parts/panel.js";
import { Figures } from "../serve/figures.js";
import { Lanes } from "../serve/lanes.js";
import { Queue } from "../serve/queue.js";
import { serveState } from "../serve/run.js";

/** @param {{session: Session}} props */
export function View({ session }) {
  const state = serveState(session);
  const asTable = useAsTable();
  const version = state.version.value;
  const loads = /** @type {Load[]} */ ([state.loads.static, state.loads.continuous].filter(Boolean));
  const longest = Math.max(0, ...loads.flatMap((load) => [load.nowUs, ...load.lanes.map((lane) => Math.max(lane.dueUs, lane.endUs))]));
  useKeys("Serve", [
    press("r", "send the load", "#load-run"),
    press("x", "stop the load", "#load-stop"),
    press("c", "cancel the first request in the list", ".queue button.quiet"),
    tableKey(asTable),
  ]);
  return html`
    <div class="column">
      <${Ask} session=${session} state=${state} />
      <${Panel} title="Requests enter and leave" about="a lane each, in the order of arrival; both over the same time" actions=${loads.length > 0 && html`<${TableButton} asTable=${asTable} />`}>
        ${loads.length === 0 && html`<${Empty}><p>Send the load: each request becomes a lane, from its arrival to its last token.</p><//>`}
        ${loads.map((load) => html`<h3 key=${load.discipline}>${load.discipline}${load.isRunning ? ", running" : ""}</h3>
          <${Lanes} session=${session} load=${load} longest=${longest} version=${version} asTable=${asTable} />`)}
        ${loads.length > 0 &&
        html`<${Legend} items=${[
          { label: "waits for its batch", pattern: "hatched", colour: "var(--ink3)" }, { label: "to the first token: queue and prefill", colour: "var(--o1)" },
          { label: "to the last token: decode", colour: "color-mix(in srgb, var(--o1) 40%, transparent)" }, { label: "cancelled or failed", colour: "var(--coral)" },
        ]} />`}
      <//>
    </div>
    <div class="column">
      <${Queue} session=${session} state=${state} />
      <${Figures} state=${state} />
    </div>
  `;
}

/**
 * How many requests, how fast they arrive, how long they are, what they share, and the limits for goodput.
 * @param {{session: Session, state: ServeState}} props
 */
function Ask({ session, state }) {
  const { stop } = state;
  const run = () => session.source.canRun && state.start();
  return html`<${Panel} title="The load" about="requests like any others; the same arrivals, lengths and prompts under both disciplines">
    <form class="serve-ask" onSubmit=${submits(run)}>
      <div class="sliders">
        <${Slider} label="requests" of=${state.requests} min=${2} max=${120} />
        <${Slider} label="arrivals" of=${state.rate} min=${0.5} max=${60} step=${0.5} unit="/s" />
        <${Slider} label="prompts around" of=${state.promptTok} min=${8} max=${256} step=${8} unit="tokens" />
        <${Slider} label="answers around" of=${state.outputTok} min=${8} max=${128} step=${8} unit="tokens" />
        <${Slider} label="shared prefix" of=${state.prefixTok} max=${256} step=${16} unit="tokens" />
        <${Slider} label="static batches of" of=${state.seats} min=${2} max=${32} />
        <${Slider} label="good: first in" of=${state.firstSlo} min=${0.05} max=${3} step=${0.05} unit="s" />
        <${Slider} label="good: each in" of=${state.betweenSlo} min=${0.005} max=${0.5} step=${0.005} unit="s" />
        <${Slider} label="price an hour" of=${state.price} max=${10} step=${0.25} />
        <${Slider} label="seed" of=${state.seed} max=${99} />
      </div>
      <div class="row">
        <${Choice} label="batching" of=${state.discipline} options=${[["both", "both"], ["static", "static"], ["continuous", "continuous"]]} />
        ${stop.value
          ? html`<button type="button" id="load-stop" onClick=${() => stop.value?.abort()}>Stop</button>`
          : html`<button id="load-run" class="primary" disabled=${!session.source.canRun}>Send the load</button>`}
      </div>
    </form>
    <${NeedsServer} session=${session} what="a load" />
    <${Refused} problem=${state.problem.value} />
  <//>`;
}
