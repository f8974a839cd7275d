// @ts-check
// The parts that every view is made of: panels, explanations, legends, names of requests, replies of the server; sliders, choices, the prompt, and the keys
// with their sheet.

import { hueVariable } from "../draw/hues.js";
import { html, signal, useEffect, useId, useLayoutEffect, useRef, useSignal } from "../html.js";

/**
 * A panel: a quiet heading, what it shows in small, and its contents.
 * @param {{title: any, about?: any, actions?: any, children: any}} props `actions`: buttons at the right of the heading
 */
export function Panel({ title, about, actions, children }) {
  const id = useId();
  return html`<section class="panel" aria-labelledby=${id}>
    <header>
      <h2 id=${id}>${title}</h2>
      ${about && html`<p class="about">${about}</p>`} ${actions && html`<div class="actions">${actions}</div>`}
    </header>
    ${children}
  </section>`;
}

/**
 * An explanation: a sentence with the numbers in it, bold where it begins. Amber to look here, coral for trouble.
 * @param {{lead: any, trouble?: boolean, children?: any}} props
 */
export function Why({ lead, trouble = false, children }) {
  return html`<p class=${trouble ? "why trouble" : "why"}><b>${lead}</b> ${children}</p>`;
}

/**
 * A request's name in its hue.
 * @param {{request: {hue: number, name: string, req: string} | undefined, onClick?: () => void}} props
 */
export function RequestName({ request, onClick }) {
  if (!request) return html`<span class="request">?</span>`;
  const style = { "--c": hueVariable(request) };
  return onClick
    ? html`<button class="request" style=${style} data-tip=${request.req} onClick=${onClick}>${request.name}</button>`
    : html`<span class="request" style=${style} data-tip=${request.req}>${request.name}</span>`;
}

/**
 * What colours and patterns mean.
 * @param {{items: {label: any, colour?: string, pattern?: "solid" | "hatched" | "ticks" | "outlined" | "line"}[]}} props
 */
export function Legend({ items }) {
  return html`<ul class="legend">
    ${items.map(
      ({ label, colour, pattern = "solid" }) =>
        html`<li><i class=${pattern} style=${colour ? { "--c": colour } : undefined}></i>${label}</li>`,
    )}
  </ul>`;
}

/**
 * What a view says while there is nothing to show yet, and what to do about it.
 * @param {{children: any}} props
 */
export function Empty({ children }) {
  return html`<div class="empty">${children}</div>`;
}

/**
 * What the server said instead of doing what it was asked to.
 * @param {{problem: string, lead?: string}} props `problem`: "": nothing
 */
export const Refused = ({ problem, lead = "The server refused." }) => problem && html`<${Why} trouble lead=${lead}>${problem}<//>`;

/**
 * That something needs an engine, where there is none.
 * @param {{session: Session, what: string}} props
 */
export const NeedsServer = ({ session, what }) =>
  !session.source.isLive && html`<p class="faint small">This is a recorded run: ${what} needs <code>pellucid serve</code>.</p>`;

/** @type {Reply} */
const NOTHING = { reply: null, problem: "" };

/**
 * @param {Api} api
 * @param {string} path "": nothing is wanted now
 * @param {{wait?: number, apart?: number, inputs?: any[]}} how milliseconds that the path must stand still, and between
 *   two looks; `inputs`: the path is asked for again when one of them changes, always as many
 * @returns {Reply} the latest reply for this path
 */
export function useReply(api, path, { wait = 0, apart = 0, inputs = [] } = {}) {
  const latest = useSignal({ path: "", key: "", ...NOTHING });
  const asked = useRef({ at: -Infinity, count: 0, shown: 0, stop: new AbortController() });
  const key = JSON.stringify([path, ...inputs]);
  useEffect(() => {
    const stop = (asked.current.stop = new AbortController());
    return () => stop.abort();
  }, [path]);
  // A question under way is not given up for other inputs: else none is answered where they change faster than the server replies.
  useEffect(() => {
    if (!path || (latest.value.key === key && latest.value.reply)) return undefined;
    const timer = setTimeout(() => {
      const { current } = asked;
      const { signal } = current.stop;
      const own = (current.count += 1);
      current.at = performance.now();
      /** @param {Reply} found */
      const show = (found) => {
        if (signal.aborted || own < current.shown) return;
        current.shown = own;
        latest.value = { path, key, ...found };
      };
      api.get(path, signal).then(
        (reply) => show({ reply, problem: "" }),
        (error) => show({ reply: latest.value.path === path ? latest.value.reply : null, problem: error.message }),
      );
    }, Math.max(wait, asked.current.at + apart - performance.now()));
    return () => clearTimeout(timer);
  }, [key]);
  return path && latest.value.path === path ? latest.value : NOTHING;
}

/**
 * A slider with its value beside it.
 * @param {{label: any, of?: Numeric, value?: number, min?: number, max: number, step?: number, shown?: any, unit?: string, disabled?: boolean,
 *   onInput?: (value: number) => void}} props `of`: the signal that it sets, in place of `value` and `onInput`; `shown`: the value in words
 */
export function Slider({ label, of, value = of?.value ?? 0, min = 0, max, step = 1, unit = "", shown = `${value} ${unit}`, disabled = false, onInput }) {
  const id = useId();
  return html`<div class="slider">
    <label for=${id}>${label}</label>
    <input
      id=${id}
      type="range"
      value=${value}
      min=${min}
      max=${max}
      step=${step}
      disabled=${disabled}
      style=${{ "--at": `${max > min ? ((value - min) / (max - min)) * 100 : 0}%` }}
      onInput=${(/** @type {any} */ event) => {
        const now = Number(event.target.value);
        if (of) of.value = now;
        onInput?.(now);
      }}
    />
    <output for=${id}>${shown}</output>
  </div>`;
}

/**
 * One choice of a few.
 * @param {{label: string, of: {value: string}, options: [string, any][], onChoose?: () => void}} props
 */
export function Choice({ label, of, options, onChoose }) {
  const name = useId();
  /** @param {string} key */
  const choose = (key) => {
    of.value = key;
    onChoose?.();
  };
  return html`<fieldset class="choice">
    <legend>${label}</legend>
    ${options.map(
      ([key, text]) => html`<label class=${key === of.value ? "on" : ""}>
        <input type="radio" name=${name} value=${key} checked=${key === of.value} onChange=${() => choose(key)} />${text}
      </label>`,
    )}
  </fieldset>`;
}

/**
 * One of a list.
 * @param {{id?: string, label?: string, of: {value: any}, options: [string | number, any][]}} props keys are all texts or all numbers
 */
export const Select = ({ id, label, of, options }) => html`<select
  id=${id}
  aria-label=${label}
  value=${of.value}
  onChange=${(/** @type {any} */ { target }) => (of.value = typeof of.value === "number" ? Number(target.value) : target.value)}
>
  ${options.map(([key, text]) => html`<option value=${key}>${text}</option>`)}
</select>`;

/** The numbers from 0, as options. @param {number} count @returns {[number, number][]} */
export const upTo = (count) => Array.from({ length: count }, (_, index) => [index, index]);

/**
 * The text that an engine is to continue: Enter runs it, Escape leaves the field.
 * @param {{id: string, of: {value: string}, rows?: number, onEnter: () => void}} props
 */
export const Prompt = ({ id, of, rows = 2, onEnter }) => html`<label class="spoken" for=${id}>prompt</label>
  <textarea
    id=${id}
    rows=${rows}
    spellcheck=${false}
    value=${of.value}
    onInput=${(/** @type {any} */ event) => (of.value = event.target.value)}
    onKeyDown=${(/** @type {any} */ event) => {
      if (event.key === "Escape") event.target.blur();
      if (event.key !== "Enter" || event.shiftKey) return;
      event.preventDefault();
      onEnter();
    }}
  ></textarea>`;

/** A switch between pictures and their tables. @param {{asTable: {value: boolean}}} props */
export const TableButton = ({ asTable }) =>
  html`<button class="quiet" aria-pressed=${asTable.value} onClick=${() => (asTable.value = !asTable.value)}>table</button>`;

/** The command for it. @param {{value: boolean}} asTable @returns {Command} */
export const tableKey = (asTable) => ({ keys: ["t"], says: "tables instead of pictures", run: () => (asTable.value = !asTable.value) });

/** A command that presses a button. @param {string} key @param {string} says @param {string} selector @returns {Command} */
export const press = (key, says, selector) => ({
  keys: [key], says, run: () => /** @type {HTMLElement | null} */ (document.querySelector(selector))?.click(),
});

/** A command that goes to a field. @param {string} key @param {string} says @param {string} id @returns {Command} */
export const focusOn = (key, says, id) => ({ keys: [key], says, run: () => document.getElementById(id)?.focus() });

/** Takes a form's submission in place of the browser. @param {() => void} run */
export const submits = (run) => (/** @type {Event} */ event) => {
  event.preventDefault();
  run();
};

/** Commands by whose they are: "page", and the view's name. */
const groups = signal(/** @type {Record<string, Command[]>} */ ({}));
export const isHelpOpen = signal(false);

/**
 * Adds commands while a component is shown: from the moment in which it is seen, before the browser handles another key.
 * @param {string} group
 * @param {Command[]} commands
 * @param {any[]} inputs that the commands depend on
 */
export function useKeys(group, commands, inputs = []) {
  useLayoutEffect(() => {
    groups.value = { ...groups.value, [group]: commands };
    return () => {
      const { [group]: _, ...others } = groups.value;
      groups.value = others;
    };
  }, inputs);
}

/**
 * Runs commands as keys are pressed.
 * @param {{value: boolean}} enabled
 */
export function listenToKeys(enabled) {
  addEventListener("keydown", (event) => {
    if (!enabled.value || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (isHelpOpen.value) {
      if (event.key === "?") isHelpOpen.value = false;
      return; // the rest is the dialog's own, Escape above all
    }
    if (event.key === "Escape" && document.querySelector(":popover-open")) return; // it closes what is open
    const target = /** @type {HTMLElement} */ (event.target);
    const isTyping = target.matches("textarea, select, input:not([type=range], [type=checkbox], [type=radio]), [contenteditable]");
    const ownsArrows = target.matches("input[type=range], input[type=radio], [role=application]");
    if (isTyping || (ownsArrows && /^(Arrow|Home|End| )/.test(event.key))) return;
    if (target.matches("button, a, summary") && (event.key === " " || event.key === "Enter")) return;
    const key = event.shiftKey && event.key.length > 1 ? `Shift+${event.key}` : event.key;
    // A view's commands come before the page's.
    for (const group of Object.keys(groups.value).sort((a, b) => Number(a === "page") - Number(b === "page"))) {
      const command = groups.value[group].find((each) => each.keys.includes(key));
      if (command) {
        event.preventDefault();
        command.run(event);
        return;
      }
    }
  });
}

/** @type {Record<string, string>} */
const NAMES = {
  " ": "Space", ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", "Shift+ArrowLeft": "Shift ←",
  "Shift+ArrowRight": "Shift →", Escape: "Esc",
};

/**
 * The sheet with all commands.
 * @param {{settings: Settings}} props
 */
export function KeySheet({ settings }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const isOpen = isHelpOpen.value;
  useEffect(() => {
    if (isOpen) dialog.current?.showModal();
    else dialog.current?.close();
  }, [isOpen]);
  return html`<dialog ref=${dialog} class="sheet" aria-label="Keys" onClose=${() => (isHelpOpen.value = false)}>
    <header><h2>Keys</h2><button class="quiet" onClick=${() => (isHelpOpen.value = false)}>close</button></header>
    ${Object.entries(groups.value).map(
      ([group, commands]) => html`<h3>${group === "page" ? "everywhere" : group}</h3>
        <dl class="keys">
          ${commands.map(
            ({ keys, says }) => html`<div>
              <dt>${keys.map((key) => html`<kbd>${NAMES[key] ?? key}</kbd> `)}</dt>
              <dd>${says}</dd>
            </div>`,
          )}
        </dl>`,
    )}
    <label class="check">
      <input
        type="checkbox"
        checked=${settings.shortcuts.value}
        onChange=${(/** @type {any} */ event) => (settings.shortcuts.value = event.target.checked)}
      />
      single keys are commands
    </label>
  </dialog>`;
}
