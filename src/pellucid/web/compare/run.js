// @ts-check
// A comparison as its events tell it: each arm's steps as columns, and what its loop does at any of them; and what Compare remembers.

import { signal } from "@preact/signals-core";
import { createStreamed } from "../state/streamed.js";

/** @type {[string, string][]} */
export const KINDS = [["cache", "with and without cache"], ["kv_dtype", "bf16, int8, int4"], ["batch", "one and many"]];

/** @param {any} begin the event cmp.begin @returns {Comparison} */
export function newRun(begin) {
  return {
    kind: begin.kind,
    arms: begin.arms.map((/** @type {any} */ arm, /** @type {number} */ number) => ({
      name: arm.arm, number, useKvCache: arm.use_kv_cache, tokens: [], passed: [], flops: [], moved: [], stepUs: [], timeUs: [], heldBytes: [],
      texts: [],
    })),
    requests: begin.requests,
    promptTok: begin.prompt_ids.length,
    maxTokens: begin.max_new_tok,
    end: null,
    isRunning: true,
  };
}

/**
 * Takes in an event; the comparison changes in place.
 * @param {Comparison} run
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
    arm.texts.push(event.new[0]?.[2] ?? "");
  } else if (event.ev === "cmp.end") run.end = event;
}

/** How many output tokens the longest arm has so far. @param {Comparison} run */
export const mostTokens = (run) => Math.max(0, ...run.arms.map((arm) => arm.tokens.at(-1) ?? 0));

/**
 * What the loop of an arm does: "idle" before it begins, "prefill" and "decode" while a token is computed, "done" at its end.
 * @param {Comparison} run
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

/** What is to be compared, and the latest run of each kind. @param {Session} session */
export function compareState(session) {
  return /** @type {ReturnType<typeof create>} */ (session.views.compare ??= create(session));
}

/** @param {Session} session */
function create(session) {
  const kind = signal("cache");
  const prompt = signal("Once upon a time there was a small dog who lived near the sea.");
  const tokens = signal(64);
  const batch = signal(8);
  /** Output tokens that are looked at; -1: the newest. */
  const at = signal(-1);
  const streamed = createStreamed(session);
  /** @type {Record<string, Comparison>} */
  const runs = {};
  return {
    kind, prompt, tokens, batch, at, ...streamed,
    /** The latest run of the chosen kind. */
    get latest() {
      streamed.version.value;
      return runs[kind.value] ?? null;
    },
    /** Really runs it, to the end or until somebody stops it. */
    start: () =>
      streamed.run(async (stream) => {
        const asked = kind.value;
        at.value = -1;
        const body = { kind: asked, prompt: prompt.value, max_tokens: tokens.value, batch: batch.value, temperature: 0 };
        try {
          await stream("/v1/compare", body, (event) => {
            if (event.ev === "cmp.begin") runs[asked] = newRun(event);
            else take(runs[asked], event);
          });
        } finally {
          if (runs[asked]) runs[asked].isRunning = false;
        }
      }),
    /** @param {number} by */
    move(by) {
      const most = runs[kind.value] ? mostTokens(runs[kind.value]) : 0;
      if (most) at.value = Math.max(1, Math.min(most, (at.value < 0 ? most : at.value) + by));
    },
    nextKind() {
      const index = KINDS.findIndex(([name]) => name === kind.value);
      kind.value = KINDS[(index + 1) % KINDS.length][0];
      at.value = -1;
    },
  };
}
