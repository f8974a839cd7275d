// @ts-check
// A table of figures side by side, each with its origin: a row for each figure, a column for each thing compared.

import { html } from "../html.js";
import { inTime } from "./format.js";
import { Badge } from "./numbers.js";

/**
 * A figure: how to read it from a column, and where it comes from. An empty value is shown as a dash.
 * @typedef {[label: string, value: (column: any) => string | undefined, origin: Origin | ((column: any) => Origin)]} Figure
 */

/** @param {{columns: {name: string, hue?: string, of: any}[], rows: Figure[]}} props `of`: what the figures read */
export const FigureTable = ({ columns, rows }) => html`<table class="figures">
  <thead>
    <tr><th scope="col"><span class="spoken">figure</span></th>${columns.map(({ name, hue }) => html`<th scope="col" class="number">${hue && html`<i style=${{ "--c": hue }}></i>`}${name}</th>`)}</tr>
  </thead>
  <tbody>
    ${rows.map(
      ([label, value, origin]) => html`<tr>
        <th scope="row">${label}</th>
        ${columns.map(({ name, of }) => {
          const shown = value(of);
          return html`<td class="number">${shown ?? "–"}${shown && html`<${Badge} of=${`${label}, ${name}`} ...${typeof origin === "function" ? origin(of) : origin} />`}</td>`;
        })}
      </tr>`,
    )}
  </tbody>
</table>`;

/** The origin of a number that was measured, and of one that was counted. @param {string} from @param {string} [note] @returns {Origin} */
export const measured = (from, note) => ({ kind: "M", from, note });
/** @param {string} from @param {string} [note] @returns {Origin} */
export const counted = (from, note) => ({ kind: "C", from, note });

/** A duration that may be missing. @param {number | undefined} us */
export const maybeTime = (us) => (us === undefined ? undefined : inTime(us));
