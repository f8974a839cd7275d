// @ts-check
// One comparison as its events tell it: each arm's steps as columns, and what its loop does at any of them.

/**
 * @typedef {object} Arm
 * @property {string} name
 * @property {number} number from 0, for its hue
 * @property {boolean} useKvCache
 * @property {string | null} dtype
 * @property {number[]} tokens output tokens after each step
 * @property {number[]} passed tokens passed so far
 * @property {number[]} flops
 * @property {number[]} moved bytes
 * @property {number[]} stepUs
 * @property {number[]} timeUs
 * @property {number[]} heldBytes between this step and the next
 * @property {string[]} texts what each step added to the first request's text
 * @property {any | null} end its summary
 *
 * @typedef {object} Run
 * @property {string} kind cache, kv_dtype, batch
 * @property {Arm[]} arms
 * @property {number} requests of each arm
 * @property {number} promptTok
 * @property {number} maxTokens of each answer
 * @property {any | null} end the event cmp.end
 * @property {boolean} isRunning
 */

/**
 * @param {any} begin the event cmp.begin
 * @returns {Run}
 */
export function newRun(begin) {
  return {
    kind: begin.kind,
    arms: begin.arms.map((/** @type {any} */ arm, /** @type {number} */ number) => ({
      name: arm.arm, number, useKvCache: arm.use_kv_cache, dtype: arm.kv_cache_dtype, tokens: [], passed: [], flops: [], moved: [],
      stepUs: [], timeUs: [], heldBytes: [], texts: [], end: null,
    })),
    requests: begin.requests,
    promptTok: begin.prompt_ids.length,
    maxTokens: begin.max_new_tok,
    end: null,
    isRunning: true,
  };
}

/**
 * Takes in an event; the run changes in place.
 * @param {Run} run
 * @param {any} event
 */
export function take(run, event) {
  if (event.ev === "cmp") {
    const arm = /** @type {Arm} */ (run.arms.find((each) => each.name === event.arm));
    arm.tokens.push(event.n_tok);
    arm.passed.push(event.pass_tok);
    arm.flops.push(event.flops);
    arm.moved.push(event.moved_bytes);
    arm.stepUs.push(event.step_us);
    arm.timeUs.push(event.t_us);
    arm.heldBytes.push(event.kv_held_bytes);
    arm.texts.push(event.new.length > 0 ? event.new[0][2] : "");
  } else if (event.ev === "cmp.end") {
    run.end = event;
    for (const arm of run.arms) arm.end = event.arms[arm.name] ?? null;
  }
}

/** How many output tokens the longest arm has so far. @param {Run} run */
export const mostTokens = (run) => Math.max(0, ...run.arms.map((arm) => arm.tokens.at(-1) ?? 0));

/**
 * What the loop of an arm does: "idle" before it begins, "prefill" and "decode" while a token is computed, "done" at its end.
 * @param {Run} run
 * @param {Arm} arm
 * @param {number} at output tokens that are looked at; -1: as of now
 * @returns {"idle" | "prefill" | "decode" | "done"}
 */
export function phaseOf(run, arm, at) {
  const made = arm.tokens.at(-1) ?? 0;
  const all = run.maxTokens * run.requests;
  if (at < 0) {
    const before = run.arms[arm.number - 1];
    const begun = !before || (before.tokens.at(-1) ?? 0) >= all;
    if (made >= all || (!run.isRunning && made > 0)) return "done";
    if (made === 0) return run.isRunning && begun ? "prefill" : "idle";
    return "decode";
  }
  if (made === 0) return "idle";
  if (at > made) return "done";
  return at <= 1 ? "prefill" : "decode";
}
