// @ts-check
// One request's cache as its blocks, a cell for each token: the lower half of the picture that views share. A cell is the token of the text: chosen here, it is chosen in all views.

import { hue } from "../draw/hues.js";
import { Picture, useAsTable } from "../draw/picture.js";
import { cellsOf, placesIn } from "../draw/signature.js";
import { html, useRef } from "../html.js";
import { count, several } from "./numbers.js";
import { legible } from "./token_text.js";

const MOST = 2048; // tokens: of longer texts the end
const CELL = 14; // pixels
const SMALL = 7; // of a text of many tokens
const MANY = 512;
export const LEAST_READ = 0.3; // of the largest share: what is read less keeps its colour

/** @param {{session: Session, request: EngineRequest, read?: Map<number, number>}} props `read`: share of attention by position, 0..1 of the largest */
export function TokenCells({ session, request, read }) {
  const { store, cursor, selection, runs } = session;
  const asTable = useAsTable();
  const latest = useRef(cellsOf(0, 1, 300, CELL)); // as drawn last
  const seq = cursor.seq.value;
  const blockTok = store.hello?.kv.block_tok ?? 0;
  const ids = request.added?.prompt_ids ?? [];
  const promptTok = request.added?.prompt_tok ?? ids.length;
  const all = promptTok + store.tokenCount(request, seq);
  const cached = store.cachedCount(request, seq) ?? 0;
  if (blockTok === 0 || all === 0) return null;
  const first = Math.floor(Math.max(0, all - MOST) / blockTok) * blockTok;
  const num = all - first;
  const size = num > MANY ? SMALL : CELL;
  const place = (/** @type {number} */ width) => cellsOf(num, blockTok, width, size);
  const textOf = (/** @type {number} */ pos) => (pos < promptTok ? (ids[pos] === undefined ? "" : runs.textOf(ids[pos])) : store.token(request.tokens[pos - promptTok])?.text ?? "");
  const describe = (/** @type {number} */ index) => {
    const pos = first + index;
    return `${legible(textOf(pos))} · position ${pos} · ${pos < cached ? `in the cache, block ${Math.floor(pos / blockTok)} of the text` : "not in the cache yet"}${(read?.get(pos) ?? 0) > LEAST_READ ? " · read by the chosen token" : ""}`;
  };
  const draw = (/** @type {Surface} */ surface) => {
    const { ctx, width, palette } = surface;
    const placed = (latest.current = place(width));
    placed.cells.forEach(({ x, y }, index) => {
      const pos = first + index;
      ctx.fillStyle = pos >= cached ? palette.line2 : hue(palette, request.hue);
      ctx.fillRect(x, y, placed.cell - 2, placed.cell - 2);
      paintRead(surface, x, y, placed.cell - 2, read?.get(pos) ?? 0);
      if (pos !== selection.pos.peek()) return;
      ctx.strokeStyle = palette.ink;
      ctx.lineWidth = 2;
      ctx.strokeRect(x - 1, y - 1, placed.cell, placed.cell);
    });
  };
  return html`<div class="token-cells">
    <${Picture}
      label=${`The cache of ${request.name}: ${several(cached, "token")} in blocks of ${blockTok}, a cell each.`}
      draw=${draw}
      inputs=${[request, all, cached, selection.pos.value, read]}
      height=${(/** @type {number} */ width) => place(width).height}
      asTable=${asTable}
      cells=${/** @type {Cells} */ ({
        count: num,
        columns: blockTok,
        describe,
        ...placesIn(latest),
        choose: (index) => (selection.pos.value = first + index),
      })}
      twin=${{ columns: ["token"], rows: () => Array.from({ length: num }, (_, index) => [describe(index)]) }}
    />
    <p class="small dim">A cell each token, a group each block${first > 0 ? `, the last ${count(num)}` : ""}. Grey: chosen, but not in the cache yet.${read ? " Amber: read by the chosen token." : ""}</p>
  </div>`;
}

/** Paints a cell that is read. @param {Surface} surface @param {number} x @param {number} y @param {number} size @param {number} share 0..1 of the largest */
export function paintRead({ ctx, palette }, x, y, size, share) {
  if (share <= LEAST_READ) return;
  ctx.fillStyle = palette.panel; // amber on the panel, so that it is as deep as the share is large
  ctx.fillRect(x, y, size, size);
  ctx.globalAlpha = 0.35 + 0.65 * share;
  ctx.fillStyle = palette.sun;
  ctx.fillRect(x, y, size, size);
  ctx.globalAlpha = 1;
}
