// @ts-check
// Step 5: guessing ahead: what is guessed, what the model chose, and whether it paid.

import * as formulas from "../formulas.js";
import { html } from "../html.js";
import { digits, inTime, percent } from "../parts/format.js";
import { visible } from "../parts/token_text.js";

const PROMPT = "Once upon a time";

/** @type {Lesson} */
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
      ${" "}The rest comes from the cache.`,
  },
  action: "Run it with and without guesses",
  async run(session) {
    /** @param {string} drafter */
    const compare = async (drafter) => {
      /** @type {any} */
      const found = { rounds: [], passes: { plain: 0, drafted: 0 }, drafter };
      let before = 0;
      await session.api.stream("/v1/compare", { prompt: PROMPT, kind: "drafts", drafter, num_drafts: 4, max_tokens: 40, temperature: 0 }, {
        onData(event) {
          if (event.ev === "cmp.end") found.end = event;
          if (event.ev !== "cmp") return;
          found.passes[event.arm] += 1;
          for (const [draft, right, chosen] of event.rounds) found.rounds.push({ draft, right, chosen, q: event.pass_tok - before });
          before = event.pass_tok;
        },
      });
      return found;
    };
    // Without a draft model guesses are looked up in the text.
    const { rounds, passes, drafter, end } = await compare("draft").catch(() => compare("ngram"));
    if (rounds.length === 0) throw new Error("nothing was guessed: the text does not repeat itself, and this engine has no draft model");
    const { runs } = session;
    await runs.learnTexts(rounds.flatMap((/** @type {any} */ each) => [...each.draft, each.chosen ?? each.draft[0]]));
    const { plain, drafted } = end.arms;
    return {
      rounds: rounds.map((/** @type {any} */ each) => ({
        ...each, draft: each.draft.map(runs.textOf), chosen: each.chosen === null ? "" : runs.textOf(each.chosen),
      })),
      drafter, passes, extra: rounds[0].q - rounds[0].draft.length, drafted: drafted.drafted, right: drafted.right, tokens: drafted.n_tok,
      text: drafted.texts[0], isSame: end.first_diff === null, us: { plain: plain.t_us, drafted: drafted.t_us },
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
    <p class="small dim">${result.rounds.length} rounds. The same ${result.tokens} tokens took ${result.passes.drafted} passes with guesses by ${result.drafter === "draft" ? "a smaller model" : "prompt lookup"} and
      ${" "}${result.passes.plain} without; ${inTime(result.us.drafted)} and ${inTime(result.us.plain)}.${result.isSame ? " The texts are the same." : ""}</p>`,
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
