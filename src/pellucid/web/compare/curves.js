// @ts-check
// What each arm took, over the tokens that it made: passes, operations, time of a step, bytes kept.

import { Lines } from "../draw/lines.js";
import { html } from "../html.js";
import { count, inBytes, inTime, scaled } from "../parts/format.js";
import { Panel } from "../parts/panel.js";
import { nameOf } from "./figures.js";

const OPERATIONS = (/** @type {number} */ value) => scaled(value).join(" ");

/** @param {{state: import("./state.js").CompareState, asTable: {value: boolean}}} props */
export function Curves({ state, asTable }) {
  const run = state.run;
  if (!run) return null;
  const version = state.version.value;
  const of = (/** @type {"passed" | "flops" | "stepUs" | "heldBytes" | "timeUs"} */ column) =>
    run.arms
      .filter((arm) => arm.tokens.length > 0)
      .map((arm) => ({ name: nameOf(arm.name), hue: arm.number, xs: arm.tokens.slice(), ys: arm[column].slice() }));
  const shared = { across: "tokens", asTable, at: state.at.value, onChoose: (/** @type {number} */ at) => (state.at.value = at), version };
  const isBatch = run.kind === "batch";
  return html`<${Panel} title="Curves" about="choose a point to look at that token; t shows tables">
    <div class="curves">
      <div>
        <h3>${isBatch ? "time so far" : "time of each token"}</h3>
        <${Lines} ...${shared} label=${isBatch ? "Time so far by tokens made." : "Time of the step that made each token."} lines=${of(isBatch ? "timeUs" : "stepUs")} format=${inTime} />
      </div>
      <div>
        <h3>tokens passed through the model, so far</h3>
        <${Lines} ...${shared} label="Tokens passed through the model so far, by tokens made." lines=${of("passed")} format=${count} />
      </div>
      <div>
        <h3>operations so far</h3>
        <${Lines} ...${shared} label="Operations so far, by tokens made." lines=${of("flops")} format=${OPERATIONS} />
      </div>
      <div>
        <h3>keys and values kept after the step</h3>
        <${Lines}
          ...${shared}
          label="Bytes of keys and values kept between steps, by tokens made."
          base=${1024}
          lines=${of("heldBytes")}
          format=${(/** @type {number} */ value) => (value === 0 ? "0" : inBytes(value))}
        />
      </div>
    </div>
  <//>`;
}

