// @ts-check
// Numbers that lessons about inference often get wrong, what the formulas say, and questions that readers ask.

import * as formulas from "../formulas.js";
import { html } from "../html.js";
import { count, digits, inBytes, inTime, Num, percent } from "../parts/numbers.js";

const LLAMA3_8B = { L: 32, Hkv: 8, d: 128, b: 2 };
const LLAMA2_13B = { L: 40, Hkv: 40, d: 128, b: 2 };
const LLAMA2_7B = { ...LLAMA2_13B, L: 32, Hkv: 32 };
const WHOLE_PROMPT = { P: 8.03e9, q: 1e5, L: 32, Hq: 32, d: 128, pairs: formulas.attentionPairs.of({ start: 0, end: 1e5 }) };
const GPT2 = { L: 12, Hkv: 12, d: 64, b: 2, n: 4096 };
const WORKED = { N: 50, T: 200 };
const LONG_PROMPT = { N: 1000, T: 100 };
const WEIGHTS = 16.06e9; // bytes of Llama 3 8B in bf16
const H100 = { F: 495e12, W: 2.35e12 }; // half of its peak, and 70 % of its bandwidth
const seconds = (/** @type {number} */ flops) => formulas.stepTime.of({ flops, bytes: WEIGHTS, ...H100 });
const USERS = { memory: 80e9, weights: WEIGHTS, n: 2048, kv: formulas.kvBytesPerToken.of(LLAMA3_8B) };

/** @type {Correction[]} */
const CORRECTIONS = [
  {
    claim: "A large model needs a megabyte of cache for each token.",
    verdict: "Only old ones whose every query head has keys of its own. Heads that share keys need an eighth or less.",
    value: `Llama 3 8B ${inBytes(formulas.kvBytesPerToken.of(LLAMA3_8B))}, Llama 2 13B ${inBytes(formulas.kvBytesPerToken.of(LLAMA2_13B))}`,
    formula: formulas.kvBytesPerToken, inputs: LLAMA3_8B,
  },
  {
    claim: "Llama 3 8B needs 4 GB of cache at 8,192 tokens.",
    verdict: "That counts 32 query heads. The cache holds the 8 kv-heads.",
    value: inBytes(formulas.kvBytes.of({ ...LLAMA3_8B, n: 8192 })), formula: formulas.kvBytes, inputs: { ...LLAMA3_8B, n: 8192 },
  },
  {
    claim: "The cache makes the work linear in the length.",
    verdict: "Tokens that pass, yes. Attention still looks at every pair: quadratic in all, with a cache too.",
    value: `${count(formulas.passesCached.of(WORKED))} passes instead of ${count(formulas.passesNaive.of(WORKED))} for 50 in, 200 out`,
    formula: formulas.passesNaive, inputs: WORKED,
  },
  {
    claim: "When a token is chosen, its keys and values are stored.",
    verdict: "When it is fed back. The newest token is never in the cache.",
    value: `${count(formulas.cachedTokens.of({ N: 10, m: 4 }))} after 4 tokens on a prompt of 10`, formula: formulas.cachedTokens, inputs: { N: 10, m: 4 },
  },
  {
    claim: "A cache saves memory.",
    verdict: "It costs memory and saves compute. Without it, nothing is held between passes.",
    value: `${inBytes(formulas.kvBytes.of({ ...LLAMA3_8B, n: 2048 }))} held at 2,048 tokens by Llama 3 8B`, formula: formulas.kvBytes, inputs: { ...LLAMA3_8B, n: 2048 },
  },
  {
    claim: "4,096 tokens mean 16 million operations for each new token.",
    verdict: "16,777,216 is the number of score entries of a whole prompt, per head and layer; half of them are masked. A new token adds 4,096.",
    value: `${count(formulas.attentionPairs.of({ start: 0, end: 4096 }))} pairs in all`, formula: formulas.attentionPairs, inputs: { start: 0, end: 4096 },
  },
  {
    claim: "With four guesses, speculation is four times as fast.",
    verdict: "It depends on how often guesses are right, and on what they and their check cost.",
    value: `${digits(formulas.draftSpeedup.of({ a: 0.8, k: 4, c: 0.05, v: 1 }))}× at 80 % right`, formula: formulas.draftSpeedup, inputs: { a: 0.8, k: 4, c: 0.05, v: 1 },
  },
  {
    claim: "Guesses are rarely rejected.",
    verdict: "Some guess of a round is wrong more often than not.",
    value: `${percent(formulas.someWrong.of({ a: 0.8, k: 4 }))} of rounds at 80 % right`, formula: formulas.someWrong, inputs: { a: 0.8, k: 4 },
  },
  {
    claim: "8 bits halve the cache, 4 bits quarter it.",
    verdict: "Scales take their share: with one of 16 bits for each 32 numbers these are 8.5 and 4.5 bits.",
    value: `${digits(16 / 8.5)}× and ${digits(16 / 4.5)}×`, formula: formulas.kvBytesPerToken, inputs: { ...LLAMA3_8B, b: "17/16 or 9/16" },
  },
  {
    claim: "Without a cache is fine for answers of less than 100 tokens.",
    verdict: "The prompt counts as well: it passes again for each token of the answer.",
    value: `${digits(formulas.passesNaive.of(LONG_PROMPT) / formulas.passesCached.of(LONG_PROMPT))} times the passes for 1,000 in, 100 out`, formula: formulas.passesNaive, inputs: LONG_PROMPT,
  },
  {
    claim: "After a long prompt, tokens come as fast as after a short one.",
    verdict: "Each step reads the keys and values of the whole text beside the weights.",
    value: `${digits((WEIGHTS + formulas.kvBytes.of({ ...LLAMA3_8B, n: 1e5 })) / WEIGHTS)} times the bytes a step at 100,000 tokens, Llama 3 8B`, formula: formulas.kvBytes, inputs: { ...LLAMA3_8B, n: 1e5 },
  },
  {
    claim: "A GPU of 80 GB serves thousands of users at once.",
    verdict: "Memory bounds how many: what the weights leave, over the keys and values of each.",
    value: `${count(formulas.usersThatFit.of(USERS))} with 2,048 tokens each, Llama 3 8B`, formula: formulas.usersThatFit, inputs: USERS,
  },
  {
    claim: "4,096 tokens of 768 components: 3 million entries.",
    verdict: "That is the keys of one layer. Values are as many, and GPT-2 small has 12 layers.",
    value: `${inBytes(formulas.kvBytes.of(GPT2))} in 16 bits`, formula: formulas.kvBytes, inputs: GPT2,
  },
  {
    claim: "A prompt takes two operations for each parameter and token.",
    verdict: "Of a long one, attention is the larger half.",
    value: `${percent(1 - (2 * WHOLE_PROMPT.P * WHOLE_PROMPT.q) / formulas.forwardFlops.of(WHOLE_PROMPT))} of the operations at 100,000 tokens, Llama 3 8B`,
    formula: formulas.forwardFlops, inputs: WHOLE_PROMPT,
  },
  {
    claim: "Prefill takes most of the time.",
    verdict: "Only of long prompts with short answers. The timeline shows the share of each.",
    value: `${inTime(seconds(2 * 8.03e9 * WORKED.N) * 1e6)} of ${inTime(seconds(0) * (WORKED.T + 1) * 1e6)} for 50 in, 200 out: Llama 3 8B, H100`,
    formula: formulas.stepTime, inputs: { ...H100, bytes: WEIGHTS },
  },
  {
    claim: "The cache is often larger than the weights.",
    verdict: "Only past this many tokens, over all requests.",
    value: `${count(WEIGHTS / USERS.kv)} tokens, Llama 3 8B`, formula: formulas.kvBytesPerToken, inputs: LLAMA3_8B,
  },
  {
    claim: "A 7B model serves 32 requests from 20 GB, 60 a second.",
    verdict: "If texts are short and answers have 50 tokens. A step of 10 ms then reads 2 TB a second.",
    value: `${count((20e9 - 13.48e9) / 32 / formulas.kvBytesPerToken.of(LLAMA2_7B))} tokens each, Llama 2 7B`, formula: formulas.kvBytesPerToken, inputs: LLAMA2_7B,
  },
  {
    claim: "A smaller max_tokens makes answers faster.",
    verdict: "Tokens that are written cost time, not the cap. A cap below the answer's length only cuts it off.",
    value: "see the challenge", formula: formulas.passesCached, inputs: WORKED,
  },
];

export function Corrections() {
  return html`<table class="corrections">
    <caption>Often said, and what the formulas say</caption>
    <thead><tr><th scope="col">often said</th><th scope="col">it is so</th><th scope="col">the number</th></tr></thead>
    <tbody>
      ${CORRECTIONS.map(
        (each) => html`<tr>
          <td>${each.claim}</td>
          <td>${each.verdict}</td>
          <td><${Num} value=${each.value} of=${each.claim} kind="C" formula=${each.formula} inputs=${each.inputs} /></td>
        </tr>`,
      )}
    </tbody>
  </table>`;
}

/** @type {[string, string][]} */
const QUESTIONS = [
  ["Where is a KV cache used?", "Wherever text is written token by token: chat, code, agents, translation. Long chats and shared system prompts gain most."],
  ["Does it change the answer?", "No: it keeps what the model would compute again. Compare shows the same tokens. Only formats of fewer bits round."],
  ["What does attention compute?", "softmax(q·Kᵀ/√d)·V for the newest token: a weight for each token before it, none for later ones. Generate shows them."],
  ["Why is the first token late, and the rest steady?", "Prefill computes the whole prompt and waits for arithmetic. Decode reads all weights for one token and waits for memory: Plan, roofline."],
  ["Is the temperature the model's?", "No. It makes the odds of the same logits steeper or flatter: how adventurous the draw is. 0 takes the likeliest."],
  ["What fills memory first?", "Keys and values. Watch the owned blocks in Cache; an int8 cache, shared prefixes and shorter contexts take fewer."],
  ["Why do requests wait?", "No seat or no block is free: Serve names the cause. A smaller cache format, more memory or fewer requests at once help."],
  ["Why does speculation need a cache?", "To verify k drafts takes k + 1 positions with it, and the whole text without."],
  ["Why continuous batching?", "A seat is taken again when its answer ends, not when the slowest of a batch does."],
];

/** @param {{session: Session}} props */
export const Questions = ({ session: { store } }) => html`${store.stats.length > 0 &&
  html`<p class="why"><b>Fun fact.</b> This engine has written up to <${Num} of="the most tokens a second" kind="M" from="stat.out_tok_s, the most"
    value=${Math.max(...Array.from({ length: store.stats.length }, (_, row) => store.stats.get("out_tok_s", store.stats.first + row)))} unit="tokens/s" />. People read about five words a second.</p>`}
<dl class="questions">${QUESTIONS.map(([asked, answer]) => html`<div><dt>${asked}</dt><dd>${answer}</dd></div>`)}</dl>`;
