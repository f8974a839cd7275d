// @ts-check
// The life of a request: from when to when, its phases, and why it changed its state.

import { ENDED } from "../state/store.js";

/** @type {Record<string, string>} */
export const REASONS = {
  arrived: "arrived",
  admitted: "admitted",
  no_seats: "first in the queue, but as many requests run as may",
  no_blocks: "first in the queue, but the pool lacks blocks",
  reading_prefix: "waits for blocks of the prefix store",
  forked: "a sibling computed its prompt",
  computed: "all its tokens are computed and it got a new one",
  preempted: "another request took blocks from it",
  unseen: "it ended while nobody looked",
};

/** When a request arrived. @param {Store} store @param {EngineRequest} request */
export const arrivalOf = (store, request) => /** @type {number} */ (request.added?.arrive_us ?? request.states[0]?.t_us ?? store.head.t_us);

/** When a request ended or, if it has not, the newest moment. @param {Store} store @param {EngineRequest} request */
export function endOf(store, { states }) {
  const last = states[states.length - 1];
  return last && ENDED.has(last.to) ? last.t_us : store.head.t_us;
}

/**
 * The phases of a request up to a moment, those without a change of state joined.
 * @param {Store} store
 * @param {EngineRequest} request
 * @param {number} seq
 * @param {number} now the time of that moment
 * @returns {RequestPhase[]}
 */
export function phasesOf(store, request, seq, now) {
  /** @type {RequestPhase[]} */
  const phases = [];
  let from = arrivalOf(store, request);
  for (let i = 0; i < request.states.length; i++) {
    const { to: state, seq: at, t_us } = request.states[i];
    if (at > seq) break;
    if (i > 0) from = t_us;
    const last = phases.at(-1);
    if (last && i > 0) last.to = t_us;
    if (ENDED.has(state)) break;
    if (last?.state === state) last.to = now;
    else phases.push({ state, from, to: now });
  }
  return phases;
}
