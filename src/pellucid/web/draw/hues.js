// @ts-check
// Colours and patterns of canvases: colours are those of the style sheet, six hues for requests, then they repeat.

import { signal } from "@preact/signals-core";

const NUM_HUES = 6;

/**
 * The custom property with a request's hue, for CSS.
 * @param {{hue: number} | number} of a request, or a number from 0
 */
export function hueVariable(of) {
  const number = typeof of === "number" ? of : of.hue;
  return `var(--o${(number % NUM_HUES) + 1})`;
}

/**
 * The hue of a request as a colour, for a canvas.
 * @param {Palette} palette
 * @param {number} number a request's `hue`; below 0: nobody
 */
export function hue(palette, number) {
  return number < 0 ? palette.line2 : palette.owners[number % NUM_HUES];
}

/**
 * Fills a rectangle with diagonal hatching.
 * @param {CanvasRenderingContext2D} ctx
 * @param {number} x
 * @param {number} y
 * @param {number} width
 * @param {number} height
 * @param {string} colour
 * @param {number} gap between lines, in pixels
 */
export function hatch(ctx, x, y, width, height, colour, gap = 5) {
  ctx.save();
  ctx.beginPath();
  ctx.rect(x, y, width, height);
  ctx.clip();
  ctx.strokeStyle = colour;
  ctx.lineWidth = gap * 0.36;
  ctx.beginPath();
  // Lines begin at multiples of the gap, so that neighbours join.
  for (let c = Math.floor((x - height) / gap) * gap; c < x + width + height; c += gap) {
    ctx.moveTo(c + (y % gap), y + height);
    ctx.lineTo(c + (y % gap) + height, y);
  }
  ctx.stroke();
  ctx.restore();
}

const NAMES = ["paper", "panel", "ink", "ink2", "ink3", "line", "line2", "water", "water2", "odds", "sun", "sun2", "coral", "coral2", "leaf"];

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

export const palette = signal(/** @type {Palette} */ (/** @type {unknown} */ (null)));

/** Reads the colours, now and whenever the theme changes. */
export function followTheme() {
  const refresh = () => (palette.value = read());
  refresh();
  for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) matchMedia(query).addEventListener("change", refresh);
  new MutationObserver(refresh).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
}
