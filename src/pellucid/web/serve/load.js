// @ts-check
// A load as its events tell it: when each request arrived, was sent, got its first token and ended; a lane for each, and its figures, static beside continuous.

import { hatch, hue } from "../draw/hues.js";
import { linear, roundTicks } from "../draw/lines.js";
import { Picture } from "../draw/picture.js";
import { costPerMillion } from "../formulas.js";
import { html, signal, useSignal } from "../html.js";
import { count, counted, digits, FigureTable, inTime, maybeTime, measured, percent } from "../parts/numbers.js";
import { Panel, Why } from "../parts/panel.js";
import { createStreamed } from "../state/api.js";
import { ENDED } from "../state/store.js";
import { REASONS } from "../timeline/life.js";

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
  if (line.waits) return { place: line.queue_position + 1, cause: String(line.waits.cause) };
  const facts = /** @type {any} */ (Object.values(line.completions ?? {})[0]);
  if (facts && (facts.state === "waiting" || facts.state === "preempted" || facts.state === "swapped")) {
    const blocks = facts.need_blocks ? `: needs ${facts.need_blocks} blocks, ${facts.free_blocks} are free` : "";
    return { place: null, cause: `${facts.reason ?? facts.state}${blocks}` };
  }
  return null;
}

/**
 * Who waits and who runs at a moment of a recording, as the server would list them.
 * @param {Store} store
 * @param {number} seq
 */
export function queueAt(store, seq) {
  let place = 0;
  return store.requestsAt(seq).flatMap((request) => {
    const state = store.stateAt(request, seq);
    if (!state || ENDED.has(state.to)) return [];
    const waits = state.to === "waiting" && { waits: { cause: REASONS[state.reason] ?? state.reason }, queue_position: place++ };
    const facts = { state: state.to, reason: REASONS[state.reason] ?? state.reason };
    return [{ id: request.req, prompt_tokens: request.added?.prompt_tok ?? 0, output_tokens: store.tokenCount(request, seq), completions: { [request.req]: facts }, ...waits }];
  });
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
  /** @type {Promise<void> | null} */
  let looking = null;
  /** Asks the server who runs and who waits, unless a question is under way. */
  const look = () => {
    looking ??= session.api.get("/v1/requests").then((reply) => void (queue.value = reply.data), () => {}).finally(() => (looking = null));
    return looking;
  };
  return {
    ...ask,
    discipline, loads, queue, look, ...streamed,
    /** What the shown load was asked, in a recording. */
    asked: /** @type {any} */ (null),
    /** Plays the recorded loads: the sliders stand where they stood. @param {any} body */
    play(body) {
      if (streamed.stop.value) return;
      this.asked = body;
      ask.requests.value = body.num_requests;
      ask.rate.value = body.rate;
      ask.prefixTok.value = body.prefix_tokens;
      ask.seats.value = body.static_batch;
      ask.seed.value = body.seed;
      ask.firstSlo.value = body.ttft_slo;
      ask.betweenSlo.value = body.itl_slo;
      discipline.value = "both";
      void this.start();
    },
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
      await looking; // it may be of before
      await look();
    },
  };
}

const [LEFT, RIGHT, BELOW] = [4, 12, 24];

/**
 * @param {{session: Session, load: Load, longest: number, version: number,
 *   asTable: {value: boolean}}} props `longest`: microseconds of the axis, the same for both disciplines
 */
export function Lanes({ session, load, longest, version, asTable }) {
  const width = useSignal(300);
  const { lanes } = load;
  const pitch = Math.max(4, Math.min(14, Math.floor(360 / lanes.length)));
  const height = lanes.length * pitch + BELOW;
  const hueOf = (/** @type {Lane} */ lane) => session.store.requests.get(lane.req)?.hue ?? lane.index;
  const ticks = roundTicks(Math.max(1, longest) / 1e6, 10, 4);
  const chosen = session.selection.req.value;

  /** @param {Surface} surface */
  const draw = ({ ctx, width: wide, palette }) => {
    width.value = wide;
    const x = linear(0, Math.max(1, longest), LEFT, wide - RIGHT);
    ctx.font = `14px ${palette.ui}`;
    for (const tick of ticks) {
      const px = x(tick * 1e6);
      if (px > wide - RIGHT + 1) continue;
      ctx.fillStyle = palette.line;
      ctx.fillRect(px, 0, 1, height - BELOW);
      ctx.fillStyle = palette.ink3;
      ctx.textAlign = tick === 0 ? "left" : "center";
      const text = tick === 0 ? "0" : `${digits(tick)} s`;
      ctx.fillText(text, Math.min(px, wide - ctx.measureText(text).width / 2), height - 5);
    }
    const tall = Math.max(3, pitch - 3);
    lanes.forEach((lane, row) => {
      const y = row * pitch + 1;
      const colour = hue(palette, hueOf(lane));
      const now = load.isRunning ? load.nowUs : lane.endUs;
      const sent = lane.sentUs >= 0 ? lane.sentUs : Math.max(lane.dueUs, load.nowUs);
      if (sent > lane.dueUs && lane.dueUs <= load.nowUs) hatch(ctx, x(lane.dueUs), y, x(sent) - x(lane.dueUs), tall, palette.ink3, 4);
      if (lane.sentUs < 0) return;
      const end = lane.endUs >= 0 ? lane.endUs : now;
      const first = lane.firstUs >= 0 ? lane.firstUs : end;
      ctx.fillStyle = colour;
      ctx.fillRect(x(lane.sentUs), y, Math.max(1, x(first) - x(lane.sentUs)), tall);
      ctx.globalAlpha = 0.4;
      ctx.fillRect(x(first), y, Math.max(0, x(end) - x(first)), tall);
      ctx.globalAlpha = 1;
      if (lane.state === "failed") {
        ctx.fillStyle = palette.coral;
        ctx.fillRect(x(end) - 2, y - 1, 4, tall + 2);
      }
      if (lane.req !== "" && lane.req === chosen) {
        ctx.strokeStyle = palette.ink;
        ctx.lineWidth = 1.5;
        ctx.strokeRect(x(lane.sentUs) - 1, y - 1, x(end) - x(lane.sentUs) + 2, tall + 2);
      }
    });
  };
  const since = (/** @type {Lane} */ lane, /** @type {number} */ us) => (us >= 0 ? inTime(Math.max(0, us - lane.dueUs)) : "–");
  /** @param {Lane} lane */
  const describe = (lane) =>
    lane.state === "planned"
      ? `request ${lane.index + 1}: arrives at ${inTime(lane.dueUs)}`
      : `request ${lane.index + 1}: waited ${since(lane, lane.sentUs)} for its batch, first token after ${since(lane, lane.firstUs)}, ${lane.state} after ${since(lane, lane.endUs)}, ${lane.tokens} tokens`;
  return html`<${Picture}
    label=${`${load.discipline} batching: ${lanes.filter((lane) => lane.state === "done").length} of ${lanes.length} requests have ended.`}
    draw=${draw}
    inputs=${[load, version, longest, chosen]}
    height=${height}
    asTable=${asTable}
    cells=${/** @type {Cells} */ ({
      count: lanes.length,
      columns: 1,
      describe: (index) => describe(lanes[index]),
      rect: (index) => ({ x: LEFT, y: index * pitch, width: width.value - LEFT - RIGHT, height: pitch - 1 }),
      hit: (_, y) => (y < lanes.length * pitch ? Math.floor(y / pitch) : -1),
      choose: (index) => lanes[index].req && (session.selection.req.value = lanes[index].req),
    })}
    twin=${{
      columns: ["request", "arrived", "waited for its batch", "first token after", "ended after", "tokens", "from the cache", "state"],
      rows: () =>
        lanes.map((lane) => [
          lane.index + 1, inTime(lane.dueUs), since(lane, lane.sentUs), since(lane, lane.firstUs), since(lane, lane.endUs), lane.tokens, lane.cachedTok, lane.state,
        ]),
    }}
  />`;
}

/** @param {{state: ServeState}} props */
export function Figures({ state }) {
  state.version.value;
  const loads = [state.loads.static, state.loads.continuous].filter((load) => load?.end);
  if (loads.length === 0) return null;
  const { firstSlo, betweenSlo } = state;
  const price = state.price.value;
  /** @param {string} spread @param {string} which */
  const seconds = (spread, which) => (/** @type {Load} */ { end }) => maybeTime(end[`${spread}_seconds`] && end[`${spread}_seconds`][which] * 1e6);
  const goodput = `First token within ${firstSlo.value} s, ${betweenSlo.value} s between tokens on average, as they were when it was sent.`;
  /** @type {Figure[]} */
  const rows = [
    ["whole answers", ({ end, lanes }) => `${count(end.completed)} of ${lanes.length}`, counted("load.end.completed")],
    ["all served after", ({ end }) => inTime(end.seconds * 1e6), measured("load.end.seconds")],
    ["output", ({ end }) => `${digits(end.output_tok_s)} tokens/s`, measured("load.end.output_tok / seconds")],
    ["first token, p50", seconds("first_token", "p50"), measured("load.end.first_token_seconds: from the arrival on")],
    ["first token, p95", seconds("first_token", "p95"), measured("load.end.first_token_seconds")],
    ["between tokens, p50", seconds("inter_token", "p50"), measured("load.end.inter_token_seconds")],
    ["between tokens, p99", seconds("inter_token", "p99"), measured("load.end.inter_token_seconds")],
    ["whole answer, p95", seconds("end_to_end", "p95"), measured("load.end.end_to_end_seconds")],
    ["goodput", ({ end, lanes }) => `${digits(end.goodput_per_second)} /s, ${count(end.good)} of ${lanes.length}`, measured("load.end.good: requests within both limits", goodput)],
    ["seats that stood empty", (load) => (load.discipline === "static" ? percent(emptySeats(load, state.seats.value)) : undefined), measured("1 − Σ (end − sent) / (seats · whole time) of load.req", "A seat of a static batch stays empty from the end of its answer to the end of the longest one.")],
    ["prompt from the cache", ({ end }) => percent(end.prompt_tok ? end.cached_tok / end.prompt_tok : 0), counted("load.end.cached_tok / prompt_tok")],
    ["a million tokens", ({ end }) => (end.output_tok_s > 0 ? digits(costPerMillion.of({ price, rate: end.output_tok_s })) : undefined), ({ end }) => ({ kind: "E", formula: costPerMillion, inputs: { price, rate: end.output_tok_s } })],
  ];
  return html`<${Panel} title="What the load got" about="times count from the arrival of a request">
    <${FigureTable} columns=${loads.map((load) => ({ name: load?.discipline ?? "", of: load }))} rows=${rows} />
    <${Verdict} state=${state} />
  <//>`;
}

/** @param {{state: ServeState}} props */
function Verdict({ state }) {
  const { static: fixed, continuous } = state.loads;
  if (fixed?.end?.first_token_seconds && continuous?.end?.first_token_seconds) {
    const [f, c] = [fixed.end, continuous.end];
    const isFaster = c.first_token_seconds.p50 < f.first_token_seconds.p50;
    return html`<${Why} lead=${isFaster ? "Continuous batching lets requests in as they come." : "Here continuous batching did not help."}>
      On the same arrivals half of the requests had their first token within ${inTime(c.first_token_seconds.p50 * 1e6)}, against ${inTime(f.first_token_seconds.p50 * 1e6)} with static batches
      of ${state.seats.value}, which wait until they are full and then for their slowest answer: ${percent(emptySeats(fixed, state.seats.value))} of their seats' time stood empty.
      Continuous, as many run at once as the engine has seats and blocks for. The last answer ended after ${inTime(c.seconds * 1e6)} and ${inTime(f.seconds * 1e6)}.
    <//>`;
  }
  const load = continuous?.end ? continuous : fixed;
  const failed = load?.lanes.find((lane) => lane.state === "failed");
  if (failed) return html`<${Why} trouble lead=${`Request ${failed.index + 1} did not end well.`}>${failed.message || "It was cancelled."}<//>`;
  return html`<${Why} lead="One discipline has run.">Send the load under both to see what it changes.<//>`;
}
