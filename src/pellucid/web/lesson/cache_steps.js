// @ts-check
// The steps of Learn about what is kept: keys and values, and the blocks that hold them.

import { hueVariable } from "../draw/hues.js";
import { Picture, useAsTable } from "../draw/picture.js";
import { html } from "../html.js";
import { count, digits, inBytes, several } from "../parts/numbers.js";
import { legible } from "../parts/token_text.js";
import { Film } from "./film.js";
import { runText } from "./frame.js";

const MIA = "Once upon a time there was a girl called Mia. She had a red kite and a small dog. One day the wind was strong and the kite flew away over the hill.";
const ROW = 18; // pixels
const LEFT = 92;

/** @type {Lesson} */
export const keysValues = {
  id: "keys-values",
  took: (result) => `${count(2 * result.layers * result.heads * result.headDim)} numbers a token`,
  title: "What keys and values are",
  points: ["The key says what a token is about.", "The value says what it has to tell.", "Queries are used once and thrown away."],
  scene: html`<p>You have seen what each token has in each head: a <b>query</b>, what it looks for; a <b>key</b>, what it is about; a <b>value</b>, what it has to tell. The newest token asks; the earlier
      ones answer. Then the next token comes.</p>`,
  predict: {
    ask: "Which of these are still needed for the next token?",
    options: [["q", "queries"], ["kv", "keys and values"], ["all", "all three"], ["none", "none of them"]],
    answer: (result) => (result.k.length > 0 && result.v.length > 0 ? "kv" : "none"),
    explain: (result) => html`The block of your run holds two rows of ${result.headDim} numbers for each of its ${result.tokens.length} tokens, in each layer and head: a <b>key and a value</b>. No
      query is in it, and no weight.`,
  },
  text: html`<p>
      A query is used once, by its own token, and thrown away. The key, what it is about, and the value, what it has to tell, are read by every token that will ever follow: they are kept. So the cache is
      called <b>KV cache</b>. In each layer it has two arrays, keys and values, of the shape <span class="mono">[blocks, tokens of a block, kv-heads, numbers of a head]</span>. In many models several
      query heads share the keys and values of one kv-head (<b>grouped-query attention</b>, GQA): the cache is smaller by that factor.
    </p>
    <p>It is used wherever text is written token by token: chats, code, agents, translation. A long chat or a system prompt that many share gains most.</p>`,
  goOn: ["cache", "shows each block of the pool, and the numbers in it."],
  action: "Run it and open a block",
  async run(session) {
    const ran = await runText(session, "/v1/completions", { prompt: MIA, max_tokens: 4, temperature: 0, ignore_eos: true });
    const tree = await session.api.get("/v1/kv/tree");
    const own = tree.nodes.find(
      (/** @type {any} */ node) => node.parent === null && node.ids.every((/** @type {number} */ id, /** @type {number} */ index) => id === ran.ids[index]),
    );
    if (!own) throw new Error("the block of this text has been evicted: run it again");
    const block = await session.api.get(`/v1/kv/blocks/${own.block}?layer=0&head=0`);
    const rounded = (/** @type {number[][]} */ rows) => rows.map((row) => row.map((value) => Number(value.toPrecision(3))));
    return {
      block: own.block, tokens: block.texts, k: rounded(block.k), v: rounded(block.v), layers: block.n_layers, heads: block.n_kv,
      headDim: block.head_dim,
    };
  },
  Show: ({ result, plays, onEnd }) => html`<${Film} frames=${result.tokens.length} plays=${plays} onEnd=${onEnd} lasts=${() => 160}
    says=${(/** @type {number} */ frame) => `${several(frame, "token")}, ${several(2 * frame * result.layers * result.heads * result.headDim, "number")}`}>
    ${(/** @type {number} */ frame) => html`<div class="two-strips">
      <${Strip} title="Keys" rows=${result.k} result=${result} shown=${frame} /><${Strip} title="Values" rows=${result.v} result=${result} shown=${frame} />
    </div>
    <p class="dim small">block ${result.block}, layer 0, head 0: a row each token, ${result.headDim} numbers; teal above zero, amber below. All ${result.layers} layers and ${result.heads} heads are counted above.</p>`}
  <//>`,
  check: {
    ask: "Some tokens of a text say much, as a name does; others little, as “a” does. Which of them leave more numbers in the cache?",
    options: [["much", "those that say much"], ["little", "those that say little"], ["same", "all leave as many"]],
    answer: (result) => ([...result.k, ...result.v].every((row) => row.length === result.headDim) ? "same" : "much"),
    explain: (result) => html`Each leaves <b>${count(2 * result.layers * result.heads * result.headDim)}</b>: a key and a value of ${result.headDim} numbers, in each of ${result.layers} layers, for each of
      ${" "}${result.heads} kv-heads. What it says is in the numbers, not in how many there are.`,
  },
};

/** @param {{title: string, rows: number[][], result: any, shown: number}} props `shown`: rows */
function Strip({ title, rows, result, shown }) {
  const asTable = useAsTable();
  const largest = Math.max(...rows.flat().map(Math.abs));
  const draw = (/** @type {Surface} */ { ctx, width, palette }) => {
    const cell = (width - LEFT) / result.headDim;
    ctx.font = `14px ${palette.mono}`;
    ctx.textBaseline = "middle";
    rows.slice(0, shown).forEach((row, y) => {
      ctx.globalAlpha = 1;
      ctx.fillStyle = palette.ink2;
      ctx.fillText(legible(result.tokens[y]).slice(0, 10), 0, y * ROW + ROW / 2, LEFT - 6);
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
      inputs=${[rows, shown]}
      height=${rows.length * ROW + 2}
      asTable=${asTable}
      twin=${{
        columns: ["token", ...Array.from({ length: result.headDim }, (_, index) => String(index))],
        rows: () => rows.map((row, index) => [legible(result.tokens[index]), ...row]),
      }}
    />
  </figure>`;
}

const TEXT =
  "Once upon a time there was an old fisherman who lived in a small house by the sea. Every morning he took his boat and his " +
  "nets and went out before the sun was up. His daughter waited for him on the beach, and when she saw the boat she would run to help " +
  "him pull it onto the sand. One morning";
const ENDS = [" the boat did not come back", " he caught a golden fish"];

/** @type {Lesson} */
export const memory = {
  id: "memory",
  took: (result) => `${result.hit} of ${result.promptTok} prompt tokens found, ${result.shared} blocks shared, ${result.fresh} new`,
  title: "Memory in blocks",
  points: ["The pool is cut into blocks of equal size.", "A full block can be shared by texts that begin alike.", "When blocks run out, somebody is preempted."],
  scene: html`<p>The cache lies in <b>blocks</b> of equal size, and a text takes one more when its last is full. Two people send texts (two <b>requests</b>) that begin with the same long story and end
      differently. The first one has been answered; then the second one comes.</p>`,
  predict: {
    ask: "What must be computed for the second text?",
    options: [["all", "all of it: it is another text"], ["end", "only the part from where it differs, and a little before"], ["none", "nothing"]],
    answer: (result) => (result.hit === 0 ? "all" : result.hit < result.promptTok ? "end" : "none"),
    explain: (result) => html`Of its ${result.promptTok} tokens ${result.hit} were found in the cache. It shares <b>${several(result.shared, "block")}</b> and takes <b>${result.fresh}</b> new: only full blocks can be
      shared, so it computes from the end of the last one on.`,
  },
  text: html`<p>
      Nobody knows how long an answer will be. So the cache is not one long strip for each request but a <b>pool</b> of blocks: this is <b>paged attention</b>. A request wastes less than a block. A full block is
      ${" "}<b>sealed</b> under a fingerprint of its text (a <b>hash</b>): a prompt that begins alike finds it and shares it. If no block is left, the engine <b>preempts</b> a request: it gives its blocks up, and computes them
      again later.
    </p>`,
  goOn: ["plan", "computes it for other models, contexts and machines."],
  action: "Run both",
  async run(session) {
    const { store } = session;
    const body = { max_tokens: 6, temperature: 0, ignore_eos: true };
    await runText(session, "/v1/completions", { ...body, prompt: TEXT + ENDS[0] });
    const second = await runText(session, "/v1/completions", { ...body, prompt: TEXT + ENDS[1] });
    const request = /** @type {EngineRequest} */ (store.requests.get(second.req));
    const ended = request.states.at(-1);
    let [shared, fresh] = [0, 0];
    /** @type {{block: number, isShared: boolean}[]} */
    const table = [];
    for (const op of store.pool.recent(ended?.seq ?? Infinity, 4000).reverse()) {
      if (op.seq < request.seq || op.a !== request.number) continue;
      if (op.op === "S" || op.op === "L") {
        shared += 1;
        table.push({ block: op.block, isShared: true });
      } else if (op.op === "A") {
        fresh += 1;
        table.push({ block: op.block, isShared: false });
      }
    }
    const kv = store.hello.kv;
    return {
      promptTok: second.promptTok, hit: request.prefix?.hit_tok ?? 0, shared, fresh, table, blockTok: kv.block_tok, blockBytes: kv.block_bytes,
      numBlocks: kv.n_blocks, cached: second.promptTok + second.output.length - 1, hue: request.hue, texts: [...second.prompt, ...second.output],
    };
  },
  Show: ({ result, plays, onEnd }) => {
    // Shared blocks are there at once; then token by token.
    const from = result.shared * result.blockTok;
    return html`<${Film} frames=${result.cached - from + 1} plays=${plays} onEnd=${onEnd} lasts=${(/** @type {number} */ frame) => (frame < 2 ? 1200 : 240)}
      says=${(/** @type {number} */ frame) => `${frame === 0 ? 0 : from + frame - 1} of ${several(result.cached, "token")}`}>
      ${(/** @type {number} */ frame) => html`<p class="dim small">The second text in its blocks, of ${result.blockTok} tokens each</p>
        <ol class="filling" style=${{ "--c": hueVariable(result) }}>
          ${result.table.map((/** @type {any} */ { block, isShared }, /** @type {number} */ index) => {
            const tokens = frame === 0 ? 0 : Math.max(0, Math.min(result.blockTok, from + frame - 1 - index * result.blockTok));
            const [start, end] = [index * result.blockTok, index * result.blockTok + tokens];
            return html`<li key=${block}>
              <b>${isShared ? "shared" : "new"}</b> <span class="small dim">block ${block}: ${tokens} of ${result.blockTok}</span>
              <i style=${{ width: `${(100 * tokens) / result.blockTok}%` }}></i>
              <p class="mono small">${result.texts.slice(start, end).join("")}<span class="to-come">${result.texts.slice(end, Math.min(result.cached, start + result.blockTok)).join("")}</span></p></li>`;
          })}
        </ol>`}
    <//>`;
  },
  check: {
    ask: "The last block of a text is full, and one more token comes. What does it take of the pool?",
    options: [["token", "room for one token"], ["block", "one block more"], ["most", "room for the longest answer there could be"]],
    answer: (result) => (result.table.length === Math.ceil(result.cached / result.blockTok) ? "block" : "most"),
    explain: (result) => html`Your second text has ${several(result.cached, "token")} in <b>${several(result.table.length, "block")}</b> of ${result.blockTok}: all are full but the last. A block takes
      ${" "}${inBytes(result.blockBytes)}, and this pool has ${count(result.numBlocks)}.`,
  },
};
