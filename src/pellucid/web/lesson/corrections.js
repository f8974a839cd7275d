// @ts-check
// Numbers that lessons about inference often get wrong, what the formulas say, and questions that readers ask.

import * as formulas from "../formulas.js";
import { html } from "../html.js";
import { count, digits, inBytes, inPrefix, inTime, Num, percent } from "../parts/numbers.js";

const LLAMA3_8B = { L: 32, Hkv: 8, d: 128, b: 2 };
const LLAMA2_13B = { L: 40, Hkv: 40, d: 128, b: 2 };
const LLAMA2_7B = { ...LLAMA2_13B, L: 32, Hkv: 32 };
const GPT2 = { L: 12, Hkv: 12, d: 64, b: 2 };
const WORKED = { N: 50, T: 200 };
const LONG_PROMPT = { N: 1000, T: 100 };
const FOUR_DRAFTS = { a: 0.8, k: 4, c: 0.05, v: 1 };
const WEIGHTS = 16.06e9; // bytes of Llama 3 8B in bf16
const H100 = { F: 495e12, W: 2.35e12 }; // half of its peak, and 70 % of its bandwidth
const kvToken = formulas.kvBytesPerToken.of(LLAMA3_8B);

/** A pass of Llama 3 8B over the tokens of a text from `start` to `end`. @param {number} start @param {number} end */
const pass = (start, end) => ({ P: 8.03e9, q: end - start, L: 32, Hq: 32, d: 128, pairs: formulas.attentionPairs.of({ start, end }) });

/** @type {Formula} */
const shorterAnswer = {
  text: "(first + T₁·each) / (first + T₂·each)",
  inputs: { first: "time of the first token, in steps", each: "time of each token", T1: "tokens of the long answer", T2: "of the short one" },
  of: ({ first, each, T1, T2 }) => (first + T1 * each) / (first + T2 * each),
};

/** @type {Correction[]} */
const CORRECTIONS = [
  {
    claim: "A large model needs a megabyte of cache for each token.",
    verdict: "Only old ones whose every query head has keys of its own. Heads that share keys need an eighth or less.",
    formula: formulas.kvBytesPerToken, inputs: LLAMA3_8B,
    number: (bytes) => `Llama 3 8B ${inBytes(bytes)}, Llama 2 13B ${inBytes(formulas.kvBytesPerToken.of(LLAMA2_13B))}`,
  },
  {
    claim: "Llama 3 8B needs 4 GB of cache at 8,192 tokens.",
    verdict: "That counts 32 query heads. The cache holds the 8 kv-heads.",
    formula: formulas.kvBytes, inputs: { ...LLAMA3_8B, n: 8192 }, number: inBytes,
  },
  {
    claim: "The cache makes the work linear in the length.",
    verdict: "Tokens that pass, yes. Attention still looks at every pair: quadratic in all, with a cache too.",
    formula: formulas.passesNaive, inputs: WORKED,
    number: (naive) => `${count(formulas.passesCached.of(WORKED))} passes instead of ${count(naive)} for 50 in, 200 out`,
  },
  {
    claim: "Twice the length, four times the work.",
    verdict: "Of attention alone. All other operations double.",
    formula: formulas.forwardFlops, inputs: pass(0, 16384),
    number: (flops) => `${digits(flops / formulas.forwardFlops.of(pass(0, 8192)))} times for 16,384 tokens instead of 8,192, Llama 3 8B`,
  },
  {
    claim: "Each new token takes billions of operations.",
    verdict: "It does: two for each parameter, and attention's.",
    formula: formulas.forwardFlops, inputs: pass(2047, 2048), number: (flops) => `${inPrefix(flops)} for token 2,048, Llama 3 8B`,
  },
  {
    claim: "When a token is chosen, its keys and values are stored.",
    verdict: "When it is fed back. The newest token is never in the cache.",
    formula: formulas.cachedTokens, inputs: { N: 10, m: 4 }, number: (tokens) => `${count(tokens)} after 4 tokens on a prompt of 10`,
  },
  {
    claim: "A cache saves memory.",
    verdict: "It costs memory and saves compute. Without it, nothing is held between passes.",
    formula: formulas.kvBytes, inputs: { ...LLAMA3_8B, n: 2048 }, number: (bytes) => `${inBytes(bytes)} held at 2,048 tokens by Llama 3 8B`,
  },
  {
    claim: "4,096 tokens mean 16 million operations for each new token.",
    verdict: "16,777,216 is the number of score entries of a whole prompt, per head and layer. Half of them are masked, and attention in tiles (flash attention) stores none. A new token adds 4,096.",
    formula: formulas.attentionPairs, inputs: { start: 0, end: 4096 }, number: (pairs) => `${count(pairs)} pairs in all`,
  },
  {
    claim: "With four guesses, speculation is four times as fast.",
    verdict: "It depends on how often guesses are right, and on what they and their check cost.",
    formula: formulas.draftSpeedup, inputs: FOUR_DRAFTS, kind: "E", number: (times) => `${digits(times)}× at 80 % right`,
  },
  {
    claim: "Guesses that are right with 100, 85, 70 and 55 % make it 0.95 times as fast.",
    verdict: "That counts what a guess costs and not what it saves. Each share is of guesses whose forerunners were right.",
    formula: formulas.tokensByPosition, inputs: { a: [1, 0.85, 0.7, 0.55] }, kind: "E",
    number: (tokens) => `${digits(tokens)} tokens a round: ${digits(tokens / (4 * FOUR_DRAFTS.c + FOUR_DRAFTS.v))}× if a guess costs a twentieth of a step`,
  },
  {
    claim: "Guesses are rarely rejected.",
    verdict: "Some guess of a round is wrong more often than not.",
    formula: formulas.someWrong, inputs: FOUR_DRAFTS, kind: "E", number: (share) => `${percent(share)} of rounds at 80 % right`,
  },
  {
    claim: "8 bits halve the cache, 4 bits quarter it.",
    verdict: "Scales take their share: with one of 16 bits for each 32 numbers these are 8.5 and 4.5 bits.",
    formula: formulas.kvBytesPerToken, inputs: { ...LLAMA3_8B, b: 17 / 16 },
    number: (bytes) => `${digits(kvToken / bytes)}× and ${digits(kvToken / formulas.kvBytesPerToken.of({ ...LLAMA3_8B, b: 9 / 16 }))}× fewer bytes`,
  },
  {
    claim: "Without a cache is fine for answers of less than 100 tokens.",
    verdict: "The prompt counts as well: it passes again for each token of the answer.",
    formula: formulas.passesNaive, inputs: LONG_PROMPT,
    number: (naive) => `${digits(naive / formulas.passesCached.of(LONG_PROMPT))} times the passes for 1,000 in, 100 out`,
  },
  {
    claim: "After a long prompt, tokens come as fast as after a short one.",
    verdict: "Each step reads the keys and values of the whole text beside the weights.",
    formula: formulas.kvBytes, inputs: { ...LLAMA3_8B, n: 1e5 },
    number: (bytes) => `${digits((WEIGHTS + bytes) / WEIGHTS)} times the bytes a step at 100,000 tokens, Llama 3 8B`,
  },
  {
    claim: "A GPU of 80 GB serves thousands of users at once.",
    verdict: "Memory bounds how many: what the weights leave, over the keys and values of each.",
    formula: formulas.usersThatFit, inputs: { memory: 80e9, weights: WEIGHTS, n: 2048, kv: kvToken }, number: (users) => `${count(users)} with 2,048 tokens each, Llama 3 8B`,
  },
  {
    claim: "4,096 tokens of 768 components: 3 million entries.",
    verdict: "That is the keys of one layer. Values are as many, and GPT-2 small has 12 layers.",
    formula: formulas.kvBytes, inputs: { ...GPT2, n: 4096 }, number: (bytes) => `${inBytes(bytes)} in 16 bits`,
  },
  {
    claim: "Its cache grows by 6 KiB a token.",
    verdict: "That is one layer with 32 bits a number.",
    formula: formulas.kvBytesPerToken, inputs: GPT2, number: (bytes) => `${inBytes(bytes)} in 12 layers and 16 bits`,
  },
  {
    claim: "A prompt takes two operations for each parameter and token.",
    verdict: "Of a long one, attention is the larger half.",
    formula: formulas.forwardFlops, inputs: pass(0, 1e5),
    number: (flops) => `${percent(1 - (2 * 8.03e9 * 1e5) / flops)} of the operations at 100,000 tokens, Llama 3 8B`,
  },
  {
    claim: "Prefill takes most of the time.",
    verdict: "Only of long prompts with short answers. The timeline shows the share of each.",
    formula: formulas.stepTime, inputs: { ...H100, flops: 2 * 8.03e9 * WORKED.N, bytes: WEIGHTS }, kind: "E",
    number: (prefill) => `${inTime(prefill * 1e6)} of ${inTime((prefill + (WEIGHTS / H100.W) * (WORKED.T - 1)) * 1e6)} for 50 in, 200 out: Llama 3 8B, H100`,
  },
  {
    claim: "The cache is often larger than the weights.",
    verdict: "Only past this many tokens, over all requests.",
    formula: formulas.kvBytesPerToken, inputs: LLAMA3_8B, number: (bytes) => `${count(WEIGHTS / bytes)} tokens, Llama 3 8B`,
  },
  {
    claim: "A 7B model serves 32 requests from 20 GB, 60 a second.",
    verdict: "If texts are short and answers have 50 tokens. A step of 10 ms then reads 2 TB a second.",
    formula: formulas.kvBytesPerToken, inputs: LLAMA2_7B, number: (bytes) => `${count((20e9 - 13.48e9) / 32 / bytes)} tokens each, Llama 2 7B`,
  },
  {
    claim: "With max_tokens 10 instead of 4,096 the answer comes 18 times as fast.",
    verdict: "Tokens that are written cost time, not the cap. A cap below the answer's length only cuts it off.",
    formula: shorterAnswer, inputs: { first: 35, each: 1, T1: 667, T2: 3 }, kind: "E", number: (times) => `${digits(times)}× if 3 tokens are written in place of 667`,
  },
];

export function Corrections() {
  return html`<table class="corrections">
    <caption>Often said, and what the formulas say</caption>
    <thead><tr><th scope="col">often said</th><th scope="col">it is so</th><th scope="col">the number</th></tr></thead>
    <tbody>
      ${CORRECTIONS.map(
        ({ claim, verdict, number, formula, inputs, kind = "C" }) => html`<tr>
          <td>${claim}</td>
          <td>${verdict}</td>
          <td><${Num} value=${number(formula.of(inputs))} of=${claim} kind=${kind} formula=${formula} inputs=${inputs} /></td>
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
  ["What shape has the cache?", "In each layer two arrays, keys and values: [blocks, tokens of a block, kv-heads, numbers of a head]. Cache shows one head of one block."],
  ["What is grouped-query attention (GQA)?", "Several query heads read the same keys and values, so the cache has fewer heads. With one for all it is called MQA."],
  ["What is flash attention?", "Attention in tiles: the weights of a tile are used at once and never stored. The result is the same, memory for them is not needed."],
  ["What is paged attention?", "Keys and values lie in blocks of one size, anywhere in memory, and a block table says where: no gap between requests, and equal beginnings are shared."],
  ["What ends an answer?", "The model's end token, a stop string or stop token, the number of tokens asked for, or whoever asked. Generate says which, under the text."],
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
