// @ts-check
// How logits become a distribution: the engine's sampling stages in their order, so that sliders redraw a step from its own logits.
// docs/sampling.md defines each stage. Shares agree with the engine's to nine digits: at its very edge a nucleus may have one token more or less.

/**
 * All stages that the parameters ask for; the first is the model's own distribution.
 * @param {Float32Array} logits
 * @param {SamplingParams} params
 * @param {TextBefore} past
 * @returns {SamplingStage[]}
 */
export function samplingStages(logits, params, past) {
  const order = Array.from(logits.keys()).sort((a, b) => logits[b] - logits[a] || a - b);
  const model = softmax(order, (id) => logits[id]);
  /** @type {SamplingStage[]} */
  const stages = [{ stage: "logits", kept: order.length, mass_frac: 1, odds: model }];
  let changed = Float64Array.from(logits);
  let ids = order;
  const seen = new Set([...past.promptIds, ...past.outputCounts.map(([id]) => id)]);
  /** @param {string} stage */
  const reordered = (stage) => {
    ids = [...ids].sort((a, b) => changed[b] - changed[a] || a - b);
    stages.push({ stage, kept: ids.length, mass_frac: 1, odds: softmax(ids, (id) => changed[id]) });
  };
  const penalty = params.repetition_penalty ?? 1;
  if (penalty !== 1) {
    for (const id of seen) changed[id] = changed[id] > 0 ? changed[id] / penalty : changed[id] * penalty;
    reordered("repetition_penalty");
  }
  if (params.presence_penalty) {
    for (const [id] of past.outputCounts) changed[id] -= params.presence_penalty;
    reordered("presence_penalty");
  }
  if (params.frequency_penalty) {
    for (const [id, times] of past.outputCounts) changed[id] -= params.frequency_penalty * times;
    reordered("frequency_penalty");
  }
  /**
   * Keeps the first tokens of an order.
   * @param {string} stage
   * @param {number[]} kept
   */
  const truncate = (stage, kept) => {
    const before = /** @type {SamplingStage} */ (stages.at(-1)).odds;
    const mass = kept.length === ids.length ? 1 : Math.min(1, kept.reduce((sum, id) => sum + (before.get(id) ?? 0), 0));
    ids = kept;
    stages.push({ stage, kept: ids.length, mass_frac: mass, odds: softmax(ids, (id) => changed[id]) });
  };
  if (params.temperature === 0) {
    truncate("temperature", ids.slice(0, 1));
    return stages;
  }
  if (params.temperature !== 1) {
    changed = changed.map((logit) => logit / params.temperature);
    reordered("temperature");
  }
  if (params.top_k > 0 && params.top_k < ids.length) truncate("top_k", ids.slice(0, params.top_k));
  else if (params.top_k > 0) truncate("top_k", ids);
  const odds = () => /** @type {SamplingStage} */ (stages.at(-1)).odds;
  if (params.top_p < 1) truncate("top_p", shortestPrefix(ids, odds(), params.top_p));
  if (params.min_p > 0) {
    const least = params.min_p * (odds().get(ids[0]) ?? 0);
    truncate("min_p", ids.filter((id) => (odds().get(id) ?? 0) >= least));
  }
  if (params.typical_p !== undefined && params.typical_p < 1) {
    const now = odds();
    let entropy = 0;
    for (const p of now.values()) entropy -= p > 0 ? p * Math.log(p) : 0;
    const distance = new Map(ids.map((id) => [id, Math.abs(-Math.log(now.get(id) ?? 0) - entropy)]));
    const near = [...ids].sort((a, b) => (distance.get(a) ?? 0) - (distance.get(b) ?? 0) || a - b);
    const kept = new Set(shortestPrefix(near, now, params.typical_p));
    truncate("typical_p", ids.filter((id) => kept.has(id)));
  }
  return stages;
}

/**
 * @param {number[]} ids
 * @param {(id: number) => number} logit
 * @returns {Map<number, number>}
 */
function softmax(ids, logit) {
  const largest = ids.reduce((found, id) => Math.max(found, logit(id)), -Infinity);
  const weights = ids.map((id) => Math.exp(logit(id) - largest));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  return new Map(ids.map((id, index) => [id, weights[index] / total]));
}

/**
 * The fewest first tokens whose probabilities reach a share.
 * @param {number[]} ids
 * @param {Map<number, number>} odds
 * @param {number} share
 */
function shortestPrefix(ids, odds, share) {
  let sum = 0;
  for (let count = 0; count < ids.length; count++) {
    sum += odds.get(ids[count]) ?? 0;
    if (sum >= share - 1e-12) return ids.slice(0, count + 1);
  }
  return ids;
}

/**
 * Logits as the server sends them.
 * @param {string} base64 little-endian 32-bit floats
 */
export function decodeLogits(base64) {
  const bytes = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}
