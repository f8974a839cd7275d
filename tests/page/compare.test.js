// A comparison as its events tell it, and the scales of its charts.
import assert from "node:assert/strict";
import { test } from "node:test";
import { passesOf } from "../../src/pellucid/web/compare/cells.js";
import { newRun, phaseOf, take, timeSentence } from "../../src/pellucid/web/compare/loops.js";
import { lastAtMost, powerTicks, roundTicks } from "../../src/pellucid/web/draw/lines.js";

const BEGIN = {
  ev: "cmp.begin", kind: "cache", requests: 1, prompt_ids: [1, 2, 3], max_new_tok: 2,
  arms: [{ arm: "cached", use_kv_cache: true, kv_cache_dtype: null }, { arm: "naive", use_kv_cache: false, kv_cache_dtype: null }],
};
const step = (arm, n_tok, pass_tok) => ({
  ev: "cmp", arm, n_tok, pass_tok, ctx_tok: 3 + n_tok, flops: 1, moved_bytes: 1, step_us: 5, t_us: 5 * n_tok, kv_step_bytes: 8, kv_held_bytes: 8,
  new: [["x", [9], " a"]],
});

test("the line that is lit follows the arm's steps", () => {
  const run = newRun(BEGIN);
  const [cached, naive] = run.arms;
  const phases = (at = -1) => [phaseOf(run, cached, at), phaseOf(run, naive, at)];
  assert.deepEqual(phases(), ["prefill", "idle"]);
  take(run, step("cached", 1, 3));
  assert.deepEqual(phases(), ["decode", "idle"]);
  take(run, step("cached", 2, 4));
  assert.deepEqual(phases(), ["done", "prefill"]);
  take(run, step("naive", 1, 3));
  take(run, step("naive", 2, 7));
  assert.deepEqual(phases(), ["done", "done"]);
  assert.deepEqual(phases(1), ["prefill", "prefill"]);
  assert.deepEqual(phases(2), ["decode", "decode"]);
  assert.deepEqual([cached.passed, naive.passed], [[3, 4], [3, 7]]);
});

test("with the cache a step passes its newest token, without it all of them, and keeps none", () => {
  const run = newRun(BEGIN);
  for (const [tokens, passed] of [[1, 3], [2, 4]]) take(run, step("cached", tokens, passed));
  for (const [tokens, passed] of [[1, 3], [2, 7]]) take(run, step("naive", tokens, passed));
  const passes = ([first, second]) => [passesOf(run, first, 0), passesOf(run, first, 1), passesOf(run, second, 1)];
  assert.deepEqual(passes(run.arms), [
    { count: 4, passedFrom: 0, kept: 3 },
    { count: 5, passedFrom: 3, kept: 4 },
    { count: 5, passedFrom: 0, kept: 0 },
  ]);
});

const timed = (cached, naive) => {
  const run = newRun(BEGIN);
  cached.forEach((t_us, index) => {
    take(run, { ev: "cmp.run", arm: "cached", t_us });
    take(run, { ev: "cmp.run", arm: "naive", t_us: naive[index] });
  });
  const middle = (cached.length - 1) >> 1;
  const arms = { cached: { t_us: cached[middle] }, naive: { t_us: naive[middle] } };
  take(run, { ev: "cmp.end", arms });
  return timeSentence(run, 0, 1);
};

test("the sentence about times follows the medians, and says when a difference is noise", () => {
  assert.equal(timed([90, 100, 120], [290, 300, 310]), "100 µs and not 300 µs, the medians of 3 runs in turn: 3 times as fast.");
  assert.equal(timed([290, 300, 310], [140, 150, 160]), "300 µs and not 150 µs, the medians of 3 runs in turn: 0.5 times as fast.");
  assert.equal(
    timed([990, 1090, 1100], [900, 1010, 1000]), "1.09 ms and not 1.01 ms, the medians of 3 runs in turn: no more apart than runs of one way are.",
  );
  assert.equal(timed([100], [300]), "100 µs and not 300 µs, in one run each: 3 times as fast.");
});

test("axes have round values that reach the largest", () => {
  assert.deepEqual(roundTicks(298), [0, 100, 200, 300]);
  assert.deepEqual(roundTicks(0), [0, 1]);
  assert.deepEqual(roundTicks(3 * 1024, 1024), [0, 1024, 2048, 3072]);
  assert.deepEqual(powerTicks(0.5, 100), [1, 10, 100]);
  assert.deepEqual([0, 1, 4, 9].map((value) => lastAtMost([1, 2, 5], value)), [-1, 0, 1, 2]);
});
