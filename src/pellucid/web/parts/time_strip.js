// @ts-check
// The strip above the slider: what each step did, a bar as high as its tokens, prompts lighter than decoded tokens.

import { palette } from "../draw/theme.js";
import { html, useEffect, useRef, useSignal } from "../html.js";

const HEIGHT = 18;

/** @param {{session: import("../state/session.js").Session}} props */
export function TimeStrip({ session }) {
  const { store, cursor } = session;
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const width = useSignal(0);
  const version = cursor.version.value;
  const colours = palette.value;
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => {
      width.value = Math.floor(entry.contentRect.width);
    });
    if (canvas.current) observer.observe(canvas.current);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    const frame = requestAnimationFrame(() => {
      if (!canvas.current || !width.value) return;
      const ratio = devicePixelRatio || 1;
      canvas.current.width = width.value * ratio;
      canvas.current.height = HEIGHT * ratio;
      const ctx = /** @type {CanvasRenderingContext2D} */ (canvas.current.getContext("2d"));
      ctx.scale(ratio, ratio);
      const { first, end } = store.steps;
      const count = end - first;
      if (count === 0) return;
      const bars = Math.min(count, Math.floor(width.value / 3));
      const each = width.value / bars;
      for (let bar = 0; bar < bars; bar++) {
        let prompt = 0;
        let decoded = 0;
        const from = first + Math.floor((bar * count) / bars);
        const to = first + Math.floor(((bar + 1) * count) / bars);
        for (let row = from; row < to; row++) {
          const batchFirst = store.steps.get("batch_first", row);
          const size = store.steps.get("batch_size", row);
          for (let i = batchFirst; i < batchFirst + size; i++) {
            const tokens = store.batches.get("q_tok", i);
            if (store.steps.get("kind", row) === 1 || tokens === 1) decoded = Math.max(decoded, size);
            else prompt += tokens;
          }
        }
        const decodedHeight = decoded === 0 ? 0 : Math.min(HEIGHT, 4 + 2 * decoded);
        const promptHeight = prompt === 0 ? 0 : Math.min(HEIGHT, 6 + 2 * Math.log2(1 + prompt));
        ctx.fillStyle = colours.line2;
        ctx.fillRect(bar * each, HEIGHT - promptHeight, Math.max(1, each - 1), promptHeight);
        ctx.fillStyle = colours.water;
        ctx.globalAlpha = 0.55;
        ctx.fillRect(bar * each, HEIGHT - decodedHeight, Math.max(1, each - 1), decodedHeight);
        ctx.globalAlpha = 1;
      }
    });
    return () => cancelAnimationFrame(frame);
  }, [version, width.value, colours]);
  return html`<canvas ref=${canvas} class="strip" aria-hidden="true"></canvas>`;
}
