// @ts-check
// What Speculate remembers: the text, the drafter, and the latest run with and without drafts; and whose rounds are shown.

import { signal } from "@preact/signals-core";
import { newRun, take } from "../compare/run.js";
import { createStreamed } from "../state/streamed.js";

/** @type {[string, string][]} what it is, the text */
export const EXAMPLES = [
  ["a story", "Once upon a time"],
  ["a text that repeats itself", "Copy this: one two three four five six seven eight nine ten. one two"],
];

/** @param {Session} session */
export function speculateState(session) {
  return /** @type {ReturnType<typeof create>} */ (session.views.speculate ??= create(session));
}

/** @param {Session} session */
function create(session) {
  const prompt = signal(EXAMPLES[0][1]);
  const drafter = signal("draft");
  const k = signal(4);
  const tokens = signal(48);
  /** Whose rounds are shown: "both", of the latest run with and without, or "engine", of the chosen request. */
  const shown = signal("engine");
  const streamed = createStreamed(session);
  /** @type {{run: Comparison, rounds: any[]} | null} */
  let latest = null;
  return {
    prompt, drafter, k, tokens, shown, ...streamed,
    /** Values of the formula's letters that the reader set in place of those measured. */
    moved: signal(/** @type {Record<string, number>} */ ({})),
    /** The latest run, with the rounds of its drafts. */
    get latest() {
      streamed.version.value;
      return latest;
    },
    start: () =>
      streamed.run((stream) => {
        const body = {
          kind: "drafts", prompt: prompt.value, max_tokens: tokens.value, temperature: 0, drafter: drafter.value, num_drafts: k.value,
        };
        let step = 0;
        return stream("/v1/compare", body, (event) => {
          if (event.ev === "cmp.begin") {
            latest = { run: newRun(event), rounds: [] };
            shown.value = "both";
          }
          if (!latest) return;
          take(latest.run, event);
          step += 1;
          for (const [draft, n_right, chosen] of event.rounds ?? []) latest.rounds.push({ seq: step, step, draft, n_right, chosen: chosen ?? undefined });
          if (event.ev === "cmp.end") latest.run.isRunning = false;
        });
      }),
  };
}

/**
 * The rounds that are shown, as events draft tell them.
 * @param {Session} session
 * @param {SpeculateState} state
 */
export function roundsOf({ cursor, request }, { shown, latest }) {
  const seq = cursor.seq.value;
  if (shown.value === "both" && latest) return latest.rounds;
  return request.value?.drafts.filter((each) => each.seq <= seq) ?? [];
}

/**
 * Acceptance of some rounds. A draft is judged if all drafts before it were right.
 * @param {any[]} rounds events draft
 */
export function acceptance(rounds) {
  /** @type {{judged: number, right: number}[]} */
  const positions = [];
  const sum = { drafted: 0, judged: 0, right: 0, leviathan: 0, withLeviathan: 0, rightThere: 0 };
  for (const { draft, n_right, leviathan_tok } of rounds) {
    sum.drafted += draft.length;
    for (let i = 0; i < Math.min(draft.length, n_right + 1); i++) {
      positions[i] ??= { judged: 0, right: 0 };
      positions[i].judged += 1;
      sum.judged += 1;
      if (i < n_right) {
        positions[i].right += 1;
        sum.right += 1;
      }
    }
    if (leviathan_tok === undefined) continue;
    sum.leviathan += leviathan_tok;
    sum.rightThere += n_right;
    sum.withLeviathan += 1;
  }
  return { positions, ...sum };
}

/**
 * What drafts cost and brought.
 * @typedef {{steps: number, rounds: number, right: number, spent: number, withoutUs: number, speedup: number, k: number, c: number, v: number,
 *   wonUs?: number}} Times `spent`: microseconds with drafts; `withoutUs`: of the same tokens without
 */

/** By a run with and without drafts: both were measured. @param {Comparison} run @returns {Times | null} */
export function timesOfBoth({ end, arms }) {
  if (!end?.arms.drafted.drafted) return null;
  const { plain, drafted } = end.arms;
  const plainUs = plain.t_us / arms[0].tokens.length;
  return {
    steps: arms[1].tokens.length, rounds: drafted.rounds, right: drafted.right, spent: drafted.t_us, withoutUs: plain.t_us,
    speedup: plain.t_us / drafted.t_us, k: drafted.drafted / drafted.rounds, c: drafted.draft_us / drafted.drafted / plainUs,
    v: (drafted.t_us - drafted.draft_us) / arms[1].tokens.length / plainUs,
  };
}

/**
 * By the steps with drafts of the serving engine up to a moment, those without a counterfactual left out.
 * @param {Store} store
 * @param {number} seq
 * @returns {Times | null}
 */
export function timesOfSteps({ draftSteps, steps }, seq) {
  const sum = { steps: 0, rounds: 0, drafts: 0, right: 0, draftUs: 0, stepUs: 0, plainUs: 0, wonUs: 0, withoutUs: 0, perDraft: 0 };
  const end = draftSteps.find("seq", seq + 1);
  for (let row = draftSteps.first; row < end; row++) {
    const plain = draftSteps.get("plain_us", row);
    if (Number.isNaN(plain)) continue;
    const requests = draftSteps.get("n_req", row);
    const step = steps.find("step", draftSteps.get("step", row));
    const decoding = step < steps.end && steps.get("step", step) === draftSteps.get("step", row) ? steps.get("batch_size", step) : requests;
    sum.withoutUs += plain * (1 + draftSteps.get("n_right", row) / decoding);
    sum.steps += 1;
    sum.rounds += requests;
    sum.drafts += draftSteps.get("n_draft", row);
    sum.right += draftSteps.get("n_right", row);
    sum.draftUs += draftSteps.get("draft_us", row);
    sum.stepUs += draftSteps.get("step_us", row);
    sum.plainUs += plain;
    sum.wonUs += draftSteps.get("won_us", row);
    sum.perDraft += draftSteps.get("n_draft", row) / requests;
  }
  if (sum.steps === 0 || sum.drafts === 0) return null;
  const spent = sum.stepUs + sum.draftUs;
  return {
    ...sum, spent, speedup: sum.withoutUs / spent, k: sum.drafts / sum.rounds, c: sum.draftUs / sum.perDraft / (sum.plainUs / sum.steps),
    v: sum.stepUs / sum.plainUs,
  };
}
