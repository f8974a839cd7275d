// @ts-check
// What the experiments of the lessons share: run a text on the engine, and wait until its events are here.

import { effect } from "@preact/signals-core";
import { ENDED } from "../state/store.js";

const PATIENCE_MS = 60_000;

/**
 * Waits until the events make something true.
 * @param {Session} session
 * @param {() => boolean} test
 */
export function until(session, test) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => finish(() => reject(new Error("the engine's events did not come"))), PATIENCE_MS);
    /** @type {() => void} */
    let stop = () => {};
    const finish = (/** @type {() => void} */ how) => {
      clearTimeout(timer);
      queueMicrotask(() => stop());
      how();
    };
    let isDone = false;
    stop = effect(() => {
      session.cursor.version.value;
      if (!isDone && test()) {
        isDone = true;
        finish(() => resolve(undefined));
      }
    });
  });
}

/**
 * Runs a text and gathers what the events say of it.
 * @param {Session} session
 * @param {string} path
 * @param {any} body
 * @returns {Promise<RunFact>}
 */
export async function runText(session, path, body) {
  const { store, runs } = session;
  const req = await runs.start(path, body);
  await until(session, () => {
    const request = store.requests.get(req);
    return request !== undefined && request.ledger !== null && ENDED.has(request.states.at(-1)?.to ?? "");
  });
  const request = /** @type {EngineRequest} */ (store.requests.get(req));
  const ids = request.added?.prompt_ids ?? [];
  await runs.learnTexts(ids);
  const tokens = request.tokens.map((row) => /** @type {Token} */ (store.token(row)));
  /** @type {RunFact["steps"]} */
  const steps = [];
  for (let row = store.steps.find("seq", request.seq); row < store.steps.end; row++) {
    const own = store.batch(row).find((each) => each.request === request);
    if (!own) continue;
    const step = store.steps.get("step", row);
    const made = tokens.filter((token) => token.step === step).map(({ text }) => text);
    steps.push({ step, q: own.q_tok, ctx: own.ctx_tok, us: store.steps.get("fwd_us", row), made });
  }
  const gaps = tokens.map((token) => token.itl_us ?? -1).filter((gap) => gap >= 0).sort((a, b) => a - b);
  return {
    req,
    promptTok: request.added.prompt_tok,
    prompt: ids.map((/** @type {number} */ id) => runs.textOf(id)),
    output: tokens.map((token) => token.text),
    ids: [...ids, ...tokens.map((token) => token.id)],
    steps,
    firstUs: tokens.length ? tokens[0].t_us - request.added.arrive_us : 0,
    eachUs: gaps.length ? gaps[gaps.length >> 1] : 0,
    totalUs: request.ledger?.total_us ?? 0,
  };
}
