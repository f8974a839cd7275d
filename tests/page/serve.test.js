// A load as its events tell it, and why a request waits.
import assert from "node:assert/strict";
import { test } from "node:test";
import { causeOf, emptySeats, newLoad, takeLoad } from "../../src/pellucid/web/serve/load.js";

const request = (index, due) => ({ index, due, num_prompt_tokens: 4, num_output_tokens: 2, prefix: null });
const told = (index, state, at_us, facts = {}) => ({ ev: "load.req", index, req: `${index}/0`, state, at_us, ...facts });

test("a request's lane goes from its arrival to its end", () => {
  const load = newLoad({ discipline: "static", requests: [request(0, 0), request(1, 0.001)] });
  takeLoad(load, told(0, "sent", 1000, { due_us: 0 }));
  takeLoad(load, told(1, "sent", 1000, { due_us: 1000 }));
  takeLoad(load, told(0, "first", 1500, { cached_tok: 3 }));
  takeLoad(load, told(0, "done", 2000, { n_tok: 2, msg: "" }));
  takeLoad(load, told(1, "failed", 3000, { n_tok: 1, msg: "aborted" }));
  const [first, second] = load.lanes;
  assert.deepEqual([first.dueUs, first.sentUs, first.firstUs, first.endUs, first.tokens, first.cachedTok], [0, 1000, 1500, 2000, 2, 3]);
  assert.deepEqual([second.state, second.firstUs, second.endUs, second.message], ["failed", -1, 3000, "aborted"]);
  assert.equal(load.nowUs, 3000);
  assert.equal(emptySeats(load, 2), 0.25); // one seat of two stood empty for half of the time
});

test("the cause is the server's: behind whom, or which blocks are missing", () => {
  assert.deepEqual(causeOf({ queue_position: 3, waits: { own_ahead: 1, others_ahead: 1, cause: "behind 3" } }), { place: 4, cause: "behind 3" });
  const waiting = { state: "waiting", reason: "no_blocks", need_blocks: 12, free_blocks: 7 };
  assert.deepEqual(causeOf({ queue_position: null, waits: null, completions: { "a/0": waiting } }), { place: null, cause: "no_blocks: needs 12 blocks, 7 are free" });
  assert.equal(causeOf({ waits: null, completions: { "a/0": { state: "decode" } } }), null);
});
