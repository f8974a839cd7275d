// @ts-check
// Step 6: many requests at once: static against continuous batching of the same requests.

import { hueVariable } from "../draw/hues.js";
import { html } from "../html.js";
import { digits, inTime, percent } from "../parts/format.js";

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
      /** @type {Map<number, {index: number, sent: number, first: number, done: number, tokens: number, due: number}>} */
      const lanes = new Map();
      /** @type {any} */
      let end = null;
      await session.api.stream("/v1/load", { ...LOAD, discipline }, {
        onData(data) {
          if (data.ev === "load.req") {
            const lane = lanes.get(data.index) ?? { index: data.index, sent: data.at_us, first: 0, done: 0, tokens: 0, due: data.due_us ?? 0 };
            if (data.state === "sent") lane.sent = data.at_us;
            if (data.state === "first") lane.first = data.at_us;
            if (data.state === "done") {
              lane.done = data.at_us;
              lane.tokens = data.n_tok;
            }
            lanes.set(data.index, lane);
          } else if (data.ev === "load.end") end = data;
        },
      });
      if (!end) throw new Error("the load did not end");
      const rows = [...lanes.values()].filter((lane) => lane.done > 0).sort((a, b) => a.sent - b.sent || a.index - b.index);
      result[discipline] = { rows, us: Math.max(...rows.map((lane) => lane.done)), rate: end.output_tok_s, idle: idleShare(rows) };
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

/**
 * The share of the seats' time in which they stood empty, in batches of SEATS in the order of sending.
 * @param {{sent: number, done: number}[]} rows
 */
export function idleShare(rows) {
  let [used, whole] = [0, 0];
  for (let first = 0; first < rows.length; first += SEATS) {
    const batch = rows.slice(first, first + SEATS);
    const from = Math.min(...batch.map((lane) => lane.sent));
    const to = Math.max(...batch.map((lane) => lane.done));
    whole += (to - from) * SEATS;
    used += batch.reduce((sum, lane) => sum + lane.done - lane.sent, 0);
  }
  return whole > 0 ? 1 - used / whole : 0;
}
