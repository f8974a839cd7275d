// @ts-check
// Speculate: what was guessed, what the model chose, and whether it paid.

import { html } from "../html.js";
import { Empty, Panel } from "../parts/panel.js";

/** @param {{session: import("../state/session.js").Session}} props */
export function View({ session }) {
  session.cursor.seq.value;
  return html`<${Panel} title="Speculate"><${Empty}><p>Each round of guessed tokens beside what the model chose itself, and whether guessing paid.</p><//><//>`;
}
