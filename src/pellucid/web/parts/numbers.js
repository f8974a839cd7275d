// @ts-check
// Numbers that say where they come from: measured, counted or estimated, alone or in a table side by side. A click shows the formula and its inputs.

import { html, useId, useRef, useSignal } from "../html.js";
import { digits, inTime } from "./format.js";

export const KINDS = { M: "measured", C: "counted", E: "estimated" };

/**
 * The small square with M, C or E.
 * @param {Origin & {of: string}} props `of`: what the number is, for screen readers
 */
export function Badge({ kind, from, formula, inputs, note, of }) {
  const id = useId();
  const isOpen = useSignal(false);
  const button = useRef(/** @type {HTMLButtonElement | null} */ (null));
  /** @param {any} event */
  const onToggle = (event) => {
    isOpen.value = event.newState === "open";
    if (!isOpen.value || !button.current) return;
    const sheet = /** @type {HTMLElement} */ (event.target);
    requestAnimationFrame(() => {
      const near = /** @type {HTMLButtonElement} */ (button.current).getBoundingClientRect();
      const size = sheet.getBoundingClientRect();
      sheet.style.left = `${Math.max(8, Math.min(near.left, innerWidth - size.width - 8))}px`;
      const below = near.bottom + 6;
      sheet.style.top = `${below + size.height > innerHeight ? Math.max(8, near.top - size.height - 6) : below}px`;
    });
  };
  return html`<button
      ref=${button}
      type="button"
      class=${`badge badge-${kind}`}
      popovertarget=${id}
      aria-label=${`${of}: ${KINDS[kind]}. Show where it comes from.`}
    >${kind}</button><div id=${id} popover="auto" class="origin" onToggle=${onToggle}>
      ${isOpen.value &&
      html`<p><b>${KINDS[kind]}</b>${from && html` · ${from}`}</p>
        ${formula && html`<p class="formula">${formula.text}</p>`}
        ${formula &&
        html`<dl>
          ${Object.entries(formula.inputs).map(
            ([letter, meaning]) => html`<div>
              <dt>${letter}</dt>
              <dd>${inputs?.[letter] === undefined ? "" : html`<b>${shown(inputs[letter])}</b> `}${meaning}</dd>
            </div>`,
          )}
        </dl>`}
        ${note && html`<p>${note}</p>`}
        ${formula?.source && html`<p class="faint">${formula.source}</p>`}`}
    </div>`;
}

/** @param {number | string} value */
const shown = (value) => (typeof value === "number" ? (Number.isInteger(value) ? value.toLocaleString("en-US") : digits(value)) : value);

/**
 * A number with its unit, small, and its origin: for use within a sentence or a table.
 * @param {Origin & {of: string, value: number | string, unit?: string}} props
 */
export function Num({ value, unit, ...origin }) {
  return html`<span class="num">${typeof value === "number" ? digits(value) : value}${unit && html`<small> ${unit}</small>`}<${Badge}
    ...${origin}
  /></span>`;
}

/**
 * A large number in a row of facts: use few.
 * @param {Origin & {label: string, value: number | string, unit?: string}} props `unit`: or what it is made of
 */
export function Fact({ label, value, unit, ...origin }) {
  return html`<div class="fact">
    <dt>${label} <${Badge} of=${label} ...${origin} /></dt>
    <dd>${typeof value === "number" ? digits(value) : value} <small>${unit}</small></dd>
  </div>`;
}

/** @param {{children: any}} props facts */
export function Facts({ children }) {
  return html`<dl class="facts">${children}</dl>`;
}

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
