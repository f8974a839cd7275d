// @ts-check
// The picture that the views share: a text as its tokens, arcs from the token that looks to those that it reads, and below it the blocks of the cache that hold them,
// a cell for each token. Amber is what is read, the request's hue what is in the cache.

import { hue } from "./hues.js";

const ROW = 58; // pixels: a line of text, with room for the arcs above it
const CELL = 14;
const BLOCKS_TOP = 28; // pixels between the text and the blocks, where their title stands

/**
 * Where everything stands.
 * @param {string[]} texts of tokens
 * @param {number} blockTok tokens of a block
 * @param {number} width in CSS pixels
 */
export function layoutOf(texts, blockTok, width) {
  const letter = width < 480 ? 8.5 : 9;
  let [x, row] = [0, 0];
  const tokens = texts.map((each) => {
    const text = each.replaceAll("\n", "↵");
    const wide = Math.max(1, [...text].length) * letter + 3;
    if (x + wide > width && x > 0) [x, row] = [0, row + 1];
    const at = { text, x, y: row * ROW + ROW - 22, width: wide - 2 };
    x += wide;
    return at;
  });
  const top = (row + 1) * ROW + BLOCKS_TOP;
  const { cells, cell, height } = cellsOf(texts.length, blockTok, width, CELL);
  return { tokens, cells: cells.map(({ x, y }) => ({ x, y: top + y })), cell, top, blockTok, height: top + height };
}

/**
 * A cell for each token, a group for each block.
 * @param {number} count of tokens
 * @param {number} blockTok tokens of a block
 * @param {number} width in CSS pixels
 * @param {number} most pixels of a cell, the gap behind it included
 */
export function cellsOf(count, blockTok, width, most) {
  const lines = Math.max(1, Math.ceil((blockTok * 6) / Math.max(1, width - 8))); // a block of many tokens takes several
  const inLine = Math.ceil(blockTok / lines);
  const cell = Math.max(4, Math.min(most, Math.floor((width - 8) / inLine)));
  const [wide, tall] = [inLine * cell + 12, lines * cell + 12];
  const across = Math.max(1, Math.floor((width + 12) / wide));
  const cells = Array.from({ length: count }, (_, index) => {
    const [block, at] = [Math.floor(index / blockTok), index % blockTok];
    return { x: (block % across) * wide + (at % inLine) * cell + 1, y: Math.floor(block / across) * tall + Math.floor(at / inLine) * cell + 1 };
  });
  const rows = Math.ceil(Math.ceil(count / blockTok) / across);
  return { cells, cell, height: rows * tall };
}

/**
 * Where the cells of a picture are that was drawn last.
 * @param {{current: ReturnType<typeof cellsOf>}} drawn
 * @returns {Pick<Cells, "rect" | "hit">}
 */
export const placesIn = (drawn) => ({
  rect(index) {
    const { cells, cell } = drawn.current;
    return cells[index] ? { ...cells[index], width: cell - 2, height: cell - 2 } : null;
  },
  hit: (x, y) => drawn.current.cells.findIndex((each) => x >= each.x && x < each.x + drawn.current.cell && y >= each.y && y < each.y + drawn.current.cell),
});

/**
 * @param {Surface} surface
 * @param {ReturnType<typeof layoutOf>} layout
 * @param {object} scene
 * @param {number} scene.promptTok
 * @param {number} scene.shown tokens of the text
 * @param {number} scene.cached tokens in the cache
 * @param {(index: number) => number} scene.odds of a new token, by its position
 * @param {number} [scene.hue] of the request
 * @param {number} [scene.target] the position that is chosen from what was read; -1: none
 * @param {[number, number][]} [scene.read] positions and their weights
 * @param {number} [scene.look] 0..1, how far the arcs are drawn
 * @param {[number, number]} [scene.passing] the tokens that pass the model now: the first, and the one after the last
 */
export function drawSignature({ ctx, width, palette }, { tokens, cells, cell, top, blockTok }, scene) {
  const { promptTok, shown, cached, odds, target = -1, read = [], look = 0, passing = [0, 0] } = scene;
  ctx.font = `${width < 480 ? 14 : 15}px ${palette.mono}`;
  ctx.textBaseline = "middle";
  tokens.slice(0, shown).forEach(({ text, x, y, width: wide }, index) => {
    if (index >= promptTok) {
      ctx.globalAlpha = 0.1 + 0.3 * odds(index);
      ctx.fillStyle = palette.odds;
      ctx.fillRect(x, y - 12, wide, 24);
      ctx.globalAlpha = 1;
    }
    if (index >= passing[0] && index < passing[1]) {
      ctx.fillStyle = hue(palette, scene.hue ?? 0);
      ctx.fillRect(x, y + 13, wide, 3);
    }
    ctx.fillStyle = index >= promptTok ? palette.ink : palette.ink2;
    ctx.fillText(text, x + 1, y, wide);
  });
  if (target >= 0) {
    ctx.strokeStyle = palette.sun;
    const most = Math.max(...read.map(([, weight]) => weight));
    for (const [position, weight] of read) drawArc(ctx, tokens[target], tokens[position], look, 1 + (4 * weight) / most);
    if (look < 1) {
      ctx.strokeStyle = palette.line2;
      ctx.lineWidth = 1;
      ctx.strokeRect(tokens[target].x + 0.5, tokens[target].y - 12.5, tokens[target].width, 24);
    }
  }
  ctx.fillStyle = palette.ink2;
  ctx.font = `14px ${palette.ui}`;
  ctx.fillText(`KV cache: ${cached} tokens in blocks of ${blockTok}`, 0, top - 14, width);
  const looked = new Map(read);
  cells.forEach(({ x, y }, index) => {
    ctx.fillStyle = index < cached ? (looked.has(index) && look > 0 ? palette.sun : hue(palette, scene.hue ?? 0)) : palette.line;
    ctx.fillRect(x, y, cell - 2, cell - 2);
  });
}

/**
 * An arc above the text, from the token that looks to one that it reads.
 * @param {CanvasRenderingContext2D} ctx
 * @param {{x: number, y: number, width: number}} from
 * @param {{x: number, y: number, width: number}} to
 * @param {number} part 0..1 of it is drawn
 * @param {number} thick in pixels
 */
function drawArc(ctx, from, to, part, thick) {
  const [x0, y0, x2, y2] = [from.x + from.width / 2, from.y - 13, to.x + to.width / 2, to.y - 13];
  const [x1, y1] = [(x0 + x2) / 2, Math.min(y0, y2) - Math.min(30, 8 + Math.abs(x0 - x2) / 8)];
  // The first part of a quadratic curve is a quadratic curve.
  const [a, b] = [x0 + (x1 - x0) * part, y0 + (y1 - y0) * part];
  const [c, d] = [x1 + (x2 - x1) * part, y1 + (y2 - y1) * part];
  ctx.globalAlpha = 0.75;
  ctx.lineWidth = thick;
  ctx.lineCap = "round";
  ctx.beginPath();
  ctx.moveTo(x0, y0);
  ctx.quadraticCurveTo(a, b, a + (c - a) * part, b + (d - b) * part);
  ctx.stroke();
  ctx.globalAlpha = 1;
}
