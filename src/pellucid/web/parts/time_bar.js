// @ts-check
// The time bar: one cursor for all views. Steps of the engine, live or replayed.

import { useCanvas } from "../draw/picture.js";
import { html, useRef } from "../html.js";
import { SPEEDS } from "../state/session.js";
import { Select } from "./controls.js";
import { count, inTime } from "./numbers.js";
import { useReadableSeq } from "./panel.js";

/** @param {{session: Session}} props */
export function TimeBar({ session }) {
  const { store, cursor, source } = session;
  const seq = useReadableSeq(cursor);
  const row = store.rowAt(store.steps, seq);
  const { first, end } = store.steps;
  const step = row < 0 ? 0 : store.steps.get("step", row);
  const lastStep = end > first ? store.steps.get("step", end - 1) : store.head.step;
  const isLive = cursor.isLive.value;
  const isPlaying = cursor.isPlaying.value;
  if (isPlaying) cursor.seq.value; // the slider glides
  const status = source.status.value;
  return html`<footer class="time-bar" aria-label="Time">
    <div class="transport">
      ${[
        ["first", "first step", "Home", () => cursor.seekStep(first)],
        ["back", "a step back", "←", () => cursor.move(-1)],
        isLive || isPlaying ? ["hold", "hold", "Space", cursor.toggle] : ["play", "play", "Space", cursor.toggle],
        ["on", "a step on", "→", () => cursor.move(1)],
        ["last", "newest", "End", cursor.goLive],
      ].map(
        ([icon, says, key, run]) => html`<button class=${key === "Space" ? "main" : ""} title=${`${says} (${key})`} aria-label=${says} onClick=${run}>
          <svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true"><path d=${ICONS[/** @type {string} */ (icon)]} fill="currentColor" /></svg>
        </button>`,
      )}
    </div>
    <p class="where"><span>step ${count(step)}<small> / ${count(lastStep)}</small></span><small>${inTime(cursor.timeUs.peek())}</small></p>
    <div class="scrub">
      <${TimeStrip} store=${store} end=${end} />
      <input
        type="range"
        aria-label="step"
        aria-valuetext=${`step ${step} of ${lastStep}`}
        min=${first}
        max=${Math.max(first, end - 1)}
        value=${Math.max(first, row)}
        style=${{ "--at": `${((Math.max(first, row) - first) / Math.max(1, end - 1 - first)) * 100}%` }}
        onInput=${(/** @type {any} */ event) => cursor.seekStep(Number(event.target.value))}
      />
    </div>
    <label class="speed">
      <span class="spoken">speed of replay</span>
      <${Select} of=${cursor.speed} options=${SPEEDS.map((speed) => [speed, `${speed}×`])} />
    </label>
    <button class=${`live ${isLive && status === "open" ? "on" : ""} ${status === "lost" ? "lost" : ""}`} onClick=${cursor.goLive}>
      ${status === "lost" ? "no connection" : status === "connecting" || status === "refused" ? status : source.isLive ? "live" : "end"}
    </button>
  </footer>`;
}

/** @type {Record<string, string>} paths in a square of 16 */
const ICONS = {
  first: "M3 3h2v10H3zM13 3v10L6 8z",
  back: "M11 3v10L4 8z",
  play: "M4 2.5v11L13 8z",
  hold: "M4 3h3v10H4zM9 3h3v10H9z",
  on: "M5 3v10l7-5z",
  last: "M11 3h2v10h-2zM3 3v10l7-5z",
};

const HEIGHT = 18;

/** What each step did: a bar as high as its tokens, prompts lighter than decoded tokens. @param {{store: Store, end: number}} props */
function TimeStrip({ store, end }) {
  const box = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const { canvas } = useCanvas({
    box,
    height: HEIGHT,
    inputs: [store.hello, end],
    draw({ ctx, width, palette }) {
      const { first } = store.steps;
      const count = end - first;
      if (count === 0) return;
      const bars = Math.min(count, Math.floor(width / 3));
      const each = width / bars;
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
        ctx.fillStyle = palette.line2;
        ctx.fillRect(bar * each, HEIGHT - promptHeight, Math.max(1, each - 1), promptHeight);
        ctx.fillStyle = palette.water;
        ctx.globalAlpha = 0.55;
        ctx.fillRect(bar * each, HEIGHT - decodedHeight, Math.max(1, each - 1), decodedHeight);
        ctx.globalAlpha = 1;
      }
    },
  });
  return html`<div ref=${box}><canvas ref=${canvas} class="strip" aria-hidden="true"></canvas></div>`;
}
