// @ts-check
// The search for requests: by name or id, caller, state, cause and duration.

import { arrivalOf, endOf, REASONS } from "./life.js";

const UNITS = /** @type {Record<string, number>} */ ({ us: 1, "µs": 1, ms: 1e3, s: 1e6, min: 6e7 }); // microseconds
const DURATION = /^([<>])(\d+(?:\.\d+)?)(us|µs|ms|s|min)$/;

/** What a word with a prefix is looked for in. @type {Record<string, (store: Store, request: EngineRequest, seq: number) => string[]>} */
const FIELDS = {
  id: (_store, { req, added }) => [req, added?.parent ?? ""],
  key: (_store, { added }) => [added?.caller ?? ""],
  state: (store, request, seq) => [store.stateAt(request, seq)?.to ?? ""],
  cause: (_store, { states }, seq) => states.filter((state) => state.seq <= seq).flatMap(({ reason, finish }) => [reason, REASONS[reason] ?? "", finish ?? ""]),
};

export const SEARCHES = "r12, cmpl-5, key:alice, state:waiting, cause:no_blocks, >200ms, <2s; several words must all hold";

/**
 * @param {string} text words: `>200ms` and `<2s` bound the time from arrival to end or until now; `id:`, `key:`, `state:` (at the moment) and `cause:` (of
 *   any change so far) name the field; any other word is a name, or part of one of these fields
 * @returns {{matches: (store: Store, request: EngineRequest, seq: number) => boolean, problem: string}} `problem`: the first word that is not understood; ""
 */
export function matcherOf(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const problem = words.find((word) => /^[<>]/.test(word) && !DURATION.test(word)) ?? "";
  const tests = words.map(testOf);
  return { matches: (store, request, seq) => tests.every((test) => test(store, request, seq)), problem };
}

/** @param {string} word @returns {(store: Store, request: EngineRequest, seq: number) => boolean} */
function testOf(word) {
  const duration = DURATION.exec(word);
  if (duration) {
    const limit = Number(duration[2]) * UNITS[duration[3]];
    return (store, request) => {
      const lasts = endOf(store, request) - arrivalOf(store, request);
      return duration[1] === ">" ? lasts > limit : lasts < limit;
    };
  }
  const [prefix, value] = word.split(/:(.*)/s);
  const fields = value !== undefined && Object.hasOwn(FIELDS, prefix) ? [FIELDS[prefix]] : Object.values(FIELDS);
  const part = fields.length === 1 ? value : word;
  return (store, request, seq) =>
    (fields.length > 1 && request.name === word) || fields.some((field) => field(store, request, seq).some((text) => text.toLowerCase().includes(part)));
}
