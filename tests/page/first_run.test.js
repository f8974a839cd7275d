// The recorded run of the empty page: what it says is possible, and each moment of it follows from the one before.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { layoutOf } from "../../src/pellucid/web/draw/signature.js";
import { endOf, sceneAt, textsOf } from "../../src/pellucid/web/generate/first_run.js";

const run = JSON.parse(readFileSync(new URL("../../src/pellucid/web/traces/first_run.json", import.meta.url), "utf8"));

test("a recorded token is the likeliest, and reads only what was before it", () => {
  run.tokens.forEach((token, index) => {
    assert.equal(token.text, token.cand[0][0]);
    assert.deepEqual(token.cand.map(([, p]) => p).sort((a, b) => b - a), token.cand.map(([, p]) => p));
    assert.ok(token.read.every(([position]) => position > 0 && position < run.prompt.length + index));
    assert.ok(token.read.reduce((sum, [, weight]) => sum + weight, 0) <= 1);
  });
});

test("tokens and cache only grow, and the cache has all but the newest token at the end", () => {
  const scenes = Array.from({ length: 2000 }, (_, index) => sceneAt(run, (endOf(run) * index) / 1999));
  scenes.slice(1).forEach((scene, index) => {
    assert.ok(scene.shown >= scenes[index].shown && scene.cached >= scenes[index].cached);
    assert.ok(scene.cached <= scene.shown);
  });
  const order = [...new Set(scenes.map(({ phase }) => phase))];
  assert.deepEqual(order, ["prompt", "prefill", "decode", "done"]);
  const all = run.prompt.length + run.tokens.length;
  assert.deepEqual([scenes.at(-1).shown, scenes.at(-1).cached], [all, all - 1]);
});

test("nothing of it is wider than its box", () => {
  for (const width of [280, 480, 640, 900]) {
    const { tokens, cells, cell, height } = layoutOf(textsOf(run), run.block_tok, width);
    assert.ok(tokens.every((each) => each.x + each.width <= width));
    assert.ok(cells.every((each) => each.x + cell <= width && each.y + cell <= height));
  }
});
