// @ts-check
// Compare: the same work done two ways by this engine, side by side.

import { html } from "../html.js";
import { Empty, Panel } from "../parts/panel.js";

/** @param {{session: import("../state/session.js").Session}} props */
export function View({ session }) {
  session.cursor.seq.value;
  return html`<${Panel} title="Compare"><${Empty}><p>The same prompt run twice by this engine, with the cache and without, and what each way costs.</p><//><//>`;
}
