// @ts-check
// The steps of Learn about serving: guessing ahead, many at once, and the challenge of a shorter answer.

import { hueVariable } from "../draw/hues.js";
import * as formulas from "../formulas.js";
import { html } from "../html.js";
import { count, digits, inTime, percent } from "../parts/numbers.js";
import { legible, visible } from "../parts/token_text.js";
import { emptySeats, newLoad, takeLoad } from "../serve/load.js";
import { Film } from "./film.js";
import { Arms, runText } from "./frame.js";

const PROMPT = "Once upon a time";

const ROUNDS_SHOWN = 16;

/** @type {Lesson} */
export const speculation = {
  id: "speculation",
  took: (result) => `${result.passes.drafted} passes and not ${result.passes.plain}, ${inTime(result.us.drafted)} and not ${inTime(result.us.plain)}`,
  title: "Guessing ahead",
  points: ["A draft is a cheap guess of the next tokens.", "One pass verifies all guesses together.", "The text stays the same; only the time changes."],
  scene: html`<p>Most of a short pass goes into reading the model's own numbers, its <b>weights</b>: five tokens take hardly longer than one. So a cheap helper <b>guesses</b> the next four, and the model checks all of them in one pass. Where a guess is not what the
      model would have chosen, the model's own choice stands.</p>`,
  predict: {
    ask: "What happens to the text?",
    options: [["worse", "it gets a little worse"], ["same", "it stays the same"], ["other", "it becomes another text"]],
    answer: (result) => (result.isSame ? "same" : "other"),
    explain: (result) => html`No token differs: what the model itself would not choose is thrown away. The ${result.tokens} tokens took <b>${result.passes.drafted}</b> passes and not ${result.passes.plain}.`,
  },
  text: html`<p>
      This is <b>speculative decoding</b>; the guesses are <b>drafts</b>, and a right one saves a pass. Even if all guesses are wrong one token has come out, as always. It pays when they are often right and checking is nearly free. Otherwise it costs: the engine measures both.
    </p>`,
  goOn: ["speculate", "shows each round of guesses, for a text of yours."],
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
  Show: ({ result, plays, onEnd }) => html`<${Film} frames=${Math.min(ROUNDS_SHOWN, result.rounds.length)} plays=${plays} onEnd=${onEnd} lasts=${() => 800}
    says=${(/** @type {number} */ frame) => `round ${frame} of ${Math.min(ROUNDS_SHOWN, result.rounds.length)}`}>
    ${(/** @type {number} */ frame) => html`<ol class="rounds">
      ${result.rounds.slice(0, ROUNDS_SHOWN).map(
        (/** @type {any} */ round, /** @type {number} */ at) => html`<li class=${at < frame ? "" : "to-come"}>
          ${round.draft.map(
            (/** @type {string} */ text, /** @type {number} */ index) =>
              html`<span class=${`guess mono ${index < round.right ? "right" : "wrong"}`}>${visible(text)}<span class="spoken">${index < round.right ? " right" : " wrong"}</span></span>`,
          )}
          ${round.chosen && html`<span class="instead">the model: <q class="mono">${legible(round.chosen)}</q></span>`}
        </li>`,
      )}
    </ol>`}
  <//>
    <p class="small dim">${result.rounds.length} rounds. The same ${result.tokens} tokens took ${result.passes.drafted} passes with guesses by ${result.drafter === "draft" ? "a smaller model" : "prompt lookup"} and
      ${" "}${result.passes.plain} without; ${inTime(result.us.drafted)} and ${inTime(result.us.plain)}.${result.isSame ? " The texts are the same." : ""}</p>`,
  check: {
    ask: "In one round all four guesses are wrong. How many tokens does the text get from it?",
    options: [["none", "none: the pass was for nothing"], ["one", "one"], ["four", "four wrong ones"]],
    answer: (result) => (result.tokens > result.right ? "one" : "none"),
    explain: (result) => {
      const a = result.right / result.drafted;
      return html`<b>One</b>: the model's own choice in the place of the first guess. Of your ${result.tokens} tokens ${result.right} were right guesses, ${percent(a)} of all guesses; the other
        ${" "}${result.tokens - result.right} were the model's own. If each of four guesses were right that often, a round would give ${digits(formulas.expectedTokens.of({ a, k: 4 }))} tokens
        <span class="faint"> (${formulas.expectedTokens.text})</span>.`;
    },
  },
};

const SEATS = 4;
const LANE_FRAMES = 60;
const LOAD = { num_requests: 12, concurrency: SEATS, prompt_tokens: "16-48", output_tokens: "8-64", seed: 46, static_batch: SEATS };

/** @type {Lesson} */
export const batching = {
  id: "batching",
  took: (result) => `${digits(result.continuous.rate)} tokens a second, static ${digits(result.static.rate)}`,
  title: "Many at once",
  points: ["One pass can serve many requests.", "Static: a batch waits for its slowest.", "Continuous: whoever ends makes room at once."],
  scene: html`<p>One pass can compute the next token of many requests: here of ${SEATS} at a time, like ${SEATS} seats in a boat. ${LOAD.num_requests} requests wait. Their answers are between 8 and 64 tokens
      long. <b>Static</b>: the boat comes back when its last passenger is done. <b>Continuous</b>: a seat is taken again as soon as it is free.</p>`,
  predict: {
    ask: "In which of the two do more seats stay empty?",
    options: [["static", "static: short answers wait for the longest"], ["continuous", "continuous: each seat waits for somebody"], ["alike", "both alike"]],
    answer: (result) => (result.static.idle > result.continuous.idle ? "static" : result.static.idle === result.continuous.idle ? "alike" : "continuous"),
    explain: (result) => html`With static batches <b>${percent(result.static.idle)}</b> of the seats' time was empty, with continuous ones ${percent(result.continuous.idle)}. All were served after
      ${" "}${inTime(result.static.us)} and ${inTime(result.continuous.us)}.`,
  },
  text: html`<p>
      Reading the weights once can serve many requests: that is <b>batching</b>, and it is why a server gives more tokens a second than a single chat. With continuous batching a request
      leaves when it is done, and the next one takes its seat in the very next pass.
    </p>`,
  goOn: ["serve", "puts a load on this engine, with other arrivals and lengths."],
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
        .map(({ index, tokens, sentUs, endUs }) => ({ index, tokens, sent: sentUs, done: endUs }));
      result[discipline] = { rows, us: Math.max(...rows.map((row) => row.done)), rate: load.end.output_tok_s, idle: emptySeats(load, SEATS) };
    }
    return result;
  },
  Show: ({ result, plays, onEnd }) => {
    const whole = Math.max(result.static.us, result.continuous.us);
    const at = (/** @type {number} */ frame) => (frame / LANE_FRAMES) * whole;
    const done = (/** @type {string} */ name, /** @type {number} */ frame) => result[name].rows.filter((/** @type {any} */ lane) => lane.done <= at(frame)).length;
    return html`<${Film} frames=${LANE_FRAMES} plays=${plays} onEnd=${onEnd} lasts=${() => 90} says=${(/** @type {number} */ frame) => `${done("static", frame)} and ${done("continuous", frame)} of ${result.static.rows.length} done`}>
      ${(/** @type {number} */ frame) => html`<${Arms} arms=${["static", "continuous"].map((name) => [
        name,
        html`<div class="lanes">
          ${result[name].rows.map((/** @type {any} */ lane) => {
            const share = (/** @type {number} */ us) => `${(Math.min(us, at(frame)) / whole) * 100}%`;
            const width = (/** @type {number} */ from, /** @type {number} */ to) => `${(Math.max(0, Math.min(to, at(frame)) - from) / whole) * 100}%`;
            return html`<div data-tip=${`request ${lane.index}: ${lane.tokens} tokens`} style=${{ "--c": hueVariable(lane.index) }}>
              <i class="queued" style=${{ left: 0, width: share(lane.sent) }}></i>
              <i class="running" style=${{ left: share(lane.sent), width: width(lane.sent, lane.done) }}></i>
            </div>`;
          })}
        </div>`,
        [["answers done", String(done(name, frame))], ["all served after", inTime(result[name].us)], ["tokens a second", digits(result[name].rate)]],
      ])} />
      <p class="small dim">A lane each request: hatched while it waits, solid while it has a seat.</p>`}
    <//>`;
  },
  check: {
    ask: "Which of the two served more tokens a second in your run?",
    options: [["static", "static"], ["continuous", "continuous"]],
    answer: (result) => (result.continuous.rate >= result.static.rate ? "continuous" : "static"),
    explain: (result) => html`${digits(result.continuous.rate)} tokens a second continuous, ${digits(result.static.rate)} static:
      <b> ${digits(Math.max(result.continuous.rate, result.static.rate) / Math.min(result.continuous.rate, result.static.rate))} times</b>. Prompts, lengths and the ${SEATS} seats were the same.`,
  },
};

const QUESTION = "Tell me a story about a dog called Rufus. Was it happy?";
const LONG = 220;

/** @type {Lesson} */
export const challenge = {
  id: "challenge",
  took: (result) => `${inTime(result.after.totalUs)} and not ${inTime(result.before.totalUs)}`,
  title: "Challenge: say it shorter",
  points: ["Time is the first token plus one step for each further token.", "The form of the answer decides, not the cap."],
  scene: html`<p>“${QUESTION}” can be answered by a page or by one word. The engine answers twice: freely, up to ${LONG} tokens, and with the rule that the answer is <q class="mono">Yes</q> or
      ${" "}<q class="mono">No</q>.</p>`,
  predict: {
    ask: "You want the answer sooner. What helps most?",
    options: [["shorter", "ask for a shorter answer"], ["question", "ask a shorter question"], ["same", "nothing: the model thinks as long as it thinks"]],
    answer: (result) => (result.after.totalUs < result.before.totalUs ? "shorter" : "same"),
    explain: (result) => html`The same question took ${inTime(result.before.totalUs)} for ${count(result.before.tokens)} tokens, then ${inTime(result.after.totalUs)} for ${count(result.after.tokens)}:
      ${" "}<b>${digits(result.before.totalUs / result.after.totalUs)} times</b> as fast.`,
  },
  text: html`<p>
      The time of an answer is that of its first token and one step for each further one. A short question saves a little of the first part; a short answer saves the second. A smaller
      <code> max_tokens</code> alone would only cut a long answer off; the rule changes the answer. An answer ends with the model's end token, at a stop string or stop token, at the number of tokens asked for, or
      when whoever asked stops it.
    </p>`,
  goOn: ["chat", "shows for each answer why it took so long."],
  action: "Ask both ways",
  async run(session) {
    const body = { messages: [{ role: "user", content: QUESTION }], temperature: 0.8, seed: 2 };
    const ask = async (/** @type {any} */ rules) => {
      const ran = await runText(session, "/v1/chat/completions", { ...body, ...rules });
      return { totalUs: ran.totalUs, firstUs: ran.firstUs, eachUs: ran.eachUs, tokens: ran.output.length, text: ran.output.join("") };
    };
    await ask({ max_tokens: 1 }); // before the clock counts, so that both find the prompt alike
    const before = await ask({ max_tokens: LONG });
    const after = await ask({ max_tokens: 8, structured_outputs: { choice: ["Yes", "No"] } });
    return { before, after };
  },
  Show: ({ result, plays, onEnd }) => html`<${Film} frames=${LANE_FRAMES} plays=${plays} onEnd=${onEnd} lasts=${() => 90}
    says=${(/** @type {number} */ frame) => inTime((frame / LANE_FRAMES) * result.before.totalUs)}>
    ${(/** @type {number} */ frame) => html`<${Arms} arms=${["before", "after"].map((name) => {
      const { text, tokens, totalUs, firstUs } = result[name];
      const at = (frame / LANE_FRAMES) * result.before.totalUs;
      const part = at >= totalUs ? 1 : at < firstUs ? 0 : (at - firstUs) / Math.max(1, totalUs - firstUs);
      return [
        name,
        html`<p class="answer mono" tabindex="0" role="region" aria-label=${name}>${text.slice(0, Math.round(part * text.length))}</p>`,
        [["tokens", `${count(Math.round(part * tokens))} of ${count(tokens)}`], ["time", inTime(Math.min(at, totalUs))]],
      ];
    })} />`}
  <//>`,
  check: {
    ask: "Where did most of the time of the long answer go?",
    options: [["first", "until its first token"], ["rest", "into the tokens after it"]],
    answer: ({ before }) => (before.firstUs > before.totalUs - before.firstUs ? "first" : "rest"),
    explain: ({ before }) => html`Its first token came after ${inTime(before.firstUs)}, and each of ${count(before.tokens - 1)} further ones ${inTime(before.eachUs)} after the one before:
      ${" "}<b>${inTime(before.totalUs - before.firstUs)}</b> of ${inTime(before.totalUs)}.`,
  },
};
