// @ts-check
// Generate: the text as it appears, and how each token was chosen.

import { html } from "../html.js";
import { Empty, Panel } from "../parts/panel.js";

/** @param {{session: import("../state/session.js").Session}} props */
export function View({ session }) {
  session.cursor.seq.value;
  return html`<${Panel} title="Generate"><${Empty}><p>The text as it appears, token by token, and how each was chosen.</p><//><//>`;
}
