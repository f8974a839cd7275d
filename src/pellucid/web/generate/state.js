// @ts-check
// What Generate remembers while other views are shown, and what it looks at.

import { signal } from "@preact/signals-core";

/** Sentences of the lessons, for the bundled model and others. */
export const EXAMPLES = [
  "Once upon a time",
  "The capital of France is",
  "Today the weather is so",
  "The cat sat on the",
];

/** @typedef {import("@preact/signals-core").Signal<number>} Numeric */

/** @param {import("../state/session.js").Session} session */
export function generateState(session) {
  session.views.generate ??= create(session);
  return /** @type {ReturnType<typeof create>} */ (session.views.generate);
}

/** @param {import("../state/session.js").Session} session */
function create(session) {
  const layer = signal(-1); // -1: the mean over all
  const head = signal(-1);
  /** How many there are to choose from: told by the first look. */
  const shape = signal({ layers: session.store.hello?.model.n_layers ?? 1, heads: session.store.hello?.model.n_q ?? 1 });
  /**
   * @param {Numeric} which
   * @param {number} by
   * @param {number} count
   */
  const cycle = (which, by, count) => {
    which.value = ((which.value + 1 + by + count + 1) % (count + 1)) - 1;
  };
  return {
    prompt: signal(EXAMPLES[0]),
    /** "text" continues the prompt, "chat" answers it in the model's template. */
    mode: signal("text"),
    temperature: signal(0.8),
    top_k: signal(0),
    top_p: signal(0.95),
    min_p: signal(0),
    max_tokens: signal(48),
    seed: signal(4),
    withIds: signal(false),
    layer,
    head,
    shape,
    moveLayer: (/** @type {number} */ by) => cycle(layer, by, shape.value.layers),
    moveHead: (/** @type {number} */ by) => cycle(head, by, shape.value.heads),
    /** Other parameters for a step that was: what the sliders of the funnel say. @type {import("@preact/signals-core").Signal<any>} */
    whatIf: signal(null),
  };
}

/** @typedef {ReturnType<typeof create>} GenerateState */

/**
 * The request and token that are looked at, as of the cursor.
 * @typedef {object} Focus
 * @property {import("../state/store.js").Request} request
 * @property {number[]} promptIds empty if nobody has told them
 * @property {number} promptTok
 * @property {number} count output tokens so far
 * @property {number} pos the token looked at: the chosen one, else the newest
 * @property {boolean} isChosen whether somebody chose it
 * @property {import("../state/store.js").Token | null} token null: of the prompt, or none yet
 * @property {import("../state/store.js").StateChange | null} state
 * @property {boolean} hasEnded
 */

/**
 * @param {import("../state/session.js").Session} session
 * @returns {Focus | null}
 */
export function focusOf(session) {
  const { store, cursor, selection } = session;
  const request = session.request.value;
  const seq = cursor.seq.value;
  if (!request) return null;
  const count = store.tokenCount(request, seq);
  const promptIds = request.added?.prompt_ids ?? [];
  const promptTok = request.added?.prompt_tok ?? promptIds.length;
  const last = promptTok + count - 1;
  const isChosen = selection.pos.value >= 0 && selection.pos.value <= last;
  const pos = isChosen ? selection.pos.value : last;
  const first = count > 0 ? /** @type {any} */ (store.token(request.tokens[0]))?.pos ?? promptTok : promptTok;
  const token = pos >= first && pos - first < count ? store.token(request.tokens[pos - first]) : null;
  const state = store.stateAt(request, seq);
  const hasEnded = state !== null && ["done", "cancelled", "failed"].includes(state.to);
  return { request, promptIds, promptTok, count, pos, isChosen, token, state, hasEnded };
}
