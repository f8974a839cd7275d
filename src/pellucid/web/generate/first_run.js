// @ts-check
// A recorded run that plays where nothing has been generated yet: the text as it is written, where each new token looked, and the blocks of the cache that hold it.

import { useCanvas } from "../draw/picture.js";
import { drawSignature, layoutOf } from "../draw/signature.js";
import { html, useEffect, useRef, useSignal } from "../html.js";
import { inTime, percent } from "../parts/numbers.js";
import { legible } from "../parts/token_text.js";
import { fileUrl } from "../state/files.js";

const PROMPT_MS = 160; // a token of the prompt appears
const PREFILL_MS = 2600; // their pass
const TOKEN_MS = 620; // a pass of a new token: it looks back, then it is there
const LOOK = 0.55; // of that time

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
    height: (width) => (run ? layoutOf(textsOf(run), run.block_tok, width).height : 0),
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

/** @param {FirstRun} run */
export const textsOf = ({ prompt, tokens }) => [...prompt, ...tokens.map(({ text }) => text)];

/** @param {Surface} surface @param {FirstRun} run @param {number} time */
function drawRun(surface, run, time) {
  const { shown, cached, newest, look } = sceneAt(run, time);
  const promptTok = run.prompt.length;
  drawSignature(surface, layoutOf(textsOf(run), run.block_tok, surface.width), {
    promptTok, shown, cached, look, odds: (index) => run.tokens[index - promptTok].cand[0][1],
    target: newest < 0 ? -1 : promptTok + newest, read: newest < 0 ? [] : run.tokens[newest].read,
  });
}
