// @ts-check
// The store as a trace for Perfetto, in Chrome's trace event format: the rows that `pellucid trace export` writes.

import { ENDED, STEP_KINDS } from "../state/store.js";
import { startOf, stepLanes } from "./span.js";
import { STEP_PARTS } from "./steps.js";

const ENGINE = 1; // processes
const REQUESTS = 2;

/** @type {Record<string, string>} */
const INSTANTS = { C: "copy on write", E: "evict", O: "swap out", I: "swap in" };

/**
 * The object that Perfetto and chrome://tracing open.
 * @param {Store} store
 */
export function perfettoTrace(store) {
  const meta = (/** @type {string} */ kind, /** @type {number} */ pid, /** @type {string} */ name) => ({ ph: "M", name: kind, pid, tid: 1, args: { name } });
  /** @type {any[]} */
  const rows = [meta("process_name", ENGINE, "engine"), meta("process_name", REQUESTS, "requests"), meta("thread_name", ENGINE, "steps")];
  if (store.hello) rows.push({ ...instant("hello", ENGINE, 1, store.hello.t_us), args: store.hello.model });
  const lanes = stepLanes(store);
  for (let row = store.steps.first; row < store.steps.end; row++) rows.push(...stepRows(store, row, lanes.of(row) + 1));
  for (let tid = 2; tid <= lanes.num; tid++) rows.push({ ...meta("thread_name", ENGINE, `steps ${tid}`), tid });
  for (const request of store.requests.values()) rows.push(...phaseRows(request));
  const preempts = [...store.requests.values()].flatMap((request) => request.preempts).sort((a, b) => a.seq - b.seq);
  preempts.forEach(({ req, cause_req, lost_tok, mode, t_us: ts }, index) => {
    const lane = laneOf(store, req);
    const arrow = { name: "preempts", cat: "preempt", id: index + 1, ts };
    rows.push(
      { ...instant("preempt", REQUESTS, lane, ts), args: { req, cause_req, lost_tok, mode } },
      { ...arrow, ph: "s", pid: REQUESTS, tid: laneOf(store, cause_req) },
      { ...arrow, ph: "f", bp: "e", pid: REQUESTS, tid: lane },
    );
  });
  counterRows(rows, store.kv, "KV blocks", ["used", "cached", "free"]);
  counterRows(rows, store.stats, "requests", ["running", "waiting"]);
  counterRows(rows, store.stats, "tokens/s", ["in_tok_s", "out_tok_s"]);
  for (const { op, block, seq } of store.pool.recent(store.head.seq, Infinity)) {
    if (!(op in INSTANTS)) continue;
    const row = store.kv.find("seq", seq);
    if (row < store.kv.end) rows.push({ ...instant(INSTANTS[op], ENGINE, 1, store.kv.get("t_us", row)), args: { block } });
  }
  return { traceEvents: rows, displayTimeUnit: "ms" };
}

/**
 * A step and its parts, which follow one another without gaps.
 * @param {Store} store
 * @param {number} row
 * @param {number} tid
 */
function stepRows(store, row, tid) {
  const { steps } = store;
  let ts = Math.max(0, startOf(store, row));
  /** @type {any} */
  const args = { kind: STEP_KINDS[steps.get("kind", row)], flops: steps.get("flops", row), w_bytes: steps.get("w_bytes", row) };
  if (steps.get("pred_us", row) >= 0) args.pred_us = steps.get("pred_us", row);
  args.batch = store.batch(row).map(({ request, q_tok, ctx_tok }) => `${request?.req ?? "?"} ${q_tok} ${ctx_tok}`);
  const slice = { ph: "X", pid: ENGINE, tid };
  const rows = [{ ...slice, name: `step ${steps.get("step", row)}`, ts, dur: STEP_PARTS.reduce((sum, [field]) => sum + steps.get(field, row), 0), args }];
  for (const [field, name] of STEP_PARTS) {
    rows.push(/** @type {any} */ ({ ...slice, name, ts, dur: steps.get(field, row) }));
    ts += steps.get(field, row);
  }
  return rows;
}

/**
 * @param {Store} store
 * @param {string} req
 */
const laneOf = (store, req) => (store.requests.get(req)?.number ?? store.byNumber.length) + 1;

/** An asynchronous slice for each phase. @param {EngineRequest} request */
function phaseRows({ req, states, added }) {
  const rows = [];
  let phase = "";
  for (const state of states) {
    if (state.to === phase) continue;
    const common = { cat: "request", id: req, pid: REQUESTS, tid: 1, ts: state.t_us };
    if (phase) rows.push({ ...common, ph: "e", name: phase, args: { req } });
    phase = ENDED.has(state.to) ? "" : state.to;
    if (!phase) continue;
    /** @type {any} */
    const args = { req };
    if (state.from === "") args.prompt_tok = added?.prompt_tok;
    else for (const name of /** @type {const} */ (["reason", "need_blocks", "blocked_by"])) if (state[name] !== undefined) args[name] = state[name];
    rows.push({ ...common, ph: "b", name: phase, args });
  }
  return rows;
}

/**
 * @param {any[]} rows
 * @param {any} table
 * @param {string} name
 * @param {string[]} columns
 */
function counterRows(rows, table, name, columns) {
  for (let row = table.first; row < table.end; row++) {
    const args = Object.fromEntries(columns.map((column) => [column, table.get(column, row)]));
    rows.push({ ph: "C", name, pid: ENGINE, ts: table.get("t_us", row), args });
  }
}

/**
 * @param {string} name
 * @param {number} pid
 * @param {number} tid
 * @param {number} ts
 */
const instant = (name, pid, tid, ts) => ({ ph: "i", s: "t", name, pid, tid, ts });

/** Offers the trace as a file. @param {Store} store */
export function download(store) {
  const url = URL.createObjectURL(new Blob([JSON.stringify(perfettoTrace(store))], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = "pellucid-perfetto.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
