// @ts-check
// The step of Learn about choices: for each new token, the likeliest candidates.

import { html } from "../html.js";
import { count, percent } from "../parts/numbers.js";
import { legible } from "../parts/token_text.js";
import { Film } from "./film.js";
import { runText } from "./frame.js";

const PROMPT = "The capital of France is";
const TOKENS = 6;
const SHOWN = 5;
const GUESSES = ["Paris", "the", "a", "delicious"];

/** What is left for all others. @param {[string, number][]} rows */
const rest = (rows) => Math.max(0, 1 - rows.reduce((sum, [, share]) => sum + share, 0));

/** @type {Lesson} */
export const choosing = {
  id: "choosing",
  isAboutMeaning: true,
  took: ({ tokens: [{ text, candidates }], vocab }) => `${legible(text)} with ${percent(candidates[0][1])}, of ${count(vocab)} tokens`,
  title: "How a word is chosen",
  points: ["Every token that the model knows gets a probability.", "Greedy takes the likeliest; sampling draws.", "Then the longer text is looked at again."],
  scene: html`<p>A model reads “${PROMPT}” and weighs every token that it knows: how likely is it that this one comes next?</p>`,
  predict: {
    ask: "Which of these will it find likeliest?",
    options: [...GUESSES.map((guess) => /** @type {[string, string]} */ ([guess, guess])), ["another", "something else"]],
    answer: ({ tokens: [{ candidates }] }) => (GUESSES.includes(candidates[0][0].trim()) ? candidates[0][0].trim() : "another"),
    explain: ({ tokens: [{ candidates }], vocab }) => html`At its place, token 1 of the film, <q class="mono">${legible(candidates[0][0])}</q> has ${percent(candidates[0][1])}, then come <q class="mono">${legible(candidates[1][0])}</q> with
      ${" "}${percent(candidates[1][1])} and <q class="mono">${legible(candidates[2][0])}</q>. The other ${count(vocab - 3)} tokens share the rest.`,
  },
  text: html`<p>
      A model does not know facts as a book does. It has read so much text that it can say what comes next. The token that is taken is appended to the text, and the model weighs all
      tokens again: this is how whole sentences come about. If always the likeliest is taken, that is <b>greedy</b>. If one is drawn, as from a bag in which likely tokens lie many
      times, that is <b>sampling</b>, and the <b>temperature</b> says how adventurous the draw is: at 0 it is greedy.
    </p>`,
  goOn: ["generate", "shows the candidates for each token of a text, and lets you take another one."],
  action: "Run it on this engine",
  async run(session) {
    const ran = await runText(session, "/v1/completions", { prompt: PROMPT, max_tokens: TOKENS, temperature: 0, ignore_eos: true });
    const tokens = [];
    for (const [index, text] of ran.output.entries()) {
      const { stages } = await session.api.get(`/v1/logits/${encodeURI(ran.req)}/${ran.promptTok + index}?top=${SHOWN}`);
      tokens.push({ text, candidates: stages[0].cand.map((/** @type {any} */ [, candidate, , p]) => [candidate, Number(p.toPrecision(4))]) });
    }
    return { tokens, vocab: session.store.hello?.model.vocab ?? 0 };
  },
  Show: ({ result, plays, onEnd }) => html`<${Film} frames=${result.tokens.length} plays=${plays} onEnd=${onEnd} lasts=${(/** @type {number} */ frame) => (frame === 0 ? 600 : 1200)}
    says=${(/** @type {number} */ frame) => `token ${frame} of ${result.tokens.length}`}>
    ${(/** @type {number} */ frame) => {
      const now = result.tokens[Math.max(0, frame - 1)];
      return html`<p class="said-so-far mono"><span class="dim">${PROMPT}</span>${result.tokens.slice(0, frame).map((/** @type {any} */ { text }, /** @type {number} */ index) => html`<span class=${index === frame - 1 ? "newest" : ""}>${text}</span>`)}</p>
        <table class=${`candidates shares ${frame === 0 ? "to-come" : ""}`}>
          <caption>The likeliest tokens for place ${Math.max(1, frame)}</caption>
          <tbody>
            ${now.candidates.map((/** @type {[string, number]} */ [text, share], /** @type {number} */ index) => html`<${Row} text=${legible(text)} share=${share} style=${`mono text ${index === 0 ? "first" : ""}`} />`)}
            <${Row} text=${`${count(result.vocab - now.candidates.length)} others`} share=${rest(now.candidates)} style="" />
          </tbody>
        </table>`;
    }}
  <//>`,
  check: {
    ask: "The engine runs again with temperature 0. What will it write?",
    options: [["same", "the same text"], ["other", "another text"], ["random", "nobody can know"]],
    answer: ({ tokens }) => (tokens.every((/** @type {any} */ { text, candidates }) => text === candidates[0][0]) ? "same" : "other"),
    explain: () => html`At temperature 0 the likeliest token is taken each time, and the same text before it gives the same likeliest token. In your run every token that was taken was the first of its list.`,
  },
};

/** @param {{text: string, share: number, style: string}} props */
const Row = ({ text, share, style }) => html`<tr>
  <td class=${style}>${text}</td>
  <td class="wide"><span class="bar"><i style=${{ width: `${100 * share}%` }}></i></span></td>
  <td class="number">${percent(share)}</td>
</tr>`;
