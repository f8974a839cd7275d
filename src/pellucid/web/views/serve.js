// @ts-check
// Serve: a load on this engine, static against continuous batching on the same arrivals, and who waits for what.

import { useAsTable } from "../draw/picture.js";
import { html } from "../html.js";
import { useKeys } from "../parts/keys.js";
import { Empty, Legend, Panel } from "../parts/panel.js";
import { Ask } from "../serve/ask.js";
import { Figures } from "../serve/figures.js";
import { Lanes } from "../serve/lanes.js";
import { Queue } from "../serve/queue.js";
import { serveState } from "../serve/state.js";

/** @param {{session: import("../state/session.js").Session}} props */
export function View({ session }) {
  const state = serveState(session);
  const asTable = useAsTable();
  const version = state.version.value;
  const loads = /** @type {import("../serve/run.js").Load[]} */ ([state.loads.static, state.loads.continuous].filter(Boolean));
  const longest = Math.max(0, ...loads.flatMap((load) => [load.nowUs, ...load.lanes.map((lane) => Math.max(lane.dueUs, lane.endUs))]));
  useKeys("Serve", [
    { keys: ["r"], says: "send the load", run: () => document.getElementById("load-run")?.click() },
    { keys: ["x"], says: "stop the load", run: () => document.getElementById("load-stop")?.click() },
    { keys: ["c"], says: "cancel the first request in the list", run: () => state.queue.value[0] && /** @type {HTMLElement | null} */ (document.querySelector(".queue button.quiet"))?.click() },
    { keys: ["t"], says: "tables instead of pictures", run: () => (asTable.value = !asTable.value) },
  ]);
  return html`
    <div class="column">
      <${Ask} session=${session} state=${state} />
      <${Panel} title="Requests enter and leave" about="a lane each, in the order of arrival; both over the same time">
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
