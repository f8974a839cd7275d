// @ts-check
// Plan: memory, speed and cost by formula, with this session's measurements laid over.

import { html } from "../html.js";
import { Empty, Panel } from "../parts/panel.js";

/** @param {{session: import("../state/session.js").Session}} props */
export function View({ session }) {
  session.cursor.seq.value;
  return html`<${Panel} title="Plan"><${Empty}><p>What fits in memory and how fast it runs, by formula, beside what this machine measured.</p><//><//>`;
}
