// @ts-check
// Step 1: one token at a time; what is in the cache after m tokens.

import * as formulas from "../formulas.js";
import { html } from "../html.js";
import { inTime } from "../parts/format.js";
import { quoted } from "../parts/token_text.js";
import { runText } from "./run.js";

const TOKENS = 12;
const cached = (/** @type {RunFact} */ { promptTok, output }) => formulas.cachedTokens.of({ N: promptTok, m: output.length });

/** @type {Lesson} */
export const oneToken = {
  id: "one-token",
  title: "One token at a time",
  points: ["A model writes one token per pass.", "The prompt passes once, together: prefill.", "Each further token passes alone: decode."],
  text: html`<p>
      A language model does one thing: it looks at a text and gives every token it knows a probability of coming next. One is drawn, appended, and the
      model looks again. The first pass takes the whole prompt: <b>prefill</b>. Each later pass takes only the newest token: <b>decode</b>. What it worked
      out about all the others is kept in the <b>KV cache</b>.
    </p>
    <p>The engine will continue “Once upon a time” by ${TOKENS} tokens.</p>`,
  predict: {
    ask: `The prompt is 5 tokens long, and the engine adds ${TOKENS}. How many tokens are in the cache when it has chosen the last one?`,
    unit: "tokens",
    answer: cached,
    explain: (result) => html`${result.promptTok} + ${result.output.length} − 1 = <b>${cached(result)}</b>
      <span class="faint"> (${formulas.cachedTokens.text})</span>. The last token was chosen but never fed back, so nothing of it is in the cache yet.`,
  },
  action: `Generate ${TOKENS} tokens`,
  run: (session) =>
    runText(session, "/v1/completions", { prompt: "Once upon a time", max_tokens: TOKENS, temperature: 0, ignore_eos: true }),
  Show: ({ result }) => html`<table class="run-steps">
    <caption>Each pass of your run</caption>
    <thead><tr><th>pass</th><th>tokens that passed</th><th class="wide"></th><th>chose</th><th class="number">in the cache</th><th class="number">time</th></tr></thead>
    <tbody>
      ${result.steps.map(
        (/** @type {RunFact["steps"][number]} */ step, /** @type {number} */ index) => html`<tr>
          <td>${index === 0 ? "prefill" : "decode"}</td>
          <td class="number">${step.q}</td>
          <td class="wide"><span class=${`passes ${index === 0 ? "prefill" : ""}`} style=${{ "--n": step.q }}></span></td>
          <td class="mono">${quoted(step.made.join(""))}</td>
          <td class="number">${step.ctx}</td>
          <td class="number">${inTime(step.us)}</td>
        </tr>`,
      )}
    </tbody>
  </table>`,
  check: {
    ask: "How many tokens passed through the model in the last pass of your run?",
    unit: "tokens",
    answer: (result) => result.steps.at(-1).q,
    explain: (result) => {
      const { q, ctx } = result.steps.at(-1);
      return html`<b>${q}</b>: the newest${q > 1 && html`, and ${q - 1} guessed ahead (step 5 tells why)`}. It read the other ${ctx - q} from the cache.`;
    },
  },
};
