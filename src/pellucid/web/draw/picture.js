// @ts-check
// A picture on a canvas with its table twin: drawn in the frame after that in which something changed, keyboard focus on cells, spoken text.

import { effect, html, untracked, useEffect, useLayoutEffect, useMemo, useRef, useSignal } from "../html.js";
import { say } from "../parts/tips.js";
import { palette } from "./hues.js";

const MAX_ROWS = 200; // of a table shown at once

/**
 * @param {object} props
 * @param {string} props.label what the picture shows, one sentence with the numbers in it
 * @param {(surface: Surface) => void} props.draw called again when `inputs` change, and when `follows` does
 * @param {any[]} props.inputs
 * @param {{value: any}} [props.follows] a signal that only `draw` follows
 * @param {{value: any}} [props.moves] a signal that only `draw` follows: all is drawn again
 * @param {any} [props.keeps] while this stays the same, what was drawn stays, and `draw` draws what changed
 * @param {number | ((width: number) => number)} props.height in CSS pixels
 * @param {Cells} [props.cells]
 * @param {Twin} props.twin
 * @param {(index: number) => void} [props.onHover] a cell, or -1
 * @param {{value: boolean}} props.asTable signal: the table is shown instead
 */
export function Picture({ label, draw, inputs, follows, moves, keeps, height, cells, twin, onHover, asTable }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const focused = useSignal(-1);
  const mark = useSignal(/** @type {ReturnType<Cells["rect"]>} */ (null)); // the cell under the pointer
  const { canvas, tall } = useCanvas({
    box, height, follows, moves,
    inputs: [...inputs, focused.value, asTable.value],
    keeps: keeps && `${keeps} ${focused.value}`,
    draw(surface) {
      draw(surface);
      const { ctx, palette } = surface;
      const rect = focused.value >= 0 && cells ? cells.rect(focused.value) : null;
      if (!rect) return;
      ctx.strokeStyle = palette.ink;
      ctx.lineWidth = 2;
      ctx.strokeRect(rect.x - 1, rect.y - 1, rect.width + 2, rect.height + 2);
    },
  });

  /** @param {KeyboardEvent} event */
  const onKeyDown = (event) => {
    if (!cells || cells.count === 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    /** @type {Record<string, number>} */
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -cells.columns, ArrowDown: cells.columns };
    const from = Math.max(0, focused.value);
    let target = from;
    if (event.key in moves) target = focused.value < 0 ? 0 : from + moves[event.key];
    else if (event.key === "Home") target = 0;
    else if (event.key === "End") target = cells.count - 1;
    else if ((event.key === "Enter" || event.key === " ") && focused.value >= 0) cells.choose?.(focused.value);
    else return;
    event.preventDefault();
    event.stopPropagation();
    focused.value = Math.max(0, Math.min(cells.count - 1, target));
    cells.reveal?.(focused.value);
  };
  /** @param {PointerEvent} event */
  const at = (event) => (cells ? cells.hit(event.offsetX, event.offsetY) : -1);
  /** Marks a cell, and says what it is. @param {number} index -1: none @param {number} [x] of the pointer */
  const look = (index, x) => {
    const rect = cells && index >= 0 && index < cells.count ? cells.rect(index) : null;
    const of = canvas.current;
    const at = of?.getBoundingClientRect();
    if (!cells || !rect || !of || !at) {
      mark.value = null;
      say(null);
      return;
    }
    mark.value = rect;
    const middle = at.left + rect.x + rect.width / 2;
    say({ of, text: cells.describe(index), x: x === undefined || rect.width < 200 ? middle : x, top: at.top + rect.y, bottom: at.top + rect.y + rect.height });
  };
  useEffect(() => {
    if (focused.value >= 0) look(focused.value);
  }, [focused.value]);
  const spoken = focused.value >= 0 && cells && focused.value < cells.count ? cells.describe(focused.value) : "";

  return html`<div class="picture" ref=${box}>
    ${asTable.value
      ? html`<${TwinTable} label=${label} twin=${twin} />`
      : html`<canvas
            ref=${canvas}
            class=${cells?.choose ? "can-choose" : ""}
            style=${{ width: "100%", height: `${tall}px` }}
            tabindex=${cells ? 0 : undefined}
            role=${cells ? "application" : "img"}
            aria-roledescription=${cells ? "picture with cells" : undefined}
            aria-label=${cells ? `${label} Arrow keys go from cell to cell.` : label}
            onKeyDown=${onKeyDown}
            onBlur=${() => {
              focused.value = -1;
              look(-1);
            }}
            onPointerMove=${(/** @type {PointerEvent} */ event) => {
              if (event.pointerType === "touch") return;
              const index = event.buttons === 0 ? at(event) : -1;
              onHover?.(index);
              look(index, event.clientX);
            }}
            onPointerLeave=${() => {
              onHover?.(-1);
              look(-1);
            }}
            onClick=${(/** @type {PointerEvent} */ event) => {
              const cell = at(event);
              if (cell >= 0) cells?.choose?.(cell);
            }}
          ></canvas>
          ${mark.value && html`<i class="mark" style=${{ left: `${mark.value.x}px`, top: `${mark.value.y}px`, width: `${mark.value.width}px`, height: `${mark.value.height}px` }}></i>`}
          <p class="spoken" aria-live="polite">${spoken}</p>`}
  </div>`;
}

/** @param {{label: string, twin: Twin}} props */
function TwinTable({ label, twin }) {
  const first = useSignal(0);
  const rows = twin.rows();
  const shown = rows.slice(first.value, first.value + MAX_ROWS);
  const last = Math.min(rows.length, first.value + MAX_ROWS);
  return html`<div class="twin" tabindex="0" role="region" aria-label=${label}>
    <table>
      <caption>${label}</caption>
      <thead><tr>${twin.columns.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
      <tbody>
        ${shown.map(
          (row) => html`<tr>${row.map((value) => html`<td class=${typeof value === "number" ? "number" : ""}>${value}</td>`)}</tr>`,
        )}
      </tbody>
    </table>
    ${rows.length > MAX_ROWS &&
    html`<p class="pager">
      <button disabled=${first.value === 0} onClick=${() => (first.value -= MAX_ROWS)}>before</button>
      rows ${first.value + 1} to ${last} of ${rows.length}
      <button disabled=${last === rows.length} onClick=${() => (first.value += MAX_ROWS)}>after</button>
    </p>`}
  </div>`;
}

/**
 * Whether tables are shown in place of pictures; `t` switches all pictures of a view.
 * @returns {{value: boolean}}
 */
export function useAsTable() {
  const asTable = useSignal(false);
  return useMemo(() => asTable, []);
}

/**
 * A canvas as wide as a box; props are those of a Picture. What is new is drawn in the next frame, so that texts and pictures of a moment share no frame's time; at
 * once what the reader scrolls, and a picture of another size.
 * @param {{box: {current: Element | null}, draw: (surface: Surface) => void, inputs: any[], follows?: {value: any}, moves?: {value: any}, keeps?: any,
 *   height: number | ((width: number) => number)}} props
 */
export function useCanvas({ box, draw, inputs, follows, moves, keeps, height }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const width = useSignal(0);
  const later = useRef(0);
  const before = useRef(/** @type {any[]} */ ([]));
  useLayoutEffect(() => {
    const observer = new ResizeObserver(([entry]) => {
      width.value = Math.floor(entry.contentRect.width);
    });
    if (box.current) observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const tall = typeof height === "function" ? height(width.value) : height;
  const colours = palette.value;
  const size = () => {
    const ratio = devicePixelRatio || 1;
    return [ratio, Math.round(width.value * ratio), Math.round(tall * ratio)];
  };
  const paintLater = () => {
    later.current ||= requestAnimationFrame(() => latest.current());
  };
  const stop = () => {
    cancelAnimationFrame(later.current);
    later.current = 0;
  };
  const paint = () => {
    stop();
    if (!canvas.current || width.value === 0) return;
    if (document.hidden) {
      paintLater(); // the next frame comes when the page is seen again
      return;
    }
    const [ratio, w, h] = size();
    if (canvas.current.width !== w) canvas.current.width = w;
    if (canvas.current.height !== h) canvas.current.height = h;
    const ctx = /** @type {CanvasRenderingContext2D} */ (canvas.current.getContext("2d"));
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    const now = [keeps, canvas.current, w, h, colours];
    const isFresh = keeps === undefined || now.some((each, index) => each !== before.current[index]);
    before.current = now;
    if (isFresh) ctx.clearRect(0, 0, width.value, tall);
    draw({ ctx, width: width.value, height: tall, palette: colours, isFresh });
  };
  const latest = useRef(paint);
  latest.current = paint;
  useLayoutEffect(() => {
    const [, w, h] = size();
    if (canvas.current?.width === w && canvas.current.height === h) paintLater();
    else paint();
  }, [...inputs, width.value, tall, colours]);
  useEffect(() => follows && effect(() => {
    follows.value;
    paintLater();
  }), [follows]);
  useEffect(() => stop, []);
  useEffect(() => moves && effect(() => {
    moves.value;
    before.current = [];
    untracked(() => latest.current());
  }), [moves]);
  return { canvas, tall };
}
