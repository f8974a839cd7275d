// @ts-check
// The keyboard: a table of commands that the shell and the views add to, and the sheet that lists it.

import { signal } from "@preact/signals-core";
import { html, useEffect, useRef } from "../html.js";

/** Commands by whose they are: "page", and the view's name. */
const groups = signal(/** @type {Record<string, Command[]>} */ ({}));
export const isHelpOpen = signal(false);

/**
 * Adds commands while a component is shown.
 * @param {string} group
 * @param {Command[]} commands
 * @param {any[]} inputs that the commands depend on
 */
export function useKeys(group, commands, inputs = []) {
  useEffect(() => {
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
