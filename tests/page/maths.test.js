// Which pieces of a text in Markdown are formulas, and which stay as they were written.
import assert from "node:assert/strict";
import { test } from "node:test";
import MarkdownIt from "markdown-it";
import { readFormulas } from "../../src/pellucid/web/chat/maths.js";

const parser = new MarkdownIt({ html: false });
readFormulas(parser);

/** Each formula of a text: TeX, as it was written, whether it stands alone. */
const formulas = (text) => {
  const all = parser.parse(text, {}).flatMap((token) => [token, ...(token.children ?? [])]);
  return all.filter(({ type }) => type === "formula").map(({ content, markup, meta }) => [content, markup, meta.isDisplay]);
};
const texts = (text) => formulas(text).map(([tex]) => tex);

test("four ways to write a formula", () => {
  assert.deepEqual(formulas("so $a_1 * b$ and \\(x\\), $$y$$ and \\[z\\]."), [
    ["a_1 * b", "$a_1 * b$", false],
    ["x", "\\(x\\)", false],
    ["y", "$$y$$", true],
    ["z", "\\[z\\]", true],
  ]);
});

test("a formula in lines of its own keeps what Markdown would take for a list, a heading or an escape", () => {
  assert.deepEqual(formulas("$$\na \\\\\n- b\n= c\n$$\nand"), [["\na \\\\\n- b\n= c\n", "$$\na \\\\\n- b\n= c\n$$", true]]);
  assert.deepEqual(texts("Text\n\\[ x^2 \\]\n"), [" x^2 "]);
  assert.deepEqual(texts("> $$\n> a\n> $$"), ["\na\n"]);
  assert.deepEqual(texts("1. one\n\n   $$\n   a\n   $$"), ["\na\n"]);
});

test("money, code, escapes and what is not closed are no formulas", () => {
  for (const text of ["$5 and $6", "`$a$`", "```\n$$\na\n$$\n```", "\\$a\\$", "$a", "$$\na\n\nb\n$$", "$ a $", "$$$$", "    $$a$$", "\\(a"])
    assert.deepEqual(texts(text), [], text);
  assert.deepEqual(texts("$a\\$b$"), ["a\\$b"]);
});

test("a formula that would be too long stays as it was written", () => {
  assert.deepEqual(texts(`$${"a".repeat(6_000)}$`), []);
});
