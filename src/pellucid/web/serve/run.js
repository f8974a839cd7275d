// @ts-check
// A load as its events tell it: when each request arrived, was sent, got its first token and ended; and what Serve remembers.

import { signal } from "@preact/signals-core";
import { createStreamed } from "../state/api.js";

/**
 * @param {any} begin the event load.begin
 * @returns {Load}
 */
export function newLoad(begin) {
  return {
    discipline: begin.discipline,
    lanes: begin.requests.map((/** @type {any} */ each) => ({
      index: each.index, req: "", dueUs: each.due * 1e6, sentUs: -1, firstUs: -1, endUs: -1, state: "planned", promptTok: each.num_prompt_tokens,
      wantedTok: each.num_output_tokens, tokens: 0, cachedTok: 0, message: "",
    })),
    nowUs: 0,
    end: null,
    isRunning: true,
  };
}

/**
 * Takes in an event; the load changes in place.
 * @param {Load} load
 * @param {any} event
 */
export function takeLoad(load, event) {
  if (event.ev === "load.end") load.end = event;
  if (event.ev !== "load.req") return;
  const lane = load.lanes[event.index];
  load.nowUs = Math.max(load.nowUs, event.at_us);
  lane.state = event.state;
  lane.req = event.req;
  if (event.state === "sent") {
    lane.sentUs = event.at_us;
    lane.dueUs = event.due_us;
  } else if (event.state === "first") {
    lane.firstUs = event.at_us;
    lane.cachedTok = event.cached_tok ?? 0;
  } else {
    lane.endUs = event.at_us;
    lane.tokens = event.n_tok;
    lane.message = event.msg;
  }
}

/**
 * The share of the time between the first request that was sent and the last end in which seats stood empty; each running request takes one.
 * @param {Load} load
 * @param {number} seats
 */
export function emptySeats(load, seats) {
  const ran = load.lanes.filter((lane) => lane.endUs >= 0 && lane.sentUs >= 0);
  if (ran.length === 0) return 0;
  const whole = (Math.max(...ran.map((lane) => lane.endUs)) - Math.min(...ran.map((lane) => lane.sentUs))) * seats;
  return whole > 0 ? Math.max(0, 1 - ran.reduce((sum, lane) => sum + lane.endUs - lane.sentUs, 0) / whole) : 0;
}

/**
 * Why a request waits, in words of the server's answer.
 * @param {any} line of /v1/requests
 */
export function causeOf(line) {
  if (line.waits) {
    const ahead = line.waits.own_ahead + line.waits.others_ahead;
    return { position: line.queue_position ?? ahead + 1, cause: String(line.waits.cause) };
  }
  const facts = /** @type {any} */ (Object.values(line.completions ?? {})[0]);
  if (facts && (facts.state === "waiting" || facts.state === "preempted" || facts.state === "swapped")) {
    const blocks = facts.need_blocks ? `: needs ${facts.need_blocks} blocks, ${facts.free_blocks} are free` : "";
    return { position: line.queue_position ?? null, cause: `${facts.reason ?? facts.state}${blocks}` };
  }
  return null;
}

/** What load is asked for, the latest run under each discipline, and what the server says of the queue. @param {Session} session */
export function serveState(session) {
  return /** @type {ReturnType<typeof create>} */ (session.views.serve ??= create(session));
}

/** @param {Session} session */
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
  /** Unfinished requests, as /v1/requests lists them. */
  const queue = signal(/** @type {any[]} */ ([]));
  /** @type {Record<string, Load | null>} */
  const loads = { static: null, continuous: null };
  const streamed = createStreamed(session);
  /** Half to one and a half times a length. @param {Numeric} length */
  const around = ({ value }) => `${Math.max(1, Math.round(value / 2))}-${Math.round(value * 1.5)}`;
  /** Asks the server who runs and who waits. */
  const look = async () => {
    const reply = await session.api.get("/v1/requests").catch(() => null);
    if (reply) queue.value = reply.data;
  };
  return {
    ...ask,
    discipline, loads, queue, look, ...streamed,
    /** Sends the load, under both disciplines one after the other if so chosen. */
    start: () =>
      streamed.run(async (stream) => {
        session.cursor.goLive();
        const body = {
          num_requests: ask.requests.value, rate: ask.rate.value, prompt_tokens: around(ask.promptTok), output_tokens: around(ask.outputTok),
          prefix_tokens: ask.prefixTok.value, static_batch: ask.seats.value, seed: ask.seed.value, ttft_slo: ask.firstSlo.value,
          itl_slo: ask.betweenSlo.value,
        };
        const names = discipline.value === "both" ? ["static", "continuous"] : [discipline.value];
        for (const name of names) loads[name] = null;
        for (const name of names) {
          try {
            await stream("/v1/load", { ...body, discipline: name }, (event) => {
              if (event.ev === "load.begin") loads[name] = newLoad(event);
              else takeLoad(/** @type {Load} */ (loads[name]), event);
            });
          } finally {
            if (loads[name]) loads[name].isRunning = false;
          }
        }
      }),
    /** @param {string} id */
    async cancel(id) {
      await session.api.post(`/v1/requests/${encodeURIComponent(id)}/cancel`, {}).catch((error) => {
        if (error.status !== 404) streamed.problem.value = error.message; // 404: it has ended meanwhile
      });
      await look();
    },
  };
}
