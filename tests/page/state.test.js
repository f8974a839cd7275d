// The state of the page without a browser: streams in pieces, tables, the store, the pool at any moment, the address.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createRuns } from "../../src/pellucid/web/state/api.js";
import { createRecorded } from "../../src/pellucid/web/state/recorded.js";
import { Columns, SEALED } from "../../src/pellucid/web/state/pool.js";
import { createCursor, formatHash, parseHash } from "../../src/pellucid/web/state/session.js";
import { FrameReader } from "../../src/pellucid/web/state/sse.js";
import { Store } from "../../src/pellucid/web/state/store.js";

test("frames are the same wherever the stream is cut", () => {
  const text = ': keepalive\n\nid: 7\nevent: kv\ndata: {"a":1}\n\nevent: snapshot\ndata: two\ndata: lines\n\ndata:bare\n\n';
  const whole = new FrameReader().push(text);
  assert.deepEqual(whole, [
    { id: "7", data: '{"a":1}' },
    { id: null, data: "two\nlines" },
    { id: null, data: "bare" },
  ]);
  for (let cut = 1; cut < text.length; cut++) {
    const reader = new FrameReader();
    assert.deepEqual([...reader.push(text.slice(0, cut)), ...reader.push(text.slice(cut))], whole);
  }
});

test("a table keeps its newest rows, and finds them", () => {
  const table = new Columns({ seq: Float64Array, pair: [Int32Array, 2] }, 1500);
  for (let i = 0; i < 4000; i++) {
    const slot = table.add();
    table.columns.seq[slot] = 10 * i;
    table.columns.pair[slot * 2 + 1] = i;
    assert.equal(table.get("seq", i), 10 * i);
  }
  assert.deepEqual([table.first, table.end, table.length], [2500, 4000, 1500]);
  assert.equal(table.get("seq", 2500), 25000);
  assert.equal(table.columns.pair[table.slot(3999) * 2 + 1], 3999);
  assert.equal(table.find("seq", 30001), 3001);
  assert.equal(table.find("seq", 0), 2500);
  assert.equal(table.find("seq", 1e9), 4000);
});

test("addresses of views survive the way there and back", () => {
  const route = { view: "cache", params: { req: 'a/0 "<&', pos: "3" } };
  assert.deepEqual(parseHash(formatHash(route)), route);
  assert.deepEqual(parseHash(""), { view: "generate", params: {} });
});

const HELLO = {
  ev: "hello", seq: 0, t_us: 0, step: 0, boot_id: "one", kv: { n_blocks: 8, block_tok: 4, block_bytes: 64 },
  model: { name: "m" }, device: {}, limits: {},
};
let seq = 0;
const event = (ev, fields) => ({ v: 1, seq: ++seq, t_us: seq * 10, step: 1, ev, ...fields });
const kv = (...ops) => event("kv", { ops, used: 0, cached: 0, free: 0, waste_tok: 0 });

/** Two requests: the second shares the first's sealed block, copies nothing, loses its tail, and the first ends. */
function story() {
  seq = 0;
  return [
    HELLO,
    event("req.add", { req: "a/0", prompt_tok: 5 }),
    kv(["A", 0, "a/0", 0], ["A", 1, "a/0", 1]),
    kv(["F", 0, 4], ["H", 0, "00112233aabbccdd"], ["F", 1, 1]),
    event("req.add", { req: "b/0", prompt_tok: 6 }),
    kv(["S", 0, "b/0", 2], ["A", 2, "b/0", 1]),
    kv(["F", 2, 2]),
    event("req.state", { req: "b/0", from: "decode", to: "preempted", reason: "preempted" }),
    event("preempt", { req: "b/0", mode: "recompute", lost_tok: 2, freed_blocks: 1, cause_req: "a/0", n_preempt: 1 }),
    kv(["R", 2, 0]),
    kv(["R", 0, 1], ["R", 1, 0]),
    event("req.state", { req: "a/0", from: "decode", to: "done", reason: "length", finish: "length" }),
  ];
}

test("the pool at each moment is what the ops up to there make of it", () => {
  const store = new Store();
  store.ingest(story());
  const at = (moment) => store.pool.at(moment);
  assert.deepEqual(at(2).counts(), { used: 2, cached: 0, free: 6, waste: 8, shared: 0, extra: 0 });
  assert.deepEqual(at(6).counts(), { used: 3, cached: 0, free: 5, waste: 3 + 2, shared: 1, extra: 1 });
  assert.equal(at(6).owners[0], 2);
  assert.deepEqual(at(6).ownersOf(0), [0, 1]);
  assert.deepEqual([...at(6).tables], [[0, [0, 1]], [1, [0, 2]]]);
  assert.deepEqual([...at(9).tables], [[0, [0, 1]], [1, [0]]]);
  assert.deepEqual([...at(11).tables], [[1, [0]]]);
  assert.equal(at(11).flags[0] & SEALED, SEALED);
  assert.deepEqual(at(11).counts(), { used: 1, cached: 0, free: 7, waste: 0, shared: 0, extra: 0 });
  assert.deepEqual(at(3).counts(), { used: 2, cached: 0, free: 6, waste: 3, shared: 0, extra: 0 }, "back again");
});

test("events that come twice count once, and another engine's begin anew", () => {
  const store = new Store();
  const events = story();
  store.ingest(events);
  store.ingest(events.slice(3, 7));
  assert.deepEqual(store.pool.at(6).counts(), { used: 3, cached: 0, free: 5, waste: 5, shared: 1, extra: 1 });
  assert.equal(store.requests.get("b/0")?.states.length, 2);
  store.ingest([{ ...HELLO, boot_id: "two" }]);
  assert.deepEqual([store.requests.size, store.head.seq, store.pool.at(0).counts().used], [0, 0, 0]);
});

test("a snapshot after a gap puts blocks and requests right", () => {
  const store = new Store();
  store.ingest(story().slice(0, 3));
  store.ingest([
    { ...event("gap", { from_seq: 3, to_seq: 90, resync: true }), seq: 90 },
    {
      ev: "snapshot", as_of_seq: 95,
      requests: [{ req: "c/0", state: "decode", prompt_tok: 5, out_tok: 2, computed_tok: 6, prio: 0, blocks: [3, 4] }],
      blocks: [[3, 1, "ff"], [4, 1, null], [5, 0, "ee"]],
    },
  ]);
  assert.equal(store.missed, 88);
  const pool = store.pool.at(95);
  assert.deepEqual(pool.counts(), { used: 2, cached: 1, free: 5, waste: 2, shared: 0, extra: 0 });
  assert.deepEqual(pool.ownersOf(4), [store.requests.get("c/0")?.number]);
  assert.deepEqual(store.pool.at(2).counts().used, 2, "what was known before the gap stays");
});

test("a request has the engine's number as its name, whenever the page opened", () => {
  const early = new Store();
  const late = new Store();
  const added = (num) => event("req.add", { req: `${num}/0`, prompt_tok: 5, num });
  early.ingest([HELLO, added(1), added(2), added(3)]);
  const requests = [{ req: "2/0", state: "decode", prompt_tok: 5, out_tok: 2, computed_tok: 6, prio: 0, blocks: [3, 4], num: 2 }];
  late.ingest([HELLO, { ev: "snapshot", as_of_seq: seq, requests, blocks: [] }, added(4)]);
  early.ingest([added(4)]);
  for (const store of [early, late]) {
    const named = ["2/0", "4/0"].map((req) => store.requests.get(req));
    assert.deepEqual(named.map(({ name, hue }) => [name, hue]), [["r2", 1], ["r4", 3]]);
  }
  assert.equal(early.requests.get("1/0").name, "r1");
});

test("a page that opens late gets blocks and requests from the snapshot before hello", () => {
  const store = new Store();
  store.ingest([
    {
      ev: "snapshot", as_of_seq: 40,
      requests: [{ req: "c/0", state: "decode", prompt_tok: 5, out_tok: 2, computed_tok: 6, prio: 0, blocks: [3, 4] }],
      blocks: [[3, 1, "ff"], [4, 1, null], [5, 0, "ee"]],
    },
    { ...HELLO, seq: 41 },
  ]);
  assert.deepEqual(store.pool.at(41).counts(), { used: 2, cached: 1, free: 5, waste: 2, shared: 0, extra: 0 });
  assert.equal(store.pool.at(41).fill[5], 4);
  assert.equal(store.firstSeq, 40); // the first moment that is known
});

test("a snapshot that is newer than hello is the first moment that is known", () => {
  const store = new Store();
  store.ingest([{ ev: "snapshot", as_of_seq: 1, requests: [], blocks: [] }, HELLO, event("stat", { seq: 2 })]);
  assert.equal(store.firstSeq, 1);
});

test("a token comes back as it came", () => {
  const store = new Store();
  seq = 0;
  const token = {
    req: "a/0", pos: 5, id: 9, text: "<b>", src: "target", lp: -0.1, p_final: 0.75, rank: 1, ent_bits: 1.5, rest_frac: 0.01,
    cand: [[9, "<b>", -0.1, 0.75], [3, " x", -2.5, 0]], funnel: [["logits", 4096, 1], ["top_k", 40, 0.9]], itl_us: 120,
  };
  store.ingest([HELLO, event("tok", token), event("tok", { ...token, pos: 6, itl_us: undefined })]);
  const [first, second] = /** @type {any} */ (store.requests.get("a/0")).tokens.map((row) => store.token(row));
  assert.deepEqual(
    [first.pos, first.text, first.lp, first.itl_us, second.pos, second.itl_us], [5, "<b>", -0.1, 120, 6, null],
  );
  assert.deepEqual(first.cand, token.cand.map(([id, text, lp, p_final]) => ({ id, text, lp, p_final })));
  assert.deepEqual(first.funnel, token.funnel.map(([stage, kept, mass_frac]) => ({ stage, kept, mass_frac })));
});

test("a token whose choice nobody looked at is told as one", () => {
  const store = new Store();
  seq = 0;
  store.ingest([HELLO, event("tok.text", { req: "a/0", pos: 5, id: 9, text: "<b>", src: "target", itl_us: 120 })]);
  const [token] = /** @type {any} */ (store.requests.get("a/0")).tokens.map((row) => store.token(row));
  assert.deepEqual([token.pos, token.id, token.text, token.rank, token.cand, token.itl_us], [5, 9, "<b>", 0, [], 120]);
  assert.ok(Number.isNaN(token.lp));
});

test("a look at a token is no request of a client, and takes no name", () => {
  const store = new Store();
  store.ingest([...story(), kv(["A", 3, "inspect-0/0", 0]), event("req.add", { req: "c/0", prompt_tok: 1 })]);
  assert.deepEqual(store.requestsAt(99).map(({ name, req }) => [name, req]), [["r1", "a/0"], ["r2", "b/0"], ["r3", "c/0"]]);
  assert.equal(store.requests.get("inspect-0/0")?.name, "look");
});

test("a block that a look shares stays its owner's", () => {
  const store = new Store();
  const events = story();
  store.ingest(events);
  const before = [...store.pool.at(Infinity).lastOwner];
  store.ingest([
    kv(["S", 0, "inspect-1", 2]),
    kv(["R", 0, 1]),
  ]);
  assert.deepEqual([...store.pool.at(Infinity).lastOwner], before);
});

test("blocks of another group of layers are owned, and those behind a window leave an empty entry", () => {
  const store = new Store();
  seq = 0;
  store.ingest([
    HELLO,
    event("req.add", { req: "a/0", prompt_tok: 9 }),
    { ...kv(["A", 0, "a/0", 0], ["A", 1, "a/0", 0], ["A", 2, "a/0", 1], ["F", 0, 4], ["F", 1, 4]), groups: [0, 1, 0, 0, 0] },
    kv(["R", 0, 0]),
  ]);
  assert.deepEqual([...store.pool.at(2).tables], [[0, [0, 2]]]);
  assert.deepEqual([...store.pool.at(3).tables], [[0, [-1, 2]]]);
  assert.equal(store.pool.at(3).counts().used, 2);
  assert.deepEqual(store.pool.recent(99, 9).map(({ op }) => op).join(""), "RFFAAA");
});

test("a cursor held at a step shows nothing of the next one", () => {
  const store = new Store();
  seq = 0;
  const token = { req: "a/0", pos: 5, id: 9, text: "x", lp: 0, p_final: 1, rank: 1, ent_bits: 0, rest_frac: 0, cand: [], funnel: [] };
  const step = (number) => [event("tok", token), kv(["F", 0, 4]), event("step", { batch: [["a/0", 1, 5]] })].map((each) => ({ ...each, step: number }));
  store.ingest([HELLO, ...step(1), event("req.ledger", { req: "a/0", total_us: 9 }), ...step(2), { ...event("tok", token), step: 3 }]);
  const cursor = createCursor(store);
  const held = [0, 1].map((row) => {
    cursor.seekStep(row);
    return cursor.seq.value;
  });
  assert.deepEqual(held, [4, 7]);
});

test("a cursor held before the first step stands at the time of what happened there", () => {
  const store = new Store();
  store.ingest([HELLO, { ...event("req.add", { req: "a/0", prompt_tok: 3 }), seq: 2, t_us: 50 }, { ...event("stat", {}), seq: 3, t_us: 90 }]);
  const cursor = createCursor(store);
  cursor.seek(2);
  assert.equal(cursor.timeUs.value, 50);
});

test("a held cursor stands at the time of the newest event up to there, whatever event that is", () => {
  const store = new Store();
  const at = (seq, t_us, name, fields) => ({ ...event(name, fields), seq, t_us });
  store.ingest([HELLO, at(2, 50, "req.add", { req: "a/0", prompt_tok: 3 }), at(3, 50, "req.state", { req: "a/0", to: "prefill" }), at(4, 90, "req.ledger", { req: "a/0" }), at(5, 95, "stat", {})]);
  const cursor = createCursor(store);
  const times = [2, 3, 4, 5].map((seq) => {
    cursor.seek(seq);
    return cursor.timeUs.value;
  });
  assert.deepEqual(times, [50, 50, 90, 95]);
});

test("tokens that passed the model are counted step by step, and unknown where events are missing", () => {
  const store = new Store();
  store.ingest([
    HELLO,
    { ...event("req.add", { req: "p/0", prompt_tok: 5 }), seq: 1, arrive_us: 1 },
    { ...event("step", { batch: [["p/0", 5, 5]], kind: "prefill" }), seq: 2 },
    { ...event("step", { batch: [["p/0", 4, 9]], kind: "decode" }), seq: 3 }, // three of them are drafts
    { ...event("req.add", { req: "q/0", prompt_tok: 2 }), seq: 4, arrive_us: 4 },
    { ...event("step", { batch: [["p/0", 1, 7], ["q/0", 2, 2]], kind: "mixed" }), seq: 5 },
  ]);
  const [first, second] = ["p/0", "q/0"].map((req) => store.requests.get(req));
  assert.deepEqual([1, 2, 3, 4, 5, 9].map((moment) => store.passedCount(first, moment)), [0, 5, 9, 9, 10, 10]);
  assert.equal(store.passedCount(second, 5), 2);
  store.ingest([{ ...event("gap", { from_seq: 6, to_seq: 8 }), seq: 8 }]);
  assert.equal(store.passedCount(first, 9), null);
});

test("what was kept before the first snapshot is shown, and what ended unseen has ended", () => {
  const store = new Store();
  const hello = { ev: "hello", boot_id: "b", model: {}, kv: { n_blocks: 4, block_tok: 16 }, device: {}, limits: {} };
  const added = (req, seq) => ({ ev: "req.add", req, seq, t_us: seq, step: 0, prompt_tok: 3, prio: 0, arrive_us: 0 });
  store.ingest([hello, added("a/0", 5), added("b/0", 6)]);
  assert.equal(store.head.seq, 6);
  assert.deepEqual(store.requestsAt(6).map(({ name }) => name), ["r1", "r2"]);
  const running = { req: "b/0", state: "decode", prompt_tok: 3, prio: 0, blocks: [], block_table: [] };
  store.ingest([{ ev: "snapshot", as_of_seq: 40, requests: [running], blocks: [], used: 0, cached: 0, free: 4 }]);
  assert.deepEqual(["a/0", "b/0"].map((req) => store.stateAt(store.requests.get(req), 40).to), ["done", "decode"]);
  assert.equal(store.stateAt(store.requests.get("a/0"), 6).to, "waiting");
});

test("who waits for texts has them, also those that another view has asked for; what failed is asked again", async () => {
  const store = new Store();
  let answer = () => {};
  const asked = [];
  const post = (_, { tokens }) => {
    asked.push(tokens);
    return new Promise((done, fail) => (answer = (works) => (works ? done({ token_strs: tokens.map((id) => `<${id}>`) }) : fail(new Error("away")))));
  };
  const runs = createRuns({ post }, store, createCursor(store), {});
  const first = runs.learnTexts([1, 2]);
  answer(false);
  await first;
  void runs.learnTexts([1, 2]);
  const second = runs.learnTexts([2]);
  answer(true);
  await second;
  assert.equal(runs.textOf(2), "<2>");
  assert.deepEqual(asked, [[1, 2], [1, 2]]);
  store.hello = { boot_id: "another engine" };
  assert.equal(runs.textOf(2), "", "another model may have another text of it");
});

test("recorded answers that could not be read are read again", async () => {
  const { fetch } = globalThis;
  const recorded = createRecorded();
  globalThis.fetch = async () => new Response(null, { status: 503 });
  await assert.rejects(recorded.load(), /503/);
  const file = new Blob(['{"runs": []}']).stream().pipeThrough(new CompressionStream("gzip"));
  globalThis.fetch = async () => new Response(file);
  assert.deepEqual((await recorded.load()).runs, []);
  globalThis.fetch = fetch;
});
