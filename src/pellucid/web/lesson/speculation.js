// @ts-check
// Step 5: guessing ahead: what is guessed, what the model chose, and whether it paid.

import * as formulas from "../formulas.js";
import { html } from "../html.js";
import { digits, percent } from "../parts/format.js";
import { visible } from "../parts/token_text.js";
import { runText } from "./run.js";

const PROMPT = "The cat sat on the mat. The dog sat on the mat. The cat sat on the mat. The dog sat on the mat. The cat sat on";

/** @type {import("./frame.js").Step} */
export const speculation = {
  id: "speculation",
  title: "Guessing ahead",
  points: ["A draft is a cheap guess of the next tokens.", "One pass verifies all guesses together.", "The text stays the same; only the time changes."],
  text: html`<p>
      A decode pass spends most of its time reading the weights, whether it computes one token or five. So a cheap helper <b>guesses</b> a few tokens, and the
      model checks all of them in one pass. Guesses that agree with what the model chooses itself are kept; at the first that does not, the model's own choice
      stands. Even if all are wrong one token has come out, as always.
    </p>
    <p>It pays when guesses are often right and checking is nearly free. Otherwise it costs: the engine measures both.</p>`,
  predict: {
    ask: "Four tokens were guessed and one pass verifies them. How many positions does this pass compute?",
    options: [["1", "1"], ["4", "4"], ["5", "5"], ["all", "the whole text again"]],
    answer: (result) => (result.rounds.length === 0 ? "5" : String(4 + result.extra)),
    explain: (result) => html`k + 1 = <b>5</b>: each guess, and the newest token that the model had chosen before them.
      ${result.rounds.length > 0 && html` In your run a pass with ${result.rounds[0].draft.length} guesses computed ${result.rounds[0].q} positions.`}
      The rest comes from the cache.`,
  },
  action: "Run a text that repeats itself",
  async run(session) {
    const { store, runs } = session;
    const ran = await runText(session, "/v1/completions", { prompt: PROMPT, max_tokens: 40, temperature: 0, ignore_eos: true });
    const request = /** @type {import("../state/store.js").Request} */ (store.requests.get(ran.req));
    if (request.drafts.length === 0) {
      throw new Error(
        store.hello.speculation === "off"
          ? "this engine does not speculate; start it with pellucid serve --speculation ngram"
          : "the engine guessed nothing here: it found that guessing would not pay",
      );
    }
    await runs.learnTexts(request.drafts.flatMap((each) => [...each.draft, ...(each.chosen === undefined ? [] : [each.chosen])]));
    const rounds = request.drafts.map((each) => ({
      draft: each.draft.map((/** @type {number} */ id) => runs.textOf(id)), right: each.n_right,
      chosen: each.chosen === undefined ? "" : runs.textOf(each.chosen), q: ran.steps.find((step) => step.step === each.step)?.q ?? each.draft.length + 1,
    }));
    const drafted = rounds.reduce((sum, each) => sum + each.draft.length, 0);
    return {
      rounds, extra: rounds[0].q - rounds[0].draft.length, drafted, right: rounds.reduce((sum, each) => sum + each.right, 0),
      tokens: ran.output.length, passes: ran.steps.length, text: ran.output.join(""),
    };
  },
  Show: ({ result }) => html`<ol class="rounds">
      ${result.rounds.slice(0, 10).map(
        (/** @type {any} */ round) => html`<li>
          ${round.draft.map(
            (/** @type {string} */ text, /** @type {number} */ index) =>
              html`<span class=${`guess mono ${index < round.right ? "right" : "wrong"}`}>${visible(text)}<span class="spoken">${index < round.right ? " right" : " wrong"}</span></span>`,
          )}
          ${round.chosen && html`<span class="instead">the model: <q class="mono">${visible(round.chosen)}</q></span>`}
        </li>`,
      )}
    </ol>
    <p class="small dim">${result.rounds.length} rounds; ${result.tokens} tokens in ${result.passes} passes, the prompt's included.${result.rounds.length > 10 ? " The first ten are shown." : ""}</p>`,
  check: {
    ask: "What share of the guesses of this run were right, in percent?",
    unit: "%",
    within: 0.1,
    answer: (result) => (100 * result.right) / result.drafted,
    explain: (result) => {
      const a = result.right / result.drafted;
      const gain = formulas.expectedTokens.of({ a, k: 4 });
      return html`${result.right} of ${result.drafted}: <b>${percent(a)}</b>. If each of four guesses were right that often, a round would give ${digits(gain)} tokens
        <span class="faint"> (${formulas.expectedTokens.text})</span>.`;
    },
  },
};
