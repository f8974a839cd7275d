// @ts-check
// The timeline: what each request waited for, and what each step of the engine did.

import { html } from "../html.js";
import { Empty, Panel } from "../parts/panel.js";

/** @param {{session: import("../state/session.js").Session}} props */
export function View({ session }) {
  session.cursor.seq.value;
  return html`<${Panel} title="Timeline"><${Empty}><p>Each request from its arrival to its end, and what held it up: queue, prompt, tokens, preemptions; below, each step of the engine by what it spent its time on.</p><//><//>`;
}
