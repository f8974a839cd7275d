// @ts-check
// What drafts brought, from events: acceptance by position, and the time that they cost and saved.

/**
 * Acceptance of some rounds. A draft is judged if all drafts before it were right.
 * @param {any[]} rounds events draft
 */
export function acceptance(rounds) {
  /** @type {{judged: number, right: number}[]} */
  const positions = [];
  let drafted = 0;
  let leviathan = 0;
  let withLeviathan = 0;
  let rightThere = 0;
  for (const { draft, n_right, leviathan_tok } of rounds) {
    drafted += draft.length;
    for (let i = 0; i < Math.min(draft.length, n_right + 1); i++) {
      positions[i] ??= { judged: 0, right: 0 };
      positions[i].judged += 1;
      if (i < n_right) positions[i].right += 1;
    }
    if (leviathan_tok !== undefined) {
      leviathan += leviathan_tok;
      rightThere += n_right;
      withLeviathan += 1;
    }
  }
  const judged = positions.reduce((sum, each) => sum + each.judged, 0);
  const right = positions.reduce((sum, each) => sum + each.right, 0);
  return { positions, drafted, judged, right, leviathan, withLeviathan, rightThere };
}

/**
 * Times of the steps with drafts up to a moment, those without a counterfactual left out; null if there is none.
 * @param {import("../state/store.js").Store} store
 * @param {number} seq
 */
export function times({ draftSteps, steps }, seq) {
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
    ...sum,
    spent,
    /** What the same tokens would have taken without drafts, over what they took. */
    speedup: sum.withoutUs / spent,
    k: sum.drafts / sum.rounds,
    c: sum.draftUs / sum.perDraft / (sum.plainUs / sum.steps),
    v: sum.stepUs / sum.plainUs,
  };
}
