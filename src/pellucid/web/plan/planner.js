// @ts-check
// Estimates without a server: those of benchmark/estimate.py, from a table of facts that benchmark/plan_table.py makes. A test compares all figures of both.

import { costPerMillion, passesCached, passesNaive } from "../formulas.js";

const TILE_TOKENS = 16; // attention reads the same keys for all positions of a tile
const MIN_MODEL_LEN = 2; // tokens: one of the prompt and one of the answer
const [MIB, GIB] = [2 ** 20, 2 ** 30];

/** @typedef {[window: number | null, amount: number][]} ByWindow of the layers that see at most so many tokens; null: all */

/**
 * What /v1/estimate would reply.
 * @param {any} table
 * @param {URLSearchParams} query
 */
export function estimateOf(table, query) {
  const { settings } = table;
  const model = table.models[query.get("shape") ?? ""];
  const machine = table.machines[query.get("machine") ?? "this"];
  const quantization = query.get("quantization") ?? settings.quantization;
  const dtype = query.get("kv_cache_dtype") ?? settings.kv_cache_dtype;
  const number = (/** @type {string} */ name, /** @type {number} */ other) => Number(query.get(name) ?? other);
  const work = { prompt: number("prompt", 512), output: number("output", 128), batch: number("batch", 1), price: number("price_per_hour", 0) };
  const sheet = new Sheet(table.formulas);
  const about = { model, machine, settings, quantization, dtype, weights: model.weights[quantization], cache: model.caches[dtype], work };
  addSize(sheet, about);
  addRequest(sheet, about);
  addMemory(sheet, about);
  addSpeed(sheet, about);
  const lengths = { N: work.prompt, T: work.output };
  sheet.count("cached_token_passes", passesCached.of(lengths), lengths);
  sheet.count("naive_token_passes", passesNaive.of(lengths), lengths);
  const shapes = Object.keys(table.models).filter(Boolean);
  return { model: model.name, machine, machines: Object.keys(table.machines), shapes, numbers: sheet.numbers };
}

/** The numbers so far. */
class Sheet {
  /** @param {Record<string, [string, string]>} formulas unit and formula of each number */
  constructor(formulas) {
    this.formulas = formulas;
    /** @type {Estimated[]} */
    this.numbers = [];
  }

  /**
   * @param {string} name
   * @param {number} value
   * @param {"M" | "C" | "E"} provenance
   * @param {any} inputs
   */
  add(name, value, provenance, { formula = this.formulas[name][1], ...inputs }) {
    this.numbers.push({ name, value, unit: this.formulas[name][0], provenance, formula, inputs });
    return value;
  }

  /** @param {string} name @param {number} value @param {any} inputs */
  count(name, value, inputs = {}) {
    return this.add(name, value, "C", inputs);
  }

  /** @param {string} name @param {number} value @param {any} inputs */
  estimate(name, value, inputs = {}) {
    return this.add(name, value, "E", inputs);
  }
}

/** Parameters, and the bytes of weights. @param {Sheet} sheet @param {any} about */
function addSize(sheet, { model, weights, quantization }) {
  sheet.count("parameters", model.parameters + model.embeddings, { layers: model.parameters, embeddings: model.embeddings });
  sheet.count("active_parameters", model.active + model.head, { layers: model.active, head: model.head });
  sheet.count("weight_bytes", weights.bytes, { quantization });
}

/**
 * The most blocks that a request holds at a time.
 * @param {any} about
 * @param {number} tokens
 * @returns {number}
 */
function blocksOf({ model, settings, cache: { block_tok } }, tokens) {
  const all = Math.ceil(tokens / block_tok);
  // The furthest into a block that the first position of a window can be.
  const step = commonDivisor(TILE_TOKENS, block_tok);
  return model.windows.reduce((/** @type {number} */ sum, /** @type {number | null} */ window) => {
    if (window === null) return sum + all;
    // From the first position that a tile sees to the end of a chunk that begins at its last position.
    const span = window - 1 + TILE_TOKENS - 1 + settings.m;
    const offset = block_tok - step + ((((1 - window) % step) + step) % step);
    return sum + Math.min(all, Math.ceil((offset + span) / block_tok));
  }, 0);
}

/** @param {number} a @param {number} b @returns {number} */
const commonDivisor = (a, b) => (b === 0 ? a : commonDivisor(b, a % b));

/** What a request holds of the cache, of recurrent states and of open keys. @param {Sheet} sheet @param {any} about */
function addRequest(sheet, about) {
  const { model, settings, cache, dtype, work } = about;
  const positions = work.prompt + work.output - 1; // the last token is not computed
  sheet.count("kv_bytes_per_token", cache.position_bytes, { kv_cache_dtype: dtype, layers: model.layers, n_kv: model.n_kv, head_dim: model.head_dim });
  const isPlain = model.windows.length === 1 && model.windows[0] === null;
  const blocks = sheet.count("kv_blocks_per_request", blocksOf(about, positions), {
    n: positions, s: cache.block_tok, m: settings.m,
    ...(!isPlain && { formula: "sum over groups of ceil(n / s), at most a window and a step of m tokens" }),
  });
  const states = model.state_bytes;
  const open = cache.open_bytes;
  if (states) sheet.count("state_bytes_per_request", states, { layers: model.recurrent });
  if (open) sheet.count("open_key_bytes_per_request", open, { layers: model.attentions });
  const parts = ["blocks * bytes of a block", ...(states ? ["states"] : []), ...(open ? ["open keys"] : [])];
  const request = sheet.count("kv_bytes_per_request", blocks * cache.block_bytes + states + open, {
    blocks, block_bytes: cache.block_bytes, states, open_keys: open, by_formula: positions * cache.position_bytes + states + open,
    ...(parts.length > 1 && { formula: parts.join(" + ") }),
  });
  sheet.count("kv_bytes_batch", work.batch * request, { B: work.batch });
}

/** What fits beside the weights, as the engine plans its memory. @param {Sheet} sheet @param {any} about */
function addMemory(sheet, about) {
  const { model, settings, machine, weights, cache, work } = about;
  const memory = machine.memory_bytes;
  const available = Math.max(0, Math.floor(memory) - weights.bytes);
  const scratch = weights.scratch + cache.scratch;
  const left = Math.max(0, Math.floor(available * settings.u) - scratch - cache.states);
  const fitting = Math.floor(left / cache.block_bytes);
  const longest = longestOf(about, fitting);
  const hasRoom = longest >= MIN_MODEL_LEN;
  const wanted = settings.S * blocksOf(about, longest);
  const isLimited = fitting < wanted;
  const why = isLimited ? `memory (${inGib(available)} available, ${inGib(left)} left for the KV cache)` : "max_num_seqs, max_model_len";
  const blocks = sheet.count("kv_blocks", hasRoom ? Math.min(fitting, wanted) : 0, {
    memory, weights: weights.bytes, u: settings.u, scratch: hasRoom ? scratch : 0, states: hasRoom ? cache.states : 0, S: settings.S, c: model.context,
    decided_by: hasRoom ? why : "no room",
  });
  const given = { blocks, memory };
  const requests = hasRoom ? Math.min(settings.S, Math.floor(blocks / blocksOf(about, work.prompt + work.output - 1))) : 0;
  sheet.count("requests_that_fit", requests, { S: settings.S, ...given });
  sheet.count("longest_context", hasRoom ? longest : 0, { c: model.context, ...given });
}

/**
 * Tokens of the longest request that fits alone.
 * @param {any} about
 * @param {number} blocks
 */
function longestOf(about, blocks) {
  let [low, high] = [0, about.model.context];
  while (low < high) {
    const middle = Math.floor((low + high + 1) / 2);
    [low, high] = blocksOf(about, middle) <= blocks ? [middle, high] : [low, middle - 1];
  }
  return low;
}

/** Bytes for people. @param {number} bytes */
function inGib(bytes) {
  const [size, unit] = bytes < Math.floor(GIB / 10) ? [bytes / MIB, "MiB"] : [bytes / GIB, "GiB"];
  return `${size.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })} ${unit}`;
}

/**
 * (query, key) pairs of the queries at positions start .. end - 1.
 * @param {number} start
 * @param {number} end
 * @param {number | null} window
 */
function pairsOf(start, end, window) {
  const [wide, ends] = window === null ? [start, end] : [Math.min(start, window), Math.min(end, window)];
  return (ends * (ends + 1)) / 2 - (wide * (wide + 1)) / 2 + (end - ends) * ends - (start - wide) * wide;
}

/** @param {ByWindow} amounts @param {(window: number | null) => number} times */
const sumOf = (amounts, times) => amounts.reduce((sum, [window, amount]) => sum + amount * times(window), 0);

/** Of one request's tokens at positions start .. end - 1, the last of which has logits. @param {any} model @param {number} start @param {number} end */
const flopsOf = (model, start, end) =>
  model.token_flops * (end - start) + model.logits_flops + sumOf(model.pair_flops, (window) => pairsOf(start, end, window)) +
  sumOf(model.logits_pair_flops, (window) => pairsOf(end - 1, end, window));

/** Keys, values and states that are read and written for the same tokens, in bytes. @param {any} about @param {number} start @param {number} end */
function movedOf({ model, cache }, start, end) {
  const numbers = sumOf(model.kv_numbers, (window) => end - (window === null ? 0 : Math.max(0, start - window + 1)));
  return numbers * cache.position_bytes * model.kv_number_share + 2 * model.state_bytes;
}

/** The roofline of prefill and decode, and the times and the price that follow. @param {Sheet} sheet @param {any} about */
function addSpeed(sheet, about) {
  const { model, machine, weights, work } = about;
  const [W, F] = [machine.bandwidth_bytes_per_second, machine.flops_per_second];
  sheet.add("bandwidth", W, machine.provenance, { machine: machine.name });
  sheet.add("peak", F, machine.provenance, { machine: machine.name });
  sheet.estimate("ridge", F / W, { F, W });
  /** The step that computes positions start .. end - 1 of each request. @param {string} name @param {number} start @param {number} end @param {number} requests */
  const addStep = (name, start, end, requests) => {
    const tokens = requests * (end - start);
    const flops = requests * flopsOf(model, start, end);
    const unread = weights.experts.reduce((/** @type {number} */ sum, /** @type {number[]} */ [all, active, bytes]) => sum + (1 - active / all) ** tokens * bytes, 0);
    const read = sheet.add(`${name}_weight_bytes`, weights.model_bytes * ((weights.read - unread) / weights.stored), model.has_experts ? "E" : "C", {
      weights: weights.model_bytes, q: tokens,
    });
    const moved = read + requests * movedOf(about, start, end);
    sheet.count(`${name}_flops`, flops, { P: model.active + model.head });
    sheet.count(`${name}_bytes`, moved, { weights: read });
    sheet.count(`${name}_intensity`, flops / moved);
    return sheet.estimate(`${name}_seconds`, Math.max(flops / F, moved / W), { F, W, bound: flops / F > moved / W ? "compute" : "memory" });
  };
  const context = work.prompt + work.output;
  const prefill = addStep("prefill", 0, work.prompt, 1);
  const decode = addStep("decode", context - 1, context, work.batch);
  sheet.estimate("first_token_seconds", prefill);
  const rate = sheet.estimate("tokens_per_second", work.batch / decode, { B: work.batch });
  sheet.estimate("request_seconds", prefill + (work.output - 1) * decode, { T: work.output });
  if (work.price) sheet.estimate("price_per_million_tokens", costPerMillion.of({ price: work.price, rate }), { price: work.price });
}
