// @ts-check
// The steps of Learn about passes: one token at a time, and the same text with the cache and without.

import { newRun, take } from "../compare/loops.js";
import { useCanvas } from "../draw/picture.js";
import { drawSignature, layoutOf } from "../draw/signature.js";
import * as formulas from "../formulas.js";
import { html, useRef } from "../html.js";
import { count, digits, inBytes, inPrefix, inTime, median, percent, several } from "../parts/numbers.js";
import { legible } from "../parts/token_text.js";
import { Film } from "./film.js";
import { Arms } from "./frame.js";
import { Pieces } from "./pieces.js";

const PROMPT = "Once upon a time there was a girl called Mia. She had a red kite and a small dog. One day the wind was strong and";
const TOKENS = 12;
const FRAME_MS = 380; // of a decode step, slowed down
const LONGEST_MS = 4000;

/**
 * Writes a text with and without the cache.
 * @param {Session} session
 * @param {string} prompt
 * @param {number} max_tokens
 * @returns {Promise<Comparison & {prompt: string[]}>} and the texts of the prompt's tokens
 */
async function compareCaches({ api, runs }, prompt, max_tokens) {
  /** @type {any} */
  let run = null;
  /** @type {number[]} */
  let ids = [];
  await api.stream("/v1/compare", { prompt, kind: "cache", max_tokens, temperature: 0 }, {
    onData(event) {
      if (event.ev === "cmp.begin") [run, ids] = [newRun(event), event.prompt_ids];
      else take(run, event);
    },
  });
  if (!run?.end) throw new Error("the comparison did not end");
  await runs.learnTexts(ids);
  return { ...run, prompt: ids.map(runs.textOf) };
}

const cached = (/** @type {{promptTok: number, output: string[]}} */ { promptTok, output }) => formulas.cachedTokens.of({ N: promptTok, m: output.length });
const stepOf = (/** @type {any} */ { steps }) => median(steps.slice(1).map((/** @type {any} */ { us }) => us));

/** @type {Lesson} */
export const oneToken = {
  id: "one-token",
  took: (result) => `${cached(result)} tokens in the cache: prefill ${inTime(result.steps[0].us)}, then ${inTime(stepOf(result))} a token`,
  title: "One piece at a time",
  points: ["A model writes one token per pass.", "The prompt passes once, together: prefill.", "Each further token passes alone: decode."],
  Opening: Pieces,
  scene: html`<p>Now the engine gets the beginning of a story, the <b>prompt</b>, and writes ${TOKENS} more tokens, one after the other.</p>
    <p class="quoted">${PROMPT} …</p>`,
  predict: {
    ask: "For which of them will you wait longest?",
    options: [["first", "the first one"], ["second", "the second one"], ["last", "the last one"], ["alike", "all alike"]],
    answer: ({ steps }) => {
      const most = Math.max(...steps.map((/** @type {any} */ { us }) => us));
      const at = steps.findIndex((/** @type {any} */ { us }) => us === most);
      return at === 0 ? "first" : at === 1 ? "second" : at === steps.length - 1 ? "last" : most > 1.5 * stepOf({ steps }) ? "another" : "alike";
    },
    explain: (result) => html`The first took ${inTime(result.steps[0].us)}, the others about ${inTime(stepOf(result))} each. Before the first token, all <b>${result.promptTok}</b> tokens of the story had to pass
      through the model. Before the second one, <b>one</b> token had to: the newest. The others were kept.`,
  },
  text: html`<p>
      A language model does one thing: it looks at the tokens of a text and says how likely each token that it knows comes next. One is taken and appended, and the model looks
      again. Each such look is a <b>pass</b>: tokens go through all of the model's calculations once. The first pass takes the whole prompt together: <b>prefill</b>. Each later pass takes the
      newest token alone: <b>decode</b>. What the model has worked out about all the others waits in memory, in the <b>KV cache</b>. So the second word comes sooner than the first.
    </p>
    <p>The cache is kept in <b>blocks</b>: pieces of memory, each with room for the same number of tokens. In the picture a square is a token, and a group of squares is a block. The newest token
      goes in when it passes.</p>`,
  goOn: ["timeline", "shows these steps on one axis, and where the time of each went."],
  action: `Write ${TOKENS} tokens`,
  /** The arm with a cache of a comparison: an engine that makes no drafts, whatever the server's does. */
  async run(session) {
    const run = await compareCaches(session, PROMPT, TOKENS);
    const { passed, stepUs, texts } = run.arms[0];
    const steps = passed.map((ctx, row) => ({ q: ctx - (passed[row - 1] ?? 0), ctx, us: stepUs[row], made: [texts[row]] }));
    return { promptTok: run.promptTok, prompt: run.prompt, output: texts, steps, blockTok: session.store.hello.kv.block_tok };
  },
  Show: ({ result, plays, onEnd }) => {
    const slower = Math.min((FRAME_MS * 1000) / stepOf(result), (LONGEST_MS * 1000) / Math.max(...result.steps.map((/** @type {any} */ { us }) => us)));
    return html`<${Film} frames=${result.steps.length} plays=${plays} onEnd=${onEnd} lasts=${(/** @type {number} */ frame) => (result.steps[frame].us / 1000) * slower}
      says=${(/** @type {number} */ frame) => `token ${frame} of ${result.steps.length}`}>
      ${(/** @type {number} */ frame) => html`<${Passes} result=${result} frame=${frame} />
        <table class="run-steps">
          <caption>Each pass of your run${slower >= 2 && `, slowed down ${count(slower)} times in the film`}</caption>
          <thead><tr><th>pass</th><th class="number">tokens</th><th class="wide"></th><th>chose</th><th class="number">cached</th><th class="number">time</th></tr></thead>
          <tbody>
            ${result.steps.map(
              (/** @type {RunFact["steps"][number]} */ step, /** @type {number} */ index) => html`<tr class=${index < frame ? "" : "to-come"}>
                <td>${index === 0 ? "prefill" : "decode"}</td>
                <td class="number">${step.q}</td>
                <td class="wide"><span class="bar owner"><i style=${{ width: `${(100 * step.us) / Math.max(...result.steps.map((/** @type {any} */ { us }) => us))}%` }}></i></span></td>
                <td class="mono">${legible(step.made.join(""))}</td>
                <td class="number">${step.ctx}</td>
                <td class="number">${inTime(step.us)}</td>
              </tr>`,
            )}
          </tbody>
        </table>`}
    <//>`;
  },
  check: {
    ask: "How many tokens passed through the model in the last pass of your run?",
    options: [["1", "one"], ["some", "those that were written so far"], ["all", "the whole text"]],
    answer: ({ steps }) => (steps.at(-1).q === 1 ? "1" : steps.at(-1).q === steps.at(-1).ctx ? "all" : "some"),
    explain: (result) => html`<b>${several(result.steps.at(-1).q, "token")}</b>: the newest. It read the other ${result.steps.at(-1).ctx - 1} from the cache.`,
  },
};

/** Text and blocks while the pass after `frame` tokens runs. @param {{result: any, frame: number}} props */
function Passes({ result, frame }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const texts = [...result.prompt, ...result.output];
  const { promptTok, steps, blockTok } = result;
  const isOver = frame === steps.length;
  const done = frame === 0 ? 0 : steps[frame - 1].ctx;
  const { canvas, tall } = useCanvas({
    box,
    inputs: [result, frame],
    height: (width) => layoutOf(texts, blockTok, width).height,
    draw: (surface) => drawSignature(surface, layoutOf(texts, blockTok, surface.width), {
      promptTok, shown: promptTok + frame, cached: done, odds: () => 0.5, passing: isOver ? [0, 0] : [done, steps[frame].ctx],
    }),
  });
  const says = isOver
    ? html`<b>Done.</b> ${several(steps.length, "token")}, a pass each. ${count(cached(result))} tokens in the cache = ${promptTok} + ${steps.length} − 1: the newest has not passed yet.`
    : frame === 0
      ? html`<b>Prefill.</b> ${promptTok} tokens pass together: the underlined ones. What is worked out about each is kept, a square each.`
      : html`<b>Decode.</b> One token passes: the underlined one. The other ${done} are in the cache.`;
  return html`<div ref=${box}><canvas ref=${canvas} style=${{ width: "100%", height: `${tall}px` }} role="img" aria-label=${`The text, and ${done} tokens in blocks of the cache.`}></canvas>
    <p class="says">${says}</p>
    ${texts[0].startsWith("<") && html`<p class="small dim"><span class="mono">${texts[0]}</span> is put before each text: it says where it begins.</p>`}</div>`;
}

const SHORT_PROMPT = "Once upon a time";
const BOTH_WAYS_TOKENS = 32;

/** @type {Lesson} */
export const withWithout = {
  id: "with-without",
  took: (result) => `${count(result.naive.pass)} tokens passed without, ${count(result.cached.pass)} with, ${inTime(result.naive.us)} and ${inTime(result.cached.us)}; ${inBytes(result.cached.held)} held`,
  title: "With the cache and without",
  points: ["A cache costs memory and saves compute.", "Without it every token passes again and again.", "The text is the same."],
  scene: html`<p>Suppose that the model kept no notes: after each word it forgets all that it has worked out, like somebody who closes the book after every word.</p>`,
  predict: {
    ask: "What must it read again to write the next word?",
    options: [["newest", "the newest word"], ["prompt", "the prompt"], ["all", "everything"], ["none", "nothing"]],
    answer: ({ curves, promptTok, naive }) => {
      const { pass } = curves.naive;
      const last = pass.at(-1) - (pass.at(-2) ?? 0);
      return last === promptTok + naive.tokens - 1 ? "all" : last === promptTok ? "prompt" : last === 1 ? "newest" : "none";
    },
    explain: (result) => html`Each time the whole text: ${count(result.naive.pass)} tokens passed in all, and with notes ${count(result.cached.pass)}. That is
      ${" "}${digits(result.naive.pass / result.cached.pass)} times as many <span class="faint">(${formulas.passesNaive.text} against ${formulas.passesCached.text}, for N tokens of the prompt and T new ones)</span>.`,
  },
  text: html`<p>
      The notes are the keys and values of all earlier tokens: the <b>KV cache</b>. They take memory; nothing else is lost: both ways give the same tokens. Without them the work of each
      token grows with the text. With them it stays nearly the same, and the time of a token too.
    </p>`,
  goOn: ["compare", "runs a text of yours in both ways, token by token."],
  action: "Run it both ways",
  async run(session) {
    const run = await compareCaches(session, SHORT_PROMPT, BOTH_WAYS_TOKENS);
    /** @type {Record<string, any>} */
    const result = { same: run.end.same_tok, curves: {}, promptTok: run.promptTok };
    for (const { name, passed } of run.arms) {
      const { pass_tok: pass, t_us: us, flops, kv_held_peak_bytes: held, n_tok: tokens } = run.end.arms[name];
      result[name] = { pass, us, flops, held, tokens };
      result.curves[name] = { pass: passed };
    }
    return result;
  },
  Show: ({ result, plays, onEnd }) => html`<${Film} frames=${result.curves.naive.pass.length} plays=${plays} onEnd=${onEnd} lasts=${() => 200}
    says=${(/** @type {number} */ frame) => `token ${frame} of ${result.naive.tokens}`}>
    ${(/** @type {number} */ frame) => {
      const most = result.naive.pass;
      const arm = (/** @type {string} */ title, /** @type {any} */ { flops, us, held }, /** @type {{pass: number[]}} */ { pass }) => [
        title,
        html`<div class="growing" aria-hidden="true">${pass.map((each, index) => html`<i class=${index < frame ? "" : "to-come"} style=${{ height: `${Math.max(1, (each / most) * 84)}px` }}></i>`)}</div>`,
        [
          ["tokens passed so far", count(pass[frame - 1] ?? 0)],
          ["for the newest token", count((pass[frame - 1] ?? 0) - (pass[frame - 2] ?? 0))],
          ["operations in all", inPrefix(flops)], ["time in all", inTime(us)], ["held between passes", inBytes(held)],
        ],
      ];
      return html`<${Arms} arms=${[arm("with the cache", result.cached, result.curves.cached), arm("without", result.naive, result.curves.naive)]} />
        <p class="small dim">Each bar: tokens passed so far. The first ${result.same} of ${result.cached.tokens} tokens are the same${result.same === result.cached.tokens ? ": all of them" : ""}.</p>`;
    }}
  <//>`,
  check: {
    ask: "Which of the two holds memory between one pass and the next?",
    options: [["cached", "with the cache"], ["naive", "without"], ["both", "both alike"]],
    answer: (result) => (result.cached.held > result.naive.held ? "cached" : result.cached.held === result.naive.held ? "both" : "naive"),
    explain: (result) => html`<b>With the cache</b>: ${inBytes(result.cached.held)} at its largest, against ${inBytes(result.naive.held)}. A cache does not save memory. It spends memory to
      save ${percent(1 - result.cached.flops / result.naive.flops)} of the operations.`,
  },
};
