// @ts-check
// A recorded run that plays where nothing has been generated yet: the text as it is written, where each new token looked, and the blocks of the cache that hold it.

import { useCanvas } from "../draw/picture.js";
import { html, useEffect, useRef, useSignal } from "../html.js";
import { inTime, percent } from "../parts/numbers.js";
import { legible } from "../parts/token_text.js";
import { fileUrl } from "../state/files.js";

const PROMPT_MS = 160; // a token of the prompt appears
const PREFILL_MS = 2600; // their pass
const TOKEN_MS = 620; // a pass of a new token: it looks back, then it is there
const LOOK = 0.55; // of that time
const ROW = 58; // pixels: a line of text, with room for the arcs above it
const CELL = 14;
const BLOCKS_TOP = 26; // pixels between the text and the blocks, where their title stands

/** @param {{session: Session}} props */
export function FirstRun({ session }) {
  const run = useRecorded();
  const time = useSignal(-1); // milliseconds of the film; -1: not begun
  const isPlaying = useSignal(false);
  const end = run ? endOf(run) : 0;
  useEffect(() => {
    if (!run) return;
    const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
    time.value = isStill ? momentOf(run, 0) + TOKEN_MS * LOOK : 0;
    isPlaying.value = !isStill;
  }, [run]);
  useEffect(() => {
    if (!isPlaying.value) return undefined;
    let frame = 0;
    let last = performance.now();
    const step = (/** @type {number} */ now) => {
      time.value = Math.min(end, time.value + Math.min(100, now - last));
      last = now;
      if (time.value < end) frame = requestAnimationFrame(step);
      else isPlaying.value = false;
    };
    frame = requestAnimationFrame(step);
    return () => cancelAnimationFrame(frame);
  }, [isPlaying.value, end]);
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const { canvas, tall } = useCanvas({
    box,
    inputs: [run],
    follows: time,
    height: (width) => (run ? layoutOf(run, width).height : 0),
    draw: (surface) => run && time.value >= 0 && drawRun(surface, run, time.value),
  });
  const again = () => {
    time.value = 0;
    isPlaying.value = true;
  };
  const label = run
    ? `A recorded run of ${run.model}: ${run.prompt.length} tokens of a prompt, ${run.tokens.length} new ones, an arc from each new one to those that it read most, and the blocks that hold them.`
    : "";
  return html`<div class="first-run" ref=${box}>
    <canvas ref=${canvas} style=${{ width: "100%", height: `${tall}px` }} role="img" aria-label=${label}></canvas>
    ${run && html`<${Caption} run=${run} time=${time} />
      <p class="row">
        <a class="button primary" href="#learn">Now you: the lesson</a>
        <button onClick=${() => document.getElementById("prompt")?.focus()}>or a prompt of your own</button>
        ${isPlaying.value
          ? html`<button onClick=${() => (isPlaying.value = false)}>Hold</button>`
          : html`<button onClick=${() => (time.value < end ? (isPlaying.value = true) : again())}>${time.value < end ? "Play" : "Again"}</button>`}
        <span class="faint small">A recorded run of ${run.model}.${session.source.isLive ? " A prompt of yours runs on this engine." : ""}</span>
      </p>`}
  </div>`;
}

/** @returns {Promise<FirstRun | null>} null: this page has none */
export async function recordedRun() {
  const reply = await fetch(fileUrl("traces/first_run.json"));
  return reply.ok ? reply.json() : null;
}

function useRecorded() {
  const found = useSignal(/** @type {FirstRun | null} */ (null));
  useEffect(() => {
    recordedRun().then((run) => (found.value = run), () => {});
  }, []);
  return found.value;
}

/** When the pass begins that chooses a new token, in milliseconds of the film. @param {FirstRun} run @param {number} index */
const momentOf = ({ prompt }, index) => prompt.length * PROMPT_MS + PREFILL_MS + (index - 1) * TOKEN_MS;

/** @param {FirstRun} run */
export const endOf = (run) => momentOf(run, run.tokens.length) + TOKEN_MS;

/**
 * What there is at a moment.
 * @param {FirstRun} run
 * @param {number} time milliseconds of the film
 * @returns {{phase: "prompt" | "prefill" | "decode" | "done", shown: number, cached: number, newest: number, look: number}} `shown`: tokens of the text; `cached`:
 *   tokens in the cache; `newest`: the new token that is being chosen or was chosen last; `look`: 0..1, how far its arcs are drawn
 */
export function sceneAt(run, time) {
  const { prompt, tokens } = run;
  const begun = prompt.length * PROMPT_MS;
  if (time < begun) return { phase: "prompt", shown: Math.ceil(time / PROMPT_MS), cached: 0, newest: -1, look: 0 };
  const since = time - momentOf(run, 0);
  if (since < 0) return { phase: "prefill", shown: prompt.length, cached: Math.min(prompt.length, Math.ceil(((time - begun) / (PREFILL_MS - TOKEN_MS)) * 2 * prompt.length)), newest: -1, look: 0 };
  const newest = Math.min(tokens.length - 1, Math.floor(since / TOKEN_MS));
  const part = since / TOKEN_MS - newest;
  const isThere = part >= LOOK;
  return {
    phase: newest === tokens.length - 1 && part >= 1 ? "done" : newest === 0 ? "prefill" : "decode",
    shown: prompt.length + newest + Number(isThere),
    cached: prompt.length + newest,
    newest,
    look: Math.min(1, part / LOOK),
  };
}

/** One sentence at a time. @param {{run: FirstRun, time: {value: number}}} props */
function Caption({ run, time }) {
  const { phase, newest } = sceneAt(run, Math.max(0, time.value));
  const token = run.tokens[Math.max(0, newest)];
  const [text, p] = token.cand[0];
  const chose = html`<q class="mono">${legible(text)}</q> with ${percent(p)}`;
  if (phase === "prompt") return html`<p class="why"><b>A prompt becomes tokens:</b> words and pieces of words.</p>`;
  if (phase === "prefill") {
    return html`<p class="why"><b>Prefill.</b> All ${run.prompt.length} tokens pass the model together, in ${inTime(token.us)}. What it works out about each of them stays in the KV cache, in blocks of ${run.block_tok}${newest < 0 ? "." : html`; it chooses ${chose}.`}</p>`;
  }
  if (phase === "decode") {
    return html`<p class="why"><b>Decode.</b> The newest token alone passes the model, in ${inTime(token.us)}, and looks back at the cached ones: ${chose}.</p>`;
  }
  return html`<p class="why"><b>${run.tokens.length} new tokens, ${run.tokens.length} passes.</b> Without the cache each of them would have computed the whole text again.</p>`;
}

/**
 * Where everything stands.
 * @param {FirstRun} run
 * @param {number} width in CSS pixels
 */
export function layoutOf(run, width) {
  const all = [...run.prompt, ...run.tokens.map(({ text }) => text)].map((text) => text.replaceAll("\n", "↵"));
  const letter = width < 480 ? 7.2 : 9;
  let [x, row] = [0, 0];
  const tokens = all.map((text) => {
    const wide = Math.max(1, [...text].length) * letter + 3;
    if (x + wide > width && x > 0) [x, row] = [0, row + 1];
    const at = { text, x, y: row * ROW + ROW - 22, width: wide - 2 };
    x += wide;
    return at;
  });
  const top = (row + 1) * ROW + BLOCKS_TOP;
  const cell = Math.min(CELL, Math.floor((width - 8) / run.block_tok) - 1);
  const across = Math.max(1, Math.floor((width + 12) / (run.block_tok * cell + 12)));
  const cells = all.map((_, index) => {
    const block = Math.floor(index / run.block_tok);
    return {
      x: (block % across) * (run.block_tok * cell + 12) + (index % run.block_tok) * cell,
      y: top + Math.floor(block / across) * (cell + 12),
    };
  });
  const lines = Math.ceil(Math.ceil(all.length / run.block_tok) / across);
  return { tokens, cells, cell, top, letter, height: top + lines * (cell + 12) + 4 };
}

/** @param {Surface} surface @param {FirstRun} run @param {number} time */
function drawRun({ ctx, width, palette }, run, time) {
  const { tokens, cells, cell, top, letter } = layoutOf(run, width);
  const { shown, cached, newest, look } = sceneAt(run, time);
  const read = newest >= 0 ? run.tokens[newest].read : [];
  const target = tokens[run.prompt.length + newest];
  ctx.font = `${letter === 9 ? 15 : 12}px ${palette.mono}`;
  ctx.textBaseline = "middle";
  tokens.slice(0, shown).forEach(({ text, x, y, width: wide }, index) => {
    const isNew = index >= run.prompt.length;
    if (isNew) {
      const [, p] = run.tokens[index - run.prompt.length].cand[0];
      ctx.globalAlpha = 0.1 + 0.3 * p;
      ctx.fillStyle = palette.odds;
      ctx.fillRect(x, y - 12, wide, 24);
      ctx.globalAlpha = 1;
    }
    ctx.fillStyle = isNew ? palette.ink : palette.ink2;
    ctx.fillText(text, x + 1, y, wide);
  });
  if (newest >= 0) {
    ctx.strokeStyle = palette.sun;
    const most = Math.max(...read.map(([, weight]) => weight));
    for (const [position, weight] of read) drawArc(ctx, target, tokens[position], look, 1 + (4 * weight) / most);
    if (look < 1) {
      ctx.strokeStyle = palette.line2;
      ctx.lineWidth = 1;
      ctx.strokeRect(target.x + 0.5, target.y - 12.5, target.width, 24);
    }
  }
  ctx.fillStyle = palette.ink3;
  ctx.font = `11px ${palette.ui}`;
  ctx.fillText(`KV cache: ${cached} tokens in blocks of ${run.block_tok}`, 0, top - 12, width);
  const looked = new Map(read);
  cells.forEach(({ x, y }, index) => {
    ctx.fillStyle = index < cached ? (looked.has(index) && look > 0 ? palette.sun : palette.owners[0]) : palette.line;
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
