// @ts-check
// What Compare remembers: what is to be compared, and the latest run of each kind.

import { signal } from "@preact/signals-core";
import { mostTokens, newRun, take } from "./run.js";

/** @type {[string, string][]} */
export const KINDS = [["cache", "with and without cache"], ["kv_dtype", "bf16, int8, int4"], ["batch", "one and many"]];

/** @param {import("../state/session.js").Session} session */
export function compareState(session) {
  session.views.compare ??= create(session);
  return /** @type {ReturnType<typeof create>} */ (session.views.compare);
}

/** @param {import("../state/session.js").Session} session */
function create(session) {
  const kind = signal("cache");
  const prompt = signal("Once upon a time there was a small dog who lived near the sea.");
  const tokens = signal(64);
  const batch = signal(8);
  const problem = signal("");
  /** Output tokens that are looked at; -1: the newest. */
  const at = signal(-1);
  const stop = signal(/** @type {AbortController | null} */ (null));
  /** Counts what has come, as runs change in place. */
  const version = signal(0);
  /** @type {Record<string, import("./run.js").Run>} */
  const runs = {};
  let told = 0;
  const tell = () => {
    if (told) return;
    told = requestAnimationFrame(() => {
      told = 0;
      version.value += 1;
    });
  };

  return {
    kind, prompt, tokens, batch, problem, at, stop, version,
    /** The latest run of the chosen kind. */
    get run() {
      version.value;
      return runs[kind.value] ?? null;
    },
    /** Really runs it, to the end or until somebody stops it. */
    async start() {
      if (stop.value) return;
      const own = new AbortController();
      const asked = kind.value;
      stop.value = own;
      problem.value = "";
      at.value = -1;
      const body = { kind: asked, prompt: prompt.value, max_tokens: tokens.value, batch: batch.value, temperature: 0 };
      try {
        await session.api.stream("/v1/compare", body, {
          signal: own.signal,
          onData(event) {
            if (event.ev === "cmp.begin") runs[asked] = newRun(event);
            else take(runs[asked], event);
            tell();
          },
        });
      } catch (error) {
        if (!own.signal.aborted) problem.value = error instanceof Error ? error.message : String(error);
      } finally {
        if (runs[asked]) runs[asked].isRunning = false;
        stop.value = null;
        version.value += 1;
      }
    },
    /** @param {number} by */
    move(by) {
      const run = runs[kind.value];
      if (!run) return;
      const most = mostTokens(run);
      at.value = Math.max(1, Math.min(most, (at.value < 0 ? most : at.value) + by));
    },
  };
}

/** @typedef {ReturnType<typeof create>} CompareState */
