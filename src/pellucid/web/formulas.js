// @ts-check
// Formulas for bytes, operations, times and speed-ups: those of formulas.py.

/** @type {Formula} */
export const cachedTokens = {
  text: "N + m − 1",
  inputs: { N: "prompt tokens", m: "output tokens so far" },
  of: ({ N, m }) => (m === 0 ? N : N + m - 1),
};

/** @type {Formula} */
export const passesCached = {
  text: "N + T − 1",
  inputs: { N: "prompt tokens", T: "output tokens" },
  of: ({ N, T }) => (T === 0 ? 0 : N + T - 1),
};

/** @type {Formula} */
export const passesNaive = {
  text: "N·T + T·(T − 1)/2",
  inputs: { N: "prompt tokens", T: "output tokens" },
  of: ({ N, T }) => N * T + (T * (T - 1)) / 2,
};

/** @type {Formula} */
export const attentionPairs = {
  text: "end·(end + 1)/2 − start·(start + 1)/2",
  inputs: { start: "first position computed", end: "position after the last" },
  of: ({ start, end }) => (end * (end + 1)) / 2 - (start * (start + 1)) / 2,
};

/** @type {Formula} */
export const kvBytesPerToken = {
  text: "2·L·Hkv·d·b",
  inputs: { L: "layers", Hkv: "kv-heads", d: "components of a head", b: "bytes a component, scales included" },
  of: ({ L, Hkv, d, b }) => 2 * L * Hkv * d * b,
};

/** @type {Formula} */
export const kvBytes = {
  text: "2·L·Hkv·d·b·n",
  inputs: { ...kvBytesPerToken.inputs, n: "tokens in the cache" },
  of: ({ n, ...shape }) => kvBytesPerToken.of(shape) * n,
};

/** @type {Formula} */
export const blocksOf = {
  text: "⌈n / s⌉",
  inputs: { n: "tokens", s: "tokens in a block" },
  of: ({ n, s }) => Math.ceil(n / s),
};

/** @type {Formula} */
export const wastedSlots = {
  text: "⌈n / s⌉·s − n",
  inputs: blocksOf.inputs,
  of: ({ n, s }) => Math.ceil(n / s) * s - n,
};

/** @type {Formula} */
export const sharedBytes = {
  text: "Σ (owners − 1)·B",
  inputs: { extra: "owners beyond the first, over all blocks", B: "bytes of a block" },
  of: ({ extra, B }) => extra * B,
};

/** @type {Formula} */
export const forwardFlops = {
  text: "2·P·q + 4·L·Hq·d·pairs",
  inputs: {
    P: "parameters of the matrices", q: "tokens computed", L: "layers", Hq: "query heads", d: "components of a head",
    pairs: "pairs of a query and a key that it sees",
  },
  of: ({ P, q, L, Hq, d, pairs }) => 2 * P * q + 4 * L * Hq * d * pairs,
};

/** @type {Formula} */
export const stepTime = {
  text: "max(FLOPs / F, bytes / W)",
  inputs: {
    flops: "operations", F: "operations a second, measured", bytes: "weights and keys and values read", W: "bytes a second, measured",
  },
  of: ({ flops, F, bytes, W }) => Math.max(flops / F, bytes / W),
};

/** @type {Formula} */
export const expectedTokens = {
  text: "(1 − aᵏ⁺¹) / (1 − a)",
  inputs: { a: "probability that a draft is right, given those before", k: "drafts a round" },
  of: ({ a, k }) => {
    let sum = 0;
    for (let i = 0; i <= k; i++) sum += a ** i;
    return sum;
  },
  source: "Leviathan et al. 2023, arXiv:2211.17192",
};

/** @type {Formula} */
export const tokensByPosition = {
  text: "1 + a₁ + a₁·a₂ + …",
  inputs: { a: "share of right drafts at each position, of those whose forerunners were right" },
  of: ({ a }) => {
    let [sum, soFar] = [1, 1];
    for (const share of a) sum += soFar *= share;
    return sum;
  },
};

/** @type {Formula} */
export const someWrong = { text: "1 − aᵏ", inputs: expectedTokens.inputs, of: ({ a, k }) => 1 - a ** k };

/** @type {Formula} */
export const draftSpeedup = {
  text: "E / (k·c + v)",
  inputs: {
    a: "probability that a draft is right, given those before", k: "drafts a round", c: "time of drafting one token, in decode steps",
    v: "time of verifying k drafts, in decode steps",
  },
  of: ({ a, k, c, v }) => expectedTokens.of({ a, k }) / (k * c + v),
  source: "Leviathan et al. 2023, arXiv:2211.17192",
};

/** @type {Formula} */
export const costPerMillion = {
  text: "price / (3600·rate)·10⁶",
  inputs: { price: "of the machine, an hour", rate: "tokens a second" },
  of: ({ price, rate }) => (price / (3600 * rate)) * 1e6,
};

/** @type {Formula} */
export const usersThatFit = {
  text: "⌊(memory − weights) / (n·kv)⌋",
  inputs: { memory: "bytes", weights: "bytes", n: "tokens of each user", kv: "bytes of keys and values a token" },
  of: ({ memory, weights, n, kv }) => Math.max(0, Math.floor((memory - weights) / (n * kv))),
};

/** @type {Formula} */
export const entropyBits = {
  text: "−Σ p·log₂ p",
  inputs: { p: "probability of each token of the vocabulary" },
  of: ({ p }) => -p.reduce((/** @type {number} */ sum, /** @type {number} */ x) => sum + (x > 0 ? x * Math.log2(x) : 0), 0),
};
