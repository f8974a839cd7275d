// @ts-check
// What Serve remembers: the load that is asked for, the latest run under each discipline, and what the server says of the queue.

import { signal } from "@preact/signals-core";
import { newLoad, takeLoad } from "./run.js";

/** @param {import("../state/session.js").Session} session */
export function serveState(session) {
  session.views.serve ??= create(session);
  return /** @type {ReturnType<typeof create>} */ (session.views.serve);
}

/** @param {import("../state/session.js").Session} session */
function create(session) {
  const ask = {
    requests: signal(24),
    rate: signal(8),
    promptTok: signal(48),
    outputTok: signal(48),
    prefixTok: signal(32),
    seats: signal(8),
    seed: signal(1),
    firstSlo: signal(0.5),
    betweenSlo: signal(0.1),
    price: signal(1),
  };
  const discipline = signal("both");
  const problem = signal("");
  const stop = signal(/** @type {AbortController | null} */ (null));
  const version = signal(0);
  /** Unfinished requests, as /v1/requests lists them. */
  const queue = signal(/** @type {any[]} */ ([]));
  /** @type {{static: import("./run.js").Load | null, continuous: import("./run.js").Load | null}} */
  const loads = { static: null, continuous: null };
  let told = 0;
  const tell = () => {
    if (told) return;
    told = requestAnimationFrame(() => {
      told = 0;
      version.value += 1;
    });
  };
  /** Half to one and a half times a length. @param {number} n */
  const around = (n) => `${Math.max(1, Math.round(n / 2))}-${Math.round(n * 1.5)}`;

  /**
   * @param {"static" | "continuous"} name
   * @param {AbortSignal} signal
   */
  async function run(name, signal) {
    const body = {
      discipline: name, num_requests: ask.requests.value, rate: ask.rate.value, prompt_tokens: around(ask.promptTok.value),
      output_tokens: around(ask.outputTok.value), prefix_tokens: ask.prefixTok.value, static_batch: ask.seats.value, seed: ask.seed.value,
      ttft_slo: ask.firstSlo.value, itl_slo: ask.betweenSlo.value,
    };
    loads[name] = null;
    try {
      await session.api.stream("/v1/load", body, {
        signal,
        onData(event) {
          if (event.ev === "load.begin") loads[name] = newLoad(event);
          else takeLoad(/** @type {import("./run.js").Load} */ (loads[name]), event);
          tell();
        },
      });
    } finally {
      const load = /** @type {import("./run.js").Load | null} */ (loads[name]);
      if (load) load.isRunning = false;
      version.value += 1;
    }
  }

  return {
    ...ask,
    discipline, problem, stop, version, loads, queue,
    /** Sends the load, under both disciplines one after the other if so chosen. */
    async start() {
      if (stop.value) return;
      const own = new AbortController();
      stop.value = own;
      problem.value = "";
      session.cursor.goLive();
      const names = /** @type {("static" | "continuous")[]} */ (discipline.value === "both" ? ["static", "continuous"] : [discipline.value]);
      if (names.length === 2) loads.continuous = null;
      try {
        for (const name of names) await run(name, own.signal);
      } catch (error) {
        if (!own.signal.aborted) problem.value = error instanceof Error ? error.message : String(error);
      } finally {
        stop.value = null;
      }
    },
    /** Asks the server who runs and who waits. */
    async look() {
      const reply = await session.api.get("/v1/requests").catch(() => null);
      if (reply) queue.value = reply.data;
    },
    /** @param {string} id */
    async cancel(id) {
      await session.api.post(`/v1/requests/${encodeURIComponent(id)}/cancel`, {}).catch((error) => {
        if (error.status !== 404) problem.value = error.message; // 404: it has ended meanwhile
      });
      await this.look();
    },
  };
}

/** @typedef {ReturnType<typeof create>} ServeState */
