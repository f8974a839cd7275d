// @ts-check
// Serve: load on this engine, static against continuous batching, and why a request waits.

import { html } from "../html.js";
import { Empty, Panel } from "../parts/panel.js";

/** @param {{session: import("../state/session.js").Session}} props */
export function View({ session }) {
  session.cursor.seq.value;
  return html`<${Panel} title="Serve"><${Empty}><p>Many requests at once on this engine: who enters, who waits, and how fast everyone is served.</p><//><//>`;
}
