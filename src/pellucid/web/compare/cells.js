// @ts-check
// What one step of an arm passed through the model, what it kept, and what its token read: a cell for each token, as in the picture that views share.

import { hue } from "../draw/hues.js";
import { Picture, useAsTable } from "../draw/picture.js";
import { cellsOf, placesIn } from "../draw/signature.js";
import { html, useRef } from "../html.js";
import { several } from "../parts/numbers.js";
import { LEAST_READ, paintRead } from "../parts/token_cells.js";

const CELL = 12; // pixels, the gap included

/**
 * The tokens of a text after a step: which passed through the model in it, and which are in the cache.
 * @param {Comparison} run of one request
 * @param {Arm} arm
 * @param {number} row of the step
 * @returns {{count: number, passedFrom: number, kept: number}} all but the newest token have passed at some time; the last of these from `passedFrom` on in this step
 */
export function passesOf(run, arm, row) {
  const count = run.promptTok + arm.tokens[row];
  const passed = arm.passed[row] - (row > 0 ? arm.passed[row - 1] : 0);
  return { count, passedFrom: count - 1 - passed, kept: arm.useKvCache ? count - 1 : 0 };
}

/** @param {{run: Comparison, arm: Arm, row: number, blockTok: number, read?: Map<number, number>}} props `read`: share of attention by position, 0..1 of the largest */
export function PassedCells({ run, arm, row, blockTok, read }) {
  const asTable = useAsTable();
  const latest = useRef(cellsOf(0, 1, 300, CELL)); // as drawn last
  const { count, passedFrom, kept } = passesOf(run, arm, row);
  const place = (/** @type {number} */ width) => cellsOf(count, blockTok, width, CELL);
  const passes = (/** @type {number} */ index) => index >= passedFrom && index < count - 1;
  const describe = (/** @type {number} */ index) =>
    `position ${index} · ${index === count - 1 ? "written by this step" : passes(index) ? "through the model in this step" : "not computed again"} · ${index < kept ? "in the cache" : "not kept"}${(read?.get(index) ?? 0) > LEAST_READ ? " · read to write the newest" : ""}`;
  const draw = (/** @type {Surface} */ surface) => {
    const { ctx, width, palette } = surface;
    const { cells, cell } = (latest.current = place(width));
    const own = hue(palette, arm.number);
    ctx.lineWidth = 2;
    cells.forEach(({ x, y }, index) => {
      ctx.fillStyle = index < kept ? own : palette.line2;
      ctx.fillRect(x, y, cell - 2, cell - 2);
      paintRead(surface, x, y, cell - 2, read?.get(index) ?? 0);
      if (!passes(index)) return;
      ctx.strokeStyle = palette.ink;
      ctx.strokeRect(x + 1, y + 1, cell - 4, cell - 4);
    });
  };
  return html`<div style=${{ marginTop: "8px" }}><${Picture}
    label=${`Of ${several(count, "token")}, ${count - 1 - passedFrom} passed through the model in this step, and ${kept} are in the cache.`}
    draw=${draw}
    inputs=${[run, arm.number, row, blockTok, read]}
    height=${(/** @type {number} */ width) => place(width).height}
    asTable=${asTable}
    cells=${/** @type {Cells} */ ({
      count,
      columns: blockTok,
      describe,
      ...placesIn(latest),
    })}
    twin=${{ columns: ["token"], rows: () => Array.from({ length: count }, (_, index) => [describe(index)]) }}
  /></div>`;
}
