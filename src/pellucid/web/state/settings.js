// @ts-check
// What the reader has chosen, kept in this browser only: theme, shortcuts, progress in the lessons. Keys are forgotten with the tab.

import { effect, signal } from "@preact/signals-core";

/**
 * A signal that survives a reload.
 * @template T
 * @param {string} name
 * @param {T} initial
 * @param {Storage} storage
 */
function kept(name, initial, storage = localStorage) {
  let first = initial;
  try {
    const text = storage.getItem(`pellucid.${name}`);
    if (text !== null) first = typeof initial === "string" ? /** @type {any} */ (text) : JSON.parse(text);
  } catch {
    // unreadable: as if nothing had been kept
  }
  const made = signal(first);
  effect(() => {
    const value = made.value;
    storage.setItem(`pellucid.${name}`, typeof value === "string" ? value : JSON.stringify(value));
  });
  return made;
}

export function createSettings() {
  const settings = {
    /** "light", "dark", or "" for the machine's own. */
    theme: kept("theme", ""),
    /** Whether single letters are commands. */
    shortcuts: kept("shortcuts", true),
    /** The API key, for servers that have keys. */
    key: kept("key", "", sessionStorage),
    /** Results of lessons by step. @type {import("@preact/signals-core").Signal<Record<string, any>>} */
    lessons: kept("lessons", /** @type {Record<string, any>} */ ({})),
  };
  effect(() => {
    const root = document.documentElement;
    if (settings.theme.value) root.dataset.theme = settings.theme.value;
    else delete root.dataset.theme;
  });
  return settings;
}
