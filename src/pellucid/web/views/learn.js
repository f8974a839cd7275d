// @ts-check
// Learn: six steps from one token to a busy server, each with an experiment on the engine.

import { html } from "../html.js";
import { Empty, Panel } from "../parts/panel.js";

/** @param {{session: import("../state/session.js").Session}} props */
export function View({ session }) {
  session.cursor.seq.value;
  return html`<${Panel} title="Learn"><${Empty}><p>Six steps from one token to a busy server, each an experiment on this engine.</p><//><//>`;
}
