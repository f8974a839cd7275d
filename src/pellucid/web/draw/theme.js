// @ts-check
// Colours of the theme for canvases, read from the style sheet and read again when the theme changes.

import { signal } from "@preact/signals-core";

/**
 * @typedef {object} Palette
 * @property {string} paper
 * @property {string} panel
 * @property {string} ink
 * @property {string} ink2
 * @property {string} ink3
 * @property {string} line
 * @property {string} line2
 * @property {string} water
 * @property {string} water2
 * @property {string} sun
 * @property {string} sun2
 * @property {string} coral
 * @property {string} coral2
 * @property {string} leaf
 * @property {string[]} owners six hues
 * @property {string} ui font family
 * @property {string} mono
 */

const NAMES = ["paper", "panel", "ink", "ink2", "ink3", "line", "line2", "water", "water2", "sun", "sun2", "coral", "coral2", "leaf"];

/** @returns {Palette} */
function read() {
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  const style = getComputedStyle(probe);
  /** @param {string} name */
  const colour = (name) => {
    probe.style.color = `var(--${name})`;
    return style.color;
  };
  /** @type {any} */
  const palette = Object.fromEntries(NAMES.map((name) => [name, colour(name)]));
  palette.owners = [1, 2, 3, 4, 5, 6].map((index) => colour(`o${index}`));
  const root = getComputedStyle(document.documentElement);
  palette.ui = root.getPropertyValue("--ui").trim();
  palette.mono = root.getPropertyValue("--mono").trim();
  probe.remove();
  return palette;
}

export const palette = signal(read());
export const reducedMotion = signal(false);
export const forcedColors = signal(false);

/**
 * Follows a media query.
 * @param {string} query
 * @param {(matches: boolean) => void} told
 */
function follow(query, told) {
  const list = matchMedia(query);
  told(list.matches);
  list.addEventListener("change", () => told(list.matches));
}

const refresh = () => {
  palette.value = read();
};
follow("(prefers-color-scheme: dark)", refresh);
follow("(forced-colors: active)", (matches) => {
  forcedColors.value = matches;
  refresh();
});
follow("(prefers-reduced-motion: reduce)", (matches) => {
  reducedMotion.value = matches;
});
new MutationObserver(refresh).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
