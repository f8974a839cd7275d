// @ts-check
// Step 2: what keys and values are: those of one block, as the engine holds them.

import { Picture, useAsTable } from "../draw/picture.js";
import { html } from "../html.js";
import { count, digits } from "../parts/format.js";
import { quoted } from "../parts/token_text.js";
import { runText } from "./run.js";

const PROMPT = "Once upon a time there was a girl called Mia. She had a red kite and a small dog. One day the wind was strong and the kite flew away over the hill.";
const ROW = 14; // pixels
const LEFT = 92;

/** @type {Lesson} */
export const keysValues = {
  id: "keys-values",
  title: "What keys and values are",
  points: ["The key says what a token is about.", "The value says what it has to tell.", "Queries are used once and thrown away."],
  text: html`<p>
      In each layer a token asks a question, its <b>query</b>, of all tokens before it. Each of them has a <b>key</b>, what it is about, and a <b>value</b>, what it has
      to say. The better query and key fit, the more of the value is read: that is attention. The answer of a token's query is needed once. Its key
      and value are needed by every token that will ever follow.
    </p>
    <p>The engine will run a text and show the keys and values of its first block: real numbers, of one layer and one head.</p>`,
  predict: {
    ask: "Which of these does the engine keep for later tokens?",
    options: [["q", "queries"], ["kv", "keys and values"], ["all", "queries, keys and values"], ["scores", "attention scores"]],
    answer: (result) => (result.k.length > 0 && result.v.length > 0 ? "kv" : "none"),
    explain: (result) => html`The block holds two rows of ${result.headDim} numbers for each of its ${result.tokens.length} tokens, in each layer and kv-head: a <b>key and a value</b>, no
      queries, no scores.`,
  },
  action: "Run it and open a block",
  async run(session) {
    const ran = await runText(session, "/v1/completions", { prompt: PROMPT, max_tokens: 4, temperature: 0, ignore_eos: true });
    const tree = await session.api.get("/v1/kv/tree");
    const own = tree.nodes.find(
      (/** @type {any} */ node) => node.parent === null && node.ids.every((/** @type {number} */ id, /** @type {number} */ index) => id === ran.ids[index]),
    );
    if (!own) throw new Error("the block of this text has been evicted: run it again");
    const block = await session.api.get(`/v1/kv/blocks/${own.block}?layer=0&head=0`);
    const rounded = (/** @type {number[][]} */ rows) => rows.map((row) => row.map((value) => Number(value.toPrecision(3))));
    return {
      block: own.block, tokens: block.texts, k: rounded(block.k), v: rounded(block.v), layers: block.n_layers, heads: block.n_kv,
      headDim: block.head_dim, dtype: block.dtype,
    };
  },
  Show: ({ result }) => html`<div class="two-strips">
    <${Strip} title="Keys" rows=${result.k} result=${result} /><${Strip} title="Values" rows=${result.v} result=${result} />
  </div>
  <p class="faint small">block ${result.block}, layer 0, head 0, ${result.dtype}: a row each token, ${result.headDim} numbers; teal above zero, amber below.</p>`,
  check: {
    ask: (/** @type {any} */ result) => html`This model has ${result.layers} layers of ${result.heads} kv-heads with ${result.headDim} components each. How many numbers does one token leave
      in the cache?`,
    unit: "numbers",
    answer: (result) => 2 * result.layers * result.heads * result.headDim,
    explain: (result) => html`2 · ${result.layers} · ${result.heads} · ${result.headDim} = <b>${count(2 * result.layers * result.heads * result.headDim)}</b>: a key and a value, in each layer, for
      each kv-head.`,
  },
};

/** @param {{title: string, rows: number[][], result: any}} props */
function Strip({ title, rows, result }) {
  const asTable = useAsTable();
  const largest = Math.max(...rows.flat().map(Math.abs));
  const draw = (/** @type {Surface} */ { ctx, width, palette }) => {
    const cell = (width - LEFT) / result.headDim;
    ctx.font = `11px ${palette.mono}`;
    ctx.textBaseline = "middle";
    rows.forEach((row, y) => {
      ctx.globalAlpha = 1;
      ctx.fillStyle = palette.ink2;
      ctx.fillText(result.tokens[y].slice(0, 11), 0, y * ROW + ROW / 2);
      row.forEach((value, x) => {
        ctx.globalAlpha = Math.min(1, Math.sqrt(Math.abs(value) / largest));
        ctx.fillStyle = value >= 0 ? palette.water : palette.sun;
        ctx.fillRect(LEFT + x * cell, y * ROW + 1, Math.max(1, cell - 0.5), ROW - 2);
      });
    });
    ctx.globalAlpha = 1;
  };
  return html`<figure>
    <figcaption>
      ${title} <button class="quiet" aria-pressed=${asTable.value} onClick=${() => (asTable.value = !asTable.value)}>${asTable.value ? "picture" : "table"}</button>
    </figcaption>
    <${Picture}
      label=${`${title} of ${rows.length} tokens, ${result.headDim} numbers each, from ${digits(-largest)} to ${digits(largest)}.`}
      draw=${draw}
      inputs=${[rows]}
      height=${rows.length * ROW + 2}
      asTable=${asTable}
      twin=${{
        columns: ["token", ...Array.from({ length: result.headDim }, (_, index) => String(index))],
        rows: () => rows.map((row, index) => [quoted(result.tokens[index]), ...row]),
      }}
    />
  </figure>`;
}
