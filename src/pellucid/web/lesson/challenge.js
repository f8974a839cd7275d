// @ts-check
// The challenge: the same question with a long answer and with yes or no, measured before and after.

import { html } from "../html.js";
import { count, digits, inTime } from "../parts/format.js";
import { runText } from "./run.js";

const QUESTION = "Is twelve more than seven?";
const LONG = 160;

/** @type {Lesson} */
export const challenge = {
  id: "challenge",
  title: "Challenge: say it shorter",
  points: ["Time is the first token plus one step for each further token.", "The form of the answer decides, not the cap."],
  text: html`<p>
      A question can be answered by a page or by one word. Here the engine answers “${QUESTION}” twice: freely, up to ${LONG} tokens, and with the rule that the answer
      is <q class="mono">yes</q> or <q class="mono">no</q>. A smaller <code>max_tokens</code> alone would only cut a long answer off; the rule changes the answer.
    </p>`,
  predict: {
    ask: "How many times as fast will the short answer be?",
    unit: "×",
    within: 0.5,
    answer: (result) => result.before.totalUs / result.after.totalUs,
    explain: (result) => html`<b>${digits(result.before.totalUs / result.after.totalUs)} times</b>: ${inTime(result.before.totalUs)} for ${count(result.before.tokens)} tokens, then
      ${" "}${inTime(result.after.totalUs)} for ${count(result.after.tokens)}. <span class="faint">Half as much or half more counts.</span>`,
  },
  action: "Ask both ways",
  async run(session) {
    const prompt = `Question: ${QUESTION}\nAnswer:`;
    const fact = (/** @type {RunFact} */ ran) => ({
      totalUs: ran.totalUs, firstUs: ran.firstUs, eachUs: ran.eachUs, tokens: ran.output.length, text: ran.output.join(""),
    });
    // Once before the clock counts, so that both find the prompt alike.
    await runText(session, "/v1/completions", { prompt, max_tokens: 1, temperature: 0 });
    const before = fact(await runText(session, "/v1/completions", { prompt, max_tokens: LONG, temperature: 0.8, seed: 1, ignore_eos: true }));
    const after = fact(await runText(session, "/v1/completions", { prompt, max_tokens: 8, temperature: 0.8, seed: 1, structured_outputs: { choice: [" yes", " no"] } }));
    return { before, after };
  },
  Show: ({ result }) => html`<div class="arms">
    ${["before", "after"].map(
      (name) => html`<div>
        <h4>${name}</h4>
        <p class="answer mono" tabindex="0" role="region" aria-label=${name}>${result[name].text}</p>
        <dl>
          <div><dt>tokens</dt><dd>${count(result[name].tokens)}</dd></div>
          <div><dt>time</dt><dd>${inTime(result[name].totalUs)}</dd></div>
        </dl>
      </div>`,
    )}
  </div>`,
  check: {
    ask: (/** @type {any} */ result) => html`Your long answer had its first token after ${inTime(result.before.firstUs)} and each further one after ${inTime(result.before.eachUs)}. How many milliseconds
      would 50 tokens have taken?`,
    unit: "ms",
    within: 0.1,
    answer: (result) => (result.before.firstUs + 49 * result.before.eachUs) / 1000,
    explain: (result) => html`${inTime(result.before.firstUs)} + 49 · ${inTime(result.before.eachUs)} = <b>${inTime(result.before.firstUs + 49 * result.before.eachUs)}</b>.`,
  },
};
