// @ts-check
// One load as its events tell it: when each request arrived, was sent, got its first token and ended.

/**
 * @typedef {object} Lane
 * @property {number} index
 * @property {string} req the engine's name; "" before it is sent
 * @property {number} dueUs when it arrived
 * @property {number} sentUs -1: not yet
 * @property {number} firstUs -1: not yet
 * @property {number} endUs -1: not yet
 * @property {"planned" | "sent" | "first" | "done" | "failed"} state
 * @property {number} promptTok
 * @property {number} wantedTok
 * @property {number} tokens
 * @property {number} cachedTok
 * @property {string} message
 *
 * @typedef {object} Load
 * @property {"continuous" | "static"} discipline
 * @property {Lane[]} lanes by index
 * @property {number} nowUs of the newest event
 * @property {any | null} end the event load.end
 * @property {boolean} isRunning
 */

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
