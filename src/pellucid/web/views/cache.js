// @ts-check
// The cache: the pool of blocks, block tables, the prefix tree, and why a prefix was missed.

import { html } from "../html.js";
import { Empty, Panel } from "../parts/panel.js";

/** @param {{session: import("../state/session.js").Session}} props */
export function View({ session }) {
  session.cursor.seq.value;
  return html`<${Panel} title="Cache"><${Empty}><p>Every block of the KV cache: whose it is, how full it is, who shares it, and what was kept for later.</p><//><//>`;
}
