// @ts-check
// The step of Learn about one choice: the candidates for a token, and what the model read to weigh them.

import { html } from "../html.js";
import { count, percent } from "../parts/numbers.js";
import { legible } from "../parts/token_text.js";
import { runText } from "./frame.js";

const PROMPT = "The capital of France is";
const SHOWN = 5;

/**
 * Texts with their shares of 1, and what is left.
 * @param {{title: string, tint: string, rows: [string, number][], rest: string}} props `tint`: the class of the bars
 */
const Shares = ({ title, tint, rows, rest }) => html`<table class="candidates shares">
  <caption>${title}</caption>
  <tbody>
    ${rows.map(([text, share]) => html`<${Row} text=${legible(text)} share=${share} tint=${tint} style="mono text" />`)}
    <${Row} text=${rest} share=${Math.max(0, 1 - rows.reduce((sum, [, share]) => sum + share, 0))} tint=${tint} style="" />
  </tbody>
</table>`;

/** @param {{text: string, share: number, tint: string, style: string}} props */
const Row = ({ text, share, tint, style }) => html`<tr>
  <td class=${style}>${text}</td>
  <td class="wide"><span class=${`bar ${tint}`}><i style=${{ width: `${100 * share}%` }}></i></span></td>
  <td class="number">${percent(share)}</td>
</tr>`;

/** @type {Lesson} */
export const choosing = {
  id: "choosing",
  took: (result) => `${legible(result.candidates[0][0])} with ${percent(result.candidates[0][1])}, of ${count(result.vocab)} tokens`,
  title: "How a token is chosen",
  points: ["Every token of the vocabulary gets a probability.", "Greedy takes the likeliest; sampling draws.", "The tokens before decide, by attention."],
  text: html`<p>
      A model does not know facts as a book does. From the tokens before, it computes a probability for every token of its vocabulary, and one is chosen. To compute
      them, the last token reads the ones before it: <b>attention</b> says how much of each.
    </p>
    <p>The engine will choose the one token that follows “${PROMPT}”, and show the likeliest ${SHOWN} and what was read.</p>`,
  predict: {
    ask: "How much of the probability will the likeliest token have?",
    options: [["less", "less than half"], ["more", "half or more"]],
    answer: (result) => (result.candidates[0][1] < 0.5 ? "less" : "more"),
    explain: (result) => html`<b>${legible(result.candidates[0][0])}</b> has ${percent(result.candidates[0][1])}. All ${count(result.vocab)} tokens of the vocabulary share the whole.`,
  },
  goOn: ["generate", "shows this for each token of a text, by layer and head."],
  action: "Choose one token",
  async run(session) {
    const ran = await runText(session, "/v1/completions", { prompt: PROMPT, max_tokens: 1, temperature: 0, ignore_eos: true });
    const { store, api } = session;
    const { stages } = await api.get(`/v1/logits/${encodeURI(ran.req)}/${ran.promptTok}?top=${SHOWN}`);
    // The token at a position is chosen by the query of the position before it.
    const read = await api.get(`/v1/attn/${encodeURI(ran.req)}/${ran.promptTok - 1}?`);
    return {
      output: ran.output[0],
      vocab: store.hello?.model.vocab ?? 0,
      candidates: stages[0].cand.map((/** @type {any} */ [, text, , p]) => [text, p]),
      read: read.top.slice(0, SHOWN).map((/** @type {any} */ [, , text, weight]) => [text, weight]),
      first: read.sink,
    };
  },
  Show: ({ result }) => html`<div class="two-strips">
    <${Shares} title="The likeliest tokens" tint="" rows=${result.candidates} rest=${`${count(result.vocab - result.candidates.length)} others`} />
    <${Shares} title="What was read, mean of all layers and heads" tint="sun" rows=${result.read} rest="the first token, and others" />
  </div>
  <p class="faint small">The first token takes ${percent(result.first)} of what is read: models put there what they need nowhere else.</p>`,
  check: {
    ask: (/** @type {any} */ result) => html`The second likeliest token of your run was <q class="mono">${result.candidates[1][0]}</q>. What percentage do all tokens but the likeliest have together?`,
    unit: "%",
    within: 0.05,
    answer: (result) => 100 * (1 - result.candidates[0][1]),
    explain: (result) => html`100 − ${percent(result.candidates[0][1])} = <b>${percent(1 - result.candidates[0][1])}</b>: probabilities add up to 1.`,
  },
};
