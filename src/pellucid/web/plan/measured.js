// @ts-check
// Steps of this session beside what the formula gives for the same steps: their own operations and bytes.

import { stepTime } from "../formulas.js";

const MOST = 2000; // newest steps that are looked at

/**
 * @typedef {object} Measured
 * @property {"prefill" | "decode" | "mixed"} kind
 * @property {number} step
 * @property {number} us of the forward pass
 * @property {number} predictedUs by the formula
 * @property {number} flops
 * @property {number} bytes
 */

/** @type {("prefill" | "decode" | "mixed")[]} */
const KINDS = ["prefill", "decode", "mixed"];

/**
 * The newest steps up to a row, each with its estimate.
 * @param {import("../state/store.js").Store["steps"]} steps
 * @param {number} endRow the row after the last that counts
 * @param {{F: number, W: number}} machine operations and bytes a second
 * @returns {Measured[]}
 */
export function measuredSteps(steps, endRow, { F, W }) {
  const found = [];
  for (let row = Math.max(steps.first, endRow - MOST); row < endRow; row++) {
    const flops = steps.get("flops", row);
    const bytes = steps.get("w_bytes", row) + steps.get("kv_read_bytes", row) + steps.get("kv_write_bytes", row);
    const us = steps.get("fwd_us", row);
    if (flops <= 0 || bytes <= 0 || us <= 0) continue;
    found.push({ kind: KINDS[steps.get("kind", row)], step: steps.get("step", row), us, predictedUs: stepTime.of({ flops, F, bytes, W }) * 1e6, flops, bytes });
  }
  return found;
}

/** @param {number[]} values not empty */
export function median(values) {
  const sorted = values.slice().sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/**
 * How far the steps of each kind are from the formula.
 * @param {Measured[]} steps
 */
export function errors(steps) {
  return KINDS.map((kind) => {
    const own = steps.filter((each) => each.kind === kind);
    if (own.length === 0) return null;
    return {
      kind, count: own.length, us: median(own.map((each) => each.us)), predictedUs: median(own.map((each) => each.predictedUs)),
      ratio: median(own.map((each) => each.us / each.predictedUs)),
      bytesPerSecond: median(own.map((each) => each.bytes / (each.us * 1e-6))), flopsPerSecond: median(own.map((each) => each.flops / (each.us * 1e-6))),
    };
  }).filter((each) => each !== null);
}
