// @ts-check
// Everything that the engine has told, as typed tables: filled from the live stream or from a recorded trace alike.

import { Columns, PoolHistory } from "./pool.js";

const MAX_STEPS = 20_000;
const MAX_TOKENS = 100_000;
const MAX_OPS = 400_000;
const MAX_REQUESTS = 10_000;
const MAX_NOTES = 2_000;
const MAX_CANDIDATES = 10;
const MAX_STAGES = 10;

export const STEP_KINDS = ["prefill", "decode", "mixed"];

export class Store {
  constructor() {
    /** @type {any | null} the event hello: model, kv, device, limits */
    this.hello = null;
    /** @type {any | null} a snapshot that came before hello said how large the pool is */
    this.early = null;
    /** @type {{seq: number, t_us: number, step: number}} of the newest event */
    this.head = { seq: -1, t_us: 0, step: 0 };
    this.firstSeq = -1;
    /** @type {Map<string, EngineRequest>} */
    this.requests = new Map();
    /** @type {EngineRequest[]} by number; the oldest may be forgotten (undefined) */
    this.byNumber = [];
    /** @type {EngineRequest[]} those kept that generate, in the order of their arrival */
    this.arrived = [];
    /** The greatest number in a name, r1, r2 ... */
    this.named = 0;
    this.steps = new Columns(
      {
        seq: Float64Array, t_us: Float64Array, step: Int32Array, kind: Uint8Array, sched_us: Float64Array,
        fwd_us: Float64Array, sample_us: Float64Array, emit_us: Float64Array, idle_us: Float64Array, flops: Float64Array,
        w_bytes: Float64Array, kv_read_bytes: Float64Array, kv_write_bytes: Float64Array, budget_tok: Int32Array,
        pred_us: Float64Array, batch_first: Float64Array, batch_size: Int32Array, first_seq: Float64Array, prompt_tok: Int32Array,
        decoding: Int32Array, // requests of the step, if one of them decodes
      },
      MAX_STEPS,
    );
    /** Of each request in a step: its number, tokens in the step, tokens of its text up to there. */
    this.batches = new Columns({ request: Int32Array, q_tok: Int32Array, ctx_tok: Int32Array }, MAX_STEPS * 8);
    this.kv = new Columns(
      { seq: Float64Array, t_us: Float64Array, used: Int32Array, cached: Int32Array, free: Int32Array, waste_tok: Int32Array },
      MAX_STEPS * 2,
    );
    this.stats = new Columns(
      {
        seq: Float64Array, t_us: Float64Array, running: Int32Array, waiting: Int32Array, used: Int32Array, cached: Int32Array,
        free: Int32Array, in_tok_s: Float64Array, out_tok_s: Float64Array, hit_frac: Float64Array, obs_frac: Float64Array,
      },
      MAX_STEPS,
    );
    this.tokens = new Columns(
      {
        seq: Float64Array, t_us: Float64Array, step: Int32Array, request: Int32Array, pos: Int32Array, id: Int32Array,
        text: Int32Array, lp: Float64Array, p_final: Float64Array, rank: Int32Array, ent_bits: Float64Array,
        rest_frac: Float64Array, itl_us: Float64Array, n_cand: Uint8Array, cand_id: [Int32Array, MAX_CANDIDATES],
        cand_text: [Int32Array, MAX_CANDIDATES], cand_lp: [Float64Array, MAX_CANDIDATES],
        cand_p: [Float64Array, MAX_CANDIDATES], n_stages: Uint8Array, stage: [Int32Array, MAX_STAGES],
        stage_kept: [Int32Array, MAX_STAGES], stage_frac: [Float64Array, MAX_STAGES],
      },
      MAX_TOKENS,
    );
    /** Steps with drafts; plain_us and won_us are NaN where the step computed prompts as well. */
    this.draftSteps = new Columns(
      {
        seq: Float64Array, step: Int32Array, n_req: Int32Array, n_draft: Int32Array, n_right: Int32Array, draft_us: Float64Array,
        step_us: Float64Array, plain_us: Float64Array, won_us: Float64Array,
      },
      MAX_STEPS,
    );
    /** The first event of each time. */
    this.times = new Columns({ seq: Float64Array, t_us: Float64Array }, MAX_STEPS * 4);
    this.pool = new PoolHistory(MAX_OPS);
    /** @type {any[]} events that are few: warn, gap, spec, load, and those this version does not know */
    this.notes = [];
    /** @type {string[]} */
    this.words = [];
    /** @type {Map<string, number>} */
    this.wordIndex = new Map();
    /** Texts of tokens by id, as events have shown them. @type {Map<number, string>} */
    this.texts = new Map();
    /** Events that were missed, this page being slower; the seq of the newest. */
    this.missed = 0;
    this.lastGap = -1;
    /** The moment of the newest snapshot: who filled kept blocks before it is not known from there on. */
    this.snapshotSeq = -1;
    /** The seq of the first event of the newest step. */
    this.stepSeq = -1;
  }

  /** Exchanges all contents. @param {Store} other */
  exchange(other) {
    const own = { ...this };
    Object.assign(this, other);
    Object.assign(other, own);
  }

  /** Forgets everything. */
  clear() {
    Object.assign(this, new Store());
  }

  /**
   * Takes in events in the order of their seq.
   * @param {any[]} events
   */
  ingest(events) {
    for (const event of events) this.take(event);
  }

  /** @param {any} event */
  take(event) {
    if (event.ev === "snapshot") {
      this.takeSnapshot(event);
      return;
    }
    if (event.ev === "hello") {
      if (this.hello !== null && this.hello.boot_id !== event.boot_id) this.clear();
      this.hello = event;
      this.pool.setSize(event.kv.n_blocks, event.kv.block_tok);
      if (this.early) this.takeSnapshot(this.early);
      this.early = null;
      if (event.seq === undefined) return; // before the events that the server still has
    }
    if (event.seq <= this.head.seq) return; // a hello repeated for another reader, or an overlap after a resumption
    if (event.step > this.head.step) this.stepSeq = event.seq;
    if (event.t_us > this.head.t_us) this.times.push({ seq: event.seq, t_us: event.t_us });
    this.head = { seq: event.seq, t_us: event.t_us, step: event.step };
    if (this.firstSeq < 0) this.firstSeq = event.seq;
    const handler = /** @type {Record<string, (event: any) => void>} */ (/** @type {any} */ (HANDLERS))[event.ev];
    if (handler) handler.call(this, event);
    else if (event.ev !== "hello") this.note(event);
  }

  /** @param {any} event */
  note(event) {
    this.notes.push(event);
    if (this.notes.length > MAX_NOTES) this.notes.splice(0, MAX_NOTES / 4);
  }

  /**
   * The request of an event; the first event that names it makes it.
   * @param {string} req
   * @param {number} seq
   * @returns {EngineRequest}
   */
  request(req, seq = this.head.seq) {
    const found = this.requests.get(req);
    if (found) return found;
    const number = this.byNumber.length;
    /** @type {EngineRequest} */
    const made = {
      number, name: isLook(req) ? "look" : `r${++this.named}`, hue: this.named - 1, req, seq, added: null, states: [], prefix: null, ledger: null, preempts: [], drafts: [],
      tokens: [], tokenSeqs: [], stepSeqs: [], passed: [], cached: [],
    };
    this.requests.set(req, made);
    this.byNumber.push(made);
    if (isLook(req)) this.pool.looks.add(number);
    else this.arrived.push(made);
    if (this.requests.size > MAX_REQUESTS) {
      const oldest = /** @type {EngineRequest} */ (this.requests.values().next().value);
      delete this.byNumber[oldest.number];
      this.requests.delete(oldest.req);
      if (this.arrived[0] === oldest) this.arrived.shift();
    }
    return made;
  }

  /**
   * Names a request by the engine's count, so that it has one name and hue in every tab. Old recordings have no count.
   * @param {EngineRequest} request
   * @param {number | undefined} num
   */
  rename(request, num) {
    if (num === undefined) return;
    request.name = `r${num}`;
    request.hue = num - 1;
    this.named = Math.max(this.named, num);
  }

  /**
   * A word kept once; tokens and stages repeat theirs.
   * @param {string} word
   */
  intern(word) {
    let index = this.wordIndex.get(word);
    if (index === undefined) {
      index = this.words.length;
      this.words.push(word);
      this.wordIndex.set(word, index);
    }
    return index;
  }

  /** @param {any} event */
  takeSnapshot(event) {
    if (this.hello === null) {
      this.early = event;
      return;
    }
    const seq = Math.max(this.head.seq, event.as_of_seq);
    if (this.firstSeq < 0) this.firstSeq = seq;
    if (seq > this.head.seq) this.head = { ...this.head, seq };
    this.snapshotSeq = seq;
    for (const each of event.requests) {
      const request = this.request(each.req, seq);
      const last = request.states.at(-1);
      if (!last || last.to !== each.state) {
        request.states.push({
          seq, t_us: this.head.t_us, step: this.head.step, from: last?.to ?? "waiting", to: each.state, reason: each.reason ?? "",
        });
      }
      request.added ??= { req: each.req, prompt_tok: each.prompt_tok, prio: each.prio, caller: each.caller, seq };
      this.rename(request, each.num);
    }
    // Some may have ended while nobody looked.
    const present = new Set(event.requests.map((/** @type {any} */ { req }) => req));
    for (const { req, states } of this.requests.values()) {
      const last = states.at(-1);
      if (!last || ENDED.has(last.to) || present.has(req)) continue;
      states.push({ seq, t_us: this.head.t_us, step: this.head.step, from: last.to, to: "done", reason: "unseen" });
    }
    this.pool.reset(seq, event, (req) => this.request(req, seq).number);
  }

  /**
   * A token and its choice.
   * @param {number} row of the table of tokens
   * @returns {Token | null} null: it is no longer kept
   */
  token(row) {
    const table = this.tokens;
    if (row < table.first || row >= table.end) return null;
    const slot = table.slot(row);
    const c = table.columns;
    const cand = [];
    for (let i = slot * MAX_CANDIDATES; i < slot * MAX_CANDIDATES + c.n_cand[slot]; i++) {
      cand.push({ id: c.cand_id[i], text: this.words[c.cand_text[i]], lp: c.cand_lp[i], p_final: c.cand_p[i] });
    }
    const funnel = [];
    for (let i = slot * MAX_STAGES; i < slot * MAX_STAGES + c.n_stages[slot]; i++) {
      funnel.push({ stage: this.words[c.stage[i]], kept: c.stage_kept[i], mass_frac: c.stage_frac[i] });
    }
    return {
      seq: c.seq[slot], t_us: c.t_us[slot], step: c.step[slot], req: this.byNumber[c.request[slot]]?.req ?? "",
      pos: c.pos[slot], id: c.id[slot], text: this.words[c.text[slot]], lp: c.lp[slot], p_final: c.p_final[slot],
      rank: c.rank[slot], ent_bits: c.ent_bits[slot], cand, rest_frac: c.rest_frac[slot], funnel,
      itl_us: c.itl_us[slot] < 0 ? null : c.itl_us[slot],
    };
  }

  /**
   * The text of a token, if an event has shown it; else "".
   * @param {number} id
   */
  textOf(id) {
    return this.texts.get(id) ?? "";
  }

  /**
   * How many of a request's tokens there were at a moment.
   * @param {EngineRequest} request
   * @param {number} seq
   */
  tokenCount(request, seq) {
    return countUpTo(request.tokenSeqs, seq);
  }

  /**
   * How many of a request's tokens had passed the model at a moment; null: steps of it were missed.
   * @param {EngineRequest} request
   * @param {number} seq
   */
  passedCount(request, seq) {
    if (request.added?.arrive_us === undefined || this.lastGap >= request.seq) return null;
    return request.passed[countUpTo(request.stepSeqs, seq) - 1] ?? 0;
  }

  /**
   * How many tokens of a request the cache held at a moment or, if it has ended, at its end; null: steps of it were missed.
   * @param {EngineRequest} request
   * @param {number} seq
   */
  cachedCount(request, seq) {
    const table = this.pool.at(seq).tables.get(request.number);
    if (table?.length) return this.pool.at(seq).tokensIn(table);
    return this.passedCount(request, seq) && request.cached[countUpTo(request.stepSeqs, seq) - 1];
  }

  /**
   * Books the work of a step, or what a preemption took.
   * @param {EngineRequest} request
   * @param {number} seq
   * @param {number} passed tokens in this step
   * @param {number} cached tokens after it
   */
  book(request, seq, passed, cached) {
    request.stepSeqs.push(seq);
    request.passed.push((request.passed.at(-1) ?? 0) + passed);
    request.cached.push(cached);
  }

  /**
   * The state of a request at a moment; null before it was there.
   * @param {EngineRequest} request
   * @param {number} seq
   * @returns {StateChange | null}
   */
  stateAt(request, seq) {
    let found = null;
    for (const state of request.states) {
      if (state.seq > seq) break;
      found = state;
    }
    return found;
  }

  /**
   * Requests that had arrived at a moment, the oldest first.
   * @param {number} seq
   * @returns {readonly EngineRequest[]}
   */
  requestsAt(seq) {
    let end = this.arrived.length;
    while (end > 0 && this.arrived[end - 1].seq > seq) end -= 1;
    return end === this.arrived.length ? this.arrived : this.arrived.slice(0, end);
  }

  /**
   * The newest row, at a moment, of a table with a column `seq`; -1 if there is none.
   * @param {{find(name: "seq", value: number): number, first: number}} table
   * @param {number} seq
   */
  rowAt(table, seq) {
    const row = table.find("seq", seq + 1) - 1;
    return row < table.first ? -1 : row;
  }

  /**
   * The requests of a step.
   * @param {number} row of the table of steps
   * @returns {{request: EngineRequest | undefined, q_tok: number, ctx_tok: number}[]}
   */
  batch(row) {
    const first = this.steps.get("batch_first", row);
    const found = [];
    for (let i = 0; i < this.steps.get("batch_size", row); i++) {
      if (first + i < this.batches.first) continue;
      found.push({
        request: this.byNumber[this.batches.get("request", first + i)],
        q_tok: this.batches.get("q_tok", first + i),
        ctx_tok: this.batches.get("ctx_tok", first + i),
      });
    }
    return found;
  }
}

/** Whether a request only computes again what somebody looks at: it is in nobody's queue. @param {string} req */
const isLook = (req) => req.startsWith("inspect-");

/**
 * How many of some ascending numbers are at most `value`.
 * @param {number[]} numbers
 * @param {number} value
 */
function countUpTo(numbers, value) {
  let low = 0;
  let high = numbers.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Request states that are final. */
export const ENDED = new Set(["done", "cancelled", "failed"]);

/** Of a token whose choice nobody looked at. */
const UNSEEN = { lp: NaN, p_final: NaN, rank: 0, ent_bits: NaN, rest_frac: NaN, cand: [], funnel: [] };

/** @type {Record<string, (this: Store, event: any) => void>} by the name of the event */
const HANDLERS = {
  "req.add"(event) {
    const request = this.request(event.req, event.seq);
    request.added = event;
    this.rename(request, event.num);
    event.prompt_texts?.forEach((/** @type {string} */ text, /** @type {number} */ index) =>
      this.texts.set(event.prompt_ids[index], text),
    );
    const { seq, t_us, step } = event;
    request.states.push({ seq, t_us, step, from: "", to: "waiting", reason: "arrived" });
  },
  "req.state"(event) {
    const request = this.request(event.req, event.seq);
    request.states.push(event);
    if (ENDED.has(event.to)) this.pool.end(event.seq, request.number);
  },
  "req.prefix"(event) {
    this.request(event.req, event.seq).prefix ??= event;
  },
  "req.ledger"(event) {
    this.request(event.req, event.seq).ledger = event;
  },
  preempt(event) {
    const request = this.request(event.req, event.seq);
    request.preempts.push(event);
    this.book(request, event.seq, 0, (request.cached.at(-1) ?? 0) - event.lost_tok);
    this.pool.shorten(event.seq, request.number, event.freed_blocks);
  },
  draft(event) {
    this.request(event.req, event.seq).drafts.push(event);
  },
  "draft.step"(event) {
    const { seq, step, n_req, n_draft, n_right, draft_us, step_us, plain_us = NaN, won_us = NaN } = event;
    this.draftSteps.push({ seq, step, n_req, n_draft, n_right, draft_us, step_us, plain_us, won_us });
  },
  step(event) {
    const first = this.batches.end;
    let prompt_tok = 0;
    let decoding = 0;
    for (const [req, q_tok, ctx_tok] of event.batch) {
      if (event.kind === "decode" || q_tok === 1) decoding = event.batch.length;
      else prompt_tok += q_tok;
      const request = this.request(req, event.seq);
      this.batches.push({ request: request.number, q_tok, ctx_tok });
      const round = request.drafts.at(-1);
      const wrong = round?.step === event.step ? round.draft.length - round.n_right : 0;
      this.book(request, event.seq, q_tok, ctx_tok - wrong);
    }
    const { seq, t_us, step, sched_us, fwd_us, sample_us, emit_us, idle_us, flops, w_bytes } = event;
    this.steps.push({
      seq, t_us, step, sched_us, fwd_us, sample_us, emit_us, idle_us, flops, w_bytes, kind: STEP_KINDS.indexOf(event.kind),
      kv_read_bytes: event.kv_read_bytes, kv_write_bytes: event.kv_write_bytes, budget_tok: event.budget_tok,
      pred_us: event.pred_us ?? -1, batch_first: first, batch_size: event.batch.length, first_seq: this.stepSeq, prompt_tok, decoding,
    });
  },
  kv(event) {
    this.pool.take(event, (req) => this.request(req, event.seq).number);
    const { seq, t_us, used, cached, free, waste_tok } = event;
    this.kv.push({ seq, t_us, used, cached, free, waste_tok });
  },
  stat(event) {
    const { seq, t_us, running, waiting, used, cached, free, in_tok_s, out_tok_s } = event;
    const hit_frac = event.hit_frac ?? -1;
    const obs_frac = event.obs_frac ?? -1;
    this.stats.push({ seq, t_us, running, waiting, used, cached, free, in_tok_s, out_tok_s, hit_frac, obs_frac });
  },
  gap(event) {
    this.missed += event.to_seq - event.from_seq + 1;
    this.lastGap = event.to_seq;
    this.note(event);
  },
  "tok.text"(event) {
    HANDLERS.tok.call(this, { ...event, ...UNSEEN });
  },
  tok(event) {
    const request = this.request(event.req, event.seq);
    const slot = this.tokens.add();
    const c = this.tokens.columns;
    c.seq[slot] = event.seq;
    c.t_us[slot] = event.t_us;
    c.step[slot] = event.step;
    c.request[slot] = request.number;
    c.pos[slot] = event.pos;
    c.id[slot] = event.id;
    c.text[slot] = this.intern(event.text);
    c.lp[slot] = event.lp;
    c.p_final[slot] = event.p_final;
    c.rank[slot] = event.rank;
    c.ent_bits[slot] = event.ent_bits;
    c.rest_frac[slot] = event.rest_frac;
    c.itl_us[slot] = event.itl_us ?? -1;
    const cand = event.cand.slice(0, MAX_CANDIDATES);
    c.n_cand[slot] = cand.length;
    for (let i = 0; i < cand.length; i++) {
      const [id, text, lp, p] = cand[i];
      const at = slot * MAX_CANDIDATES + i;
      c.cand_id[at] = id;
      c.cand_text[at] = this.intern(text);
      if (!this.texts.has(id)) this.texts.set(id, text);
      c.cand_lp[at] = lp;
      c.cand_p[at] = p;
    }
    const funnel = event.funnel.slice(0, MAX_STAGES);
    c.n_stages[slot] = funnel.length;
    for (let i = 0; i < funnel.length; i++) {
      const [stage, kept, mass] = funnel[i];
      const at = slot * MAX_STAGES + i;
      c.stage[at] = this.intern(stage);
      c.stage_kept[at] = kept;
      c.stage_frac[at] = mass;
    }
    request.tokens.push(this.tokens.end - 1);
    request.tokenSeqs.push(event.seq);
  },
};
