// @ts-check
// The steps about time: guessing ahead, many requests at once, and the challenge of a shorter answer.

import { hueVariable } from "../draw/hues.js";
import * as formulas from "../formulas.js";
import { html } from "../html.js";
import { count, digits, inTime, percent } from "../parts/numbers.js";
import { visible } from "../parts/token_text.js";
import { emptySeats, newLoad, takeLoad } from "../serve/run.js";
import { runText } from "./frame.js";

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

const SEATS = 4;
const LOAD = { num_requests: 12, concurrency: SEATS, prompt_tokens: "16-48", output_tokens: "8-64", seed: 7, static_batch: SEATS };

/** @type {Lesson} */
export const batching = {
  id: "batching",
  title: "Many at once",
  points: ["One pass can serve many requests.", "Static: a batch waits for its slowest.", "Continuous: whoever ends makes room at once."],
  text: html`<p>
      Reading the weights once can serve many requests: each pass computes the next token of all of them. With <b>static</b> batching a batch is filled, and nobody
      enters until its longest answer has ended: seats stand empty. With <b>continuous</b> batching a request leaves when it is done, and the next one takes its
      seat in the very next pass.
    </p>
    <p>The engine will serve the same ${LOAD.num_requests} requests both ways, at most ${SEATS} at a time. Answers are between 8 and 64 tokens long.</p>`,
  predict: {
    ask: `With static batches of ${SEATS}, what share of the seats stands empty, in percent?`,
    unit: "%",
    within: 0.35,
    answer: (result) => 100 * result.static.idle,
    explain: (result) => html`<b>${percent(result.static.idle)}</b> of the seats' time in your run: whoever had ended waited for the slowest of the batch.
      <span class="faint"> A third more or less counts.</span>`,
  },
  action: "Serve them both ways",
  async run(session) {
    /** @type {Record<string, any>} */
    const result = {};
    for (const discipline of ["static", "continuous"]) {
      /** @type {any} */
      let load = null;
      await session.api.stream("/v1/load", { ...LOAD, discipline }, {
        onData(event) {
          if (event.ev === "load.begin") load = newLoad(event);
          else takeLoad(load, event);
        },
      });
      if (!load?.end) throw new Error("the load did not end");
      const rows = /** @type {Load} */ (load).lanes.filter((lane) => lane.state === "done").sort((a, b) => a.sentUs - b.sentUs || a.index - b.index)
        .map(({ index, tokens, dueUs, sentUs, endUs }) => ({ index, tokens, due: dueUs ?? 0, sent: sentUs, done: endUs }));
      result[discipline] = { rows, us: Math.max(...rows.map((row) => row.done)), rate: load.end.output_tok_s, idle: emptySeats(load, SEATS) };
    }
    return result;
  },
  Show: ({ result }) => {
    const whole = Math.max(result.static.us, result.continuous.us);
    return html`<div class="arms">
      ${["static", "continuous"].map(
        (name) => html`<div>
          <h4>${name}</h4>
          <div class="lanes">
            ${result[name].rows.map(
              (/** @type {any} */ lane) => html`<div title=${`request ${lane.index}: ${lane.tokens} tokens`} style=${{ "--c": hueVariable(lane.index) }}>
                <i class="queued" style=${{ left: `${(lane.due / whole) * 100}%`, width: `${((lane.sent - lane.due) / whole) * 100}%` }}></i>
                <i class="running" style=${{ left: `${(lane.sent / whole) * 100}%`, width: `${((lane.done - lane.sent) / whole) * 100}%` }}></i>
              </div>`,
            )}
          </div>
          <dl>
            <div><dt>all served after</dt><dd>${inTime(result[name].us)}</dd></div>
            <div><dt>tokens a second</dt><dd>${digits(result[name].rate)}</dd></div>
          </dl>
        </div>`,
      )}
    </div>`;
  },
  check: {
    ask: "Which of the two served more tokens a second in your run?",
    options: [["static", "static"], ["continuous", "continuous"]],
    answer: (result) => (result.continuous.rate >= result.static.rate ? "continuous" : "static"),
    explain: (result) => html`${digits(result.continuous.rate)} tokens a second continuous, ${digits(result.static.rate)} static:
      <b> ${digits(Math.max(result.continuous.rate, result.static.rate) / Math.min(result.continuous.rate, result.static.rate))} times</b>. Prompts, lengths and the ${SEATS} seats were the same.`,
  },
};

const QUESTION = "Is Rome the capital of Italy?";
const LONG = 160;

/** @type {Lesson} */
export const challenge = {
  id: "challenge",
  title: "Challenge: say it shorter",
  points: ["Time is the first token plus one step for each further token.", "The form of the answer decides, not the cap."],
  text: html`<p>
      A question can be answered by a page or by one word. Here the engine answers “${QUESTION}” twice: freely, up to ${LONG} tokens, and with the rule that the answer
      is <q class="mono">yes</q> or <q class="mono">no</q>. A smaller <code>max_tokens</code> alone would only cut a long answer off; the rule changes the answer.
      A small model knows little: look at the time, not at the truth.
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
