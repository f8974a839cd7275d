// @ts-check
// Step 3: the same text with and without the cache, really run; what it saves and what it costs.

import * as formulas from "../formulas.js";
import { html } from "../html.js";
import { count, digits, inBytes, inPrefix, inTime } from "../parts/format.js";

const TOKENS = 32;

/** @type {Lesson} */
export const withWithout = {
  id: "with-without",
  title: "With the cache and without",
  points: ["A cache costs memory and saves compute.", "Without it every token passes again and again.", "The text is the same."],
  text: html`<p>
      Without a cache the model would read the whole text again for every token, like somebody who begins a book anew for each word. With the cache
      it keeps notes. The notes take memory; nothing else is lost: both ways give the same tokens.
    </p>
    <p>The engine will write ${TOKENS} tokens both ways and count what passes through the model.</p>`,
  predict: {
    ask: `The prompt is 5 tokens, the answer ${TOKENS}. How many tokens pass through the model in all without a cache?`,
    unit: "tokens",
    within: 0.1,
    answer: (result) => result.naive.pass,
    explain: (result) => html`<b>${count(result.naive.pass)}</b> without, ${count(result.cached.pass)} with: ${digits(result.naive.pass / result.cached.pass)} times as many.
      <span class="faint"> ${formulas.passesNaive.text} against ${formulas.passesCached.text}; within a tenth counts.</span>`,
  },
  action: "Run it both ways",
  async run(session) {
    /** @type {Record<string, {pass: number[], us: number[], held: number[]}>} */
    const curves = { cached: { pass: [], us: [], held: [] }, naive: { pass: [], us: [], held: [] } };
    /** @type {any} */
    let end = null;
    let promptTok = 0;
    const body = { prompt: "Once upon a time", kind: "cache", max_tokens: TOKENS, temperature: 0 };
    await session.api.stream("/v1/compare", body, {
      onData(data) {
        if (data.ev === "cmp.begin") promptTok = data.prompt_ids.length;
        else if (data.ev === "cmp") {
          curves[data.arm].pass.push(data.pass_tok);
          curves[data.arm].us.push(data.step_us);
          curves[data.arm].held.push(data.kv_held_bytes);
        } else if (data.ev === "cmp.end") end = data;
      },
    });
    if (!end) throw new Error("the comparison did not end");
    const arm = (/** @type {string} */ name) => ({
      pass: end.arms[name].pass_tok, us: end.arms[name].t_us, flops: end.arms[name].flops, held: end.arms[name].kv_held_peak_bytes,
      peak: end.arms[name].kv_peak_bytes, tokens: end.arms[name].n_tok, text: end.arms[name].texts[0] ?? "",
    });
    return { promptTok, cached: arm("cached"), naive: arm("naive"), same: end.same_tok, curves };
  },
  Show: ({ result }) => {
    const most = result.naive.pass;
    const arms = /** @type {[string, string][]} */ ([["cached", "with the cache"], ["naive", "without"]]);
    return html`<div class="arms">
        ${arms.map(
          ([name, title]) => html`<div>
            <h4>${title}</h4>
            <div class="growing" aria-hidden="true">
              ${result.curves[name].pass.map((/** @type {number} */ pass) => html`<i style=${{ height: `${Math.max(1, (pass / most) * 84)}px` }}></i>`)}
            </div>
            <dl>
              <div><dt>tokens passed</dt><dd>${count(result[name].pass)}</dd></div>
              <div><dt>operations</dt><dd>${inPrefix(result[name].flops)}</dd></div>
              <div><dt>time</dt><dd>${inTime(result[name].us)}</dd></div>
              <div><dt>held between passes</dt><dd>${inBytes(result[name].held)}</dd></div>
            </dl>
          </div>`,
        )}
      </div>
      <p class="small dim">Each bar: tokens passed so far. The first ${result.same} of ${result.cached.tokens} tokens are the same${result.same === result.cached.tokens ? ": all of them" : ""}.</p>`;
  },
  check: {
    ask: "Which of the two holds memory between one pass and the next?",
    options: [["cached", "with the cache"], ["naive", "without"], ["both", "both alike"]],
    answer: (result) => (result.cached.held > result.naive.held ? "cached" : result.cached.held === result.naive.held ? "both" : "naive"),
    explain: (result) => html`<b>With the cache</b>: ${inBytes(result.cached.held)} at its largest, against ${inBytes(result.naive.held)}. A cache does not save memory. It spends memory to
      save ${digits(result.naive.flops / result.cached.flops)} times the operations.`,
  },
};
