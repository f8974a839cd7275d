// @ts-check
// What a request did in a step: a chunk of its prompt, a token, a round of drafts, or positions computed once more.

/** @typedef {"prefill" | "decode" | "round" | "again"} Work */

/**
 * The drafts of a request that a step verified.
 * @param {import("../state/store.js").Request} request
 * @param {number} step
 * @returns {any | undefined} the event draft
 */
export function draftOf({ drafts }, step) {
  let low = 0;
  let high = drafts.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (drafts[middle].step < step) low = middle + 1;
    else high = middle;
  }
  return drafts[low]?.step === step ? drafts[low] : undefined;
}

/**
 * @param {import("../state/store.js").Request} request
 * @param {number} step
 * @param {number} tokens in this step
 * @param {number} context tokens of its text up to there
 * @returns {Work}
 */
export function workOf(request, step, tokens, context) {
  if (context <= (request.added?.prompt_tok ?? 0)) return "prefill";
  if (tokens === 1) return "decode";
  return draftOf(request, step) ? "round" : request.added ? "again" : "prefill";
}

/**
 * Visits each request of each of some steps.
 * @param {import("../state/store.js").Store} store
 * @param {[number, number]} rows of the table of steps
 * @param {(request: import("../state/store.js").Request, row: number, work: Work, tokens: number) => void} visit
 */
export function eachPass(store, [first, end], visit) {
  const { steps, batches, byNumber } = store;
  for (let row = first; row < end; row++) {
    const step = steps.get("step", row);
    const from = Math.max(batches.first, steps.get("batch_first", row));
    const to = steps.get("batch_first", row) + steps.get("batch_size", row);
    for (let i = from; i < to; i++) {
      const request = byNumber[batches.get("request", i)];
      const tokens = batches.get("q_tok", i);
      if (request) visit(request, row, workOf(request, step, tokens, batches.get("ctx_tok", i)), tokens);
    }
  }
}
