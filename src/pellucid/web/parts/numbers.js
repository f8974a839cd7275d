// @ts-check
// Numbers as people read them, three digits that count and the unit apart; and where they come from: measured, counted or estimated. A click shows the
// formula and its inputs.

import { html, useId, useRef, useSignal } from "../html.js";

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

/** @param {number | string | number[]} value */
const shown = (value) => {
  if (Array.isArray(value)) return value.map(digits).join(", ");
  if (typeof value === "string") return value;
  return Number.isInteger(value) ? value.toLocaleString("en-US") : digits(value);
};

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
          const [end, start] = (value(of) ?? "").split(/(?<= – )/).reverse();
          return html`<td class="number">${end ? html`${start}<span class="num">${end}<${Badge} of=${`${label}, ${name}`} ...${typeof origin === "function" ? origin(of) : origin} /></span>` : "–"}</td>`;
        })}
      </tr>`,
    )}
  </tbody>
</table>`;

/** The origin of a number that was measured, and of one that was counted. @param {string} from @param {string} [note] @returns {Origin} */
export const measured = (from, note) => ({ kind: "M", from, note });
/** @param {string} from @param {string} [note] @returns {Origin} */
export const counted = (from, note) => ({ kind: "C", from, note });

/** "step" or "steps". @param {number | string} value @param {string} noun */
export const plural = (value, noun) => (Number(value) === 1 ? noun : `${noun}s`);

/** "1 step", "2 steps". @param {number} value @param {string} noun */
export const several = (value, noun) => `${count(value)} ${plural(value, noun)}`;

/** What the tokens in the cache are made of. @param {number | null} cached @param {number} N of the prompt @param {number} m output tokens */
export const cachedUnit = (cached, N, m) => (m > 0 && cached === N + m - 1 ? `= ${count(N)} + ${count(m)} − 1 tokens` : `of ${several(N + m, "token")}`);

/** A duration that may be missing. @param {number | undefined} us */
export const maybeTime = (us) => (us === undefined ? undefined : inTime(us));

const GROUPED = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** @param {number} value */
export const count = (value) => GROUPED.format(Math.round(value));

/**
 * Three significant digits, no exponent.
 * @param {number} value
 */
export function digits(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1000) return count(value);
  return String(Number(value.toPrecision(size >= 100 ? 4 : 3)));
}

/**
 * @param {number} us microseconds
 * @returns {[string, string]} number and unit
 */
export function duration(us) {
  if (us < 1000) return [digits(us), "µs"];
  if (us < 1e6) return [digits(us / 1e3), "ms"];
  if (us < 120e6) return [digits(us / 1e6), "s"];
  return [digits(us / 60e6), "min"];
}

/**
 * A share as percent: 97.1, 0.03, "< 0.01".
 * @param {number} share
 */
export function percent(share) {
  const value = share * 100;
  if (value === 0 || value > 99.9999) return `${Math.round(value)} %`;
  if (value < 0.01) return "< 0.01 %";
  return `${value >= 99.95 && value < 100 ? "> 99.9" : value.toFixed(value < 1 ? 2 : 1)} %`;
}

/**
 * A duration in a sentence.
 * @param {number} us
 */
export const inTime = (us) => duration(us).join(" ");

/** @param {number} value @param {string[]} units @param {number} base */
function inUnits(value, units, base) {
  let index = 0;
  while (Math.abs(value) >= base && index < units.length - 1) {
    value /= base;
    index += 1;
  }
  return `${digits(value)} ${units[index]}`;
}

/** Bytes in a sentence. @param {number} value */
export const inBytes = (value) => inUnits(value, ["B", "KiB", "MiB", "GiB", "TiB"], 1024);

/** Operations or others with a prefix, in a sentence: 1.2 G. @param {number} value */
export const inPrefix = (value) => inUnits(value, ["", "k", "M", "G", "T", "P"], 1000);

/** @param {number[]} values not empty */
export function median(values) {
  const sorted = values.slice().sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
