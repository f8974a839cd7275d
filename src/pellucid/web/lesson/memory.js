// @ts-check
// Step 4: memory in blocks; two requests that begin alike share them; what happens when blocks run out.

import { hueVariable } from "../draw/hues.js";
import { html } from "../html.js";
import { count, inBytes } from "../parts/format.js";
import { runText } from "./run.js";

const TEXT =
  "Once upon a time there was an old fisherman who lived in a small house by the sea. Every morning he took his boat and his " +
  "nets and went out before the sun was up. His daughter waited for him on the beach, and when she saw the boat she would run to help " +
  "him pull it onto the sand. One morning";
const ENDS = [" the boat did not come back", " he caught a golden fish"];

/** @type {Lesson} */
export const memory = {
  id: "memory",
  title: "Memory in blocks",
  points: ["The pool is cut into blocks of equal size.", "A full block can be shared by texts that begin alike.", "When blocks run out, somebody is preempted."],
  text: html`<p>
      Nobody knows how long an answer will be. So the cache is not one long strip for each request but a pool of <b>blocks</b>: a request takes one more when the
      last is full, and wastes less than a block. A full block is <b>sealed</b> under the hash of its text. A prompt that begins alike finds it and shares it: those
      tokens need not pass again. If no block is left, the engine <b>preempts</b> a request: it gives its blocks up, and computes them again later.
    </p>
    <p>Two prompts begin with the same long text and end differently. The engine runs one after the other.</p>`,
  predict: {
    ask: "The second prompt is about 80 tokens long and parts from the first near its end. How many new blocks does it need?",
    unit: "blocks",
    answer: (result) => result.fresh,
    explain: (result) => html`It shares <b>${result.shared}</b> and takes <b>${result.fresh}</b> new: only full blocks can be shared, so from the last whole block on it computes for itself.
      ${" "}${result.hit} of its ${result.promptTok} prompt tokens were found.`,
  },
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
      numBlocks: kv.n_blocks, cached: second.promptTok + second.output.length - 1, number: request.number, name: request.name,
    };
  },
  Show: ({ result }) => html`<p class="dim small">The second request's blocks, in the order of its text</p>
    <ol class="blocks large" style=${{ "--c": hueVariable(result.number) }}>
      ${result.table.map((/** @type {any} */ { block, isShared }, /** @type {number} */ index) => {
        const fill = Math.min(1, (result.cached - index * result.blockTok) / result.blockTok);
        return html`<li key=${block} class=${isShared ? "shared sealed" : ""}><i style=${{ height: `${fill * 100}%` }}></i><span>${isShared ? "shared" : "new"}</span></li>`;
      })}
    </ol>`,
  check: {
    ask: (/** @type {any} */ result) => html`A block of ${result.blockTok} tokens takes ${count(result.blockBytes)} bytes. How many bytes do 1,000 tokens of one text take, in whole blocks?`,
    unit: "bytes",
    within: 0.01,
    answer: (result) => Math.ceil(1000 / result.blockTok) * result.blockBytes,
    explain: (result) => html`⌈1000 / ${result.blockTok}⌉ = ${Math.ceil(1000 / result.blockTok)} blocks of ${count(result.blockBytes)} bytes:
      <b> ${count(Math.ceil(1000 / result.blockTok) * result.blockBytes)}</b>, or ${inBytes(Math.ceil(1000 / result.blockTok) * result.blockBytes)}. This pool has ${count(result.numBlocks)} blocks.`,
  },
};
