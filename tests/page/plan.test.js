// Steps of a session beside the formula.
import assert from "node:assert/strict";
import { test } from "node:test";
import { median } from "../../src/pellucid/web/parts/numbers.js";
import { errors, measuredSteps } from "../../src/pellucid/web/plan/estimate.js";
import { Store } from "../../src/pellucid/web/state/store.js";

test("each step is held against the formula for its own operations and bytes", () => {
  const { steps } = new Store();
  const step = (kind, fwd_us, flops, bytes) => steps.push({ kind, fwd_us, flops, w_bytes: bytes - 3, kv_read_bytes: 2, kv_write_bytes: 1 });
  step(0, 400, 2000, 100); // 200 µs of arithmetic
  step(1, 300, 10, 100); // 100 µs of memory
  step(1, 500, 10, 100);
  step(1, 0, 10, 100); // never measured
  const found = measuredSteps(steps, 4, { F: 1e7, W: 1e6 });
  assert.deepEqual(found.map((each) => Math.round(each.predictedUs)), [200, 100, 100]);
  const rows = errors(found);
  assert.deepEqual(rows.map((row) => [row.kind, row.count, row.us, Math.round(row.ratio * 10) / 10]), [["prefill", 1, 400, 2], ["decode", 2, 400, 4]]);
  assert.equal(measuredSteps(steps, 1, { F: 1, W: 1 }).length, 1, "as of the cursor");
  assert.equal(median([3, 1, 2]), 2);
});
