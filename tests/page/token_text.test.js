// How a token is spelled where it stands alone.
import assert from "node:assert/strict";
import { test } from "node:test";
import { legible } from "../../src/pellucid/web/parts/token_text.js";

test("what cannot be seen in a token has a sign, and what can be seen stays", () => {
  const spelled = {
    " Paris": "␣Paris", "Paris ": "Paris␣", "  ": "␣␣", "": "∅", "\n\n": "↵↵", "\tif x": "⇥if x", "two words": "two words",
    ",": ",", "日本": "日本", " é": "␣é", " שלום": "\u2068␣שלום\u2069",
  };
  for (const [text, sign] of Object.entries(spelled)) assert.equal(legible(text), sign);
});
