// @ts-check
// Colours of the theme for canvases, read from the style sheet and read again when the theme changes.

import { signal } from "@preact/signals-core";

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
const refresh = () => {
  palette.value = read();
};
for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) matchMedia(query).addEventListener("change", refresh);
new MutationObserver(refresh).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
