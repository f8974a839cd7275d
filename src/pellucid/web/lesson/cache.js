// @ts-check
// The steps about one text: tokens one at a time, keys and values, with and without the cache, memory in blocks.

import { newRun, take } from "../compare/loops.js";
import { hueVariable } from "../draw/hues.js";
import { Picture, useAsTable } from "../draw/picture.js";
import * as formulas from "../formulas.js";
import { html } from "../html.js";
import { count, digits, inBytes, inPrefix, inTime } from "../parts/numbers.js";
import { quoted } from "../parts/token_text.js";
import { runText } from "./frame.js";

const TOKENS = 12;
/** Writes a text with and without the cache. @param {Session} session @param {number} max_tokens @returns {Promise<Comparison>} */
async function compareCaches(session, max_tokens) {
  /** @type {any} */
  let run = null;
  await session.api.stream("/v1/compare", { prompt: "Once upon a time", kind: "cache", max_tokens, temperature: 0 }, {
    onData(event) {
      if (event.ev === "cmp.begin") run = newRun(event);
      else take(run, event);
    },
  });
  if (!run?.end) throw new Error("the comparison did not end");
  return run;
}

const cached = (/** @type {{promptTok: number, output: string[]}} */ { promptTok, output }) => formulas.cachedTokens.of({ N: promptTok, m: output.length });

/** @type {Lesson} */
export const oneToken = {
  id: "one-token",
  title: "One token at a time",
  points: ["A model writes one token per pass.", "The prompt passes once, together: prefill.", "Each further token passes alone: decode."],
  text: html`<p>
      A language model does one thing: it looks at a text and gives every token it knows a probability of coming next. One is drawn, appended, and the
      model looks again. The first pass takes the whole prompt: <b>prefill</b>. Each later pass takes only the newest token: <b>decode</b>. What it worked
      out about all the others is kept in the <b>KV cache</b>.
    </p>
    <p>The engine will continue “Once upon a time” by ${TOKENS} tokens.</p>`,
  predict: {
    ask: `The prompt is 5 tokens long, and the engine adds ${TOKENS}. How many tokens are in the cache when it has chosen the last one?`,
    unit: "tokens",
    answer: cached,
    explain: (result) => html`${result.promptTok} + ${result.output.length} − 1 = <b>${cached(result)}</b>
      <span class="faint"> (${formulas.cachedTokens.text})</span>. The last token was chosen but never fed back, so nothing of it is in the cache yet.`,
  },
  action: `Generate ${TOKENS} tokens`,
  /** The arm with a cache of a comparison: an engine that makes no drafts, whatever the server's does. */
  async run(session) {
    const run = await compareCaches(session, TOKENS);
    const { passed, stepUs, texts } = run.arms[0];
    const steps = passed.map((ctx, row) => ({ q: ctx - (passed[row - 1] ?? 0), ctx, us: stepUs[row], made: [texts[row]] }));
    return { promptTok: run.promptTok, output: texts, steps };
  },
  Show: ({ result }) => html`<table class="run-steps">
    <caption>Each pass of your run</caption>
    <thead><tr><th>pass</th><th>tokens that passed</th><th class="wide"></th><th>chose</th><th class="number">in the cache</th><th class="number">time</th></tr></thead>
    <tbody>
      ${result.steps.map(
        (/** @type {RunFact["steps"][number]} */ step, /** @type {number} */ index) => html`<tr>
          <td>${index === 0 ? "prefill" : "decode"}</td>
          <td class="number">${step.q}</td>
          <td class="wide"><span class=${`passes ${index === 0 ? "prefill" : ""}`} style=${{ "--n": step.q }}></span></td>
          <td class="mono">${quoted(step.made.join(""))}</td>
          <td class="number">${step.ctx}</td>
          <td class="number">${inTime(step.us)}</td>
        </tr>`,
      )}
    </tbody>
  </table>`,
  check: {
    ask: "How many tokens passed through the model in the last pass of your run?",
    unit: "tokens",
    answer: (result) => result.steps.at(-1).q,
    explain: (result) => html`<b>${result.steps.at(-1).q}</b>: the newest. It read the other ${result.steps.at(-1).ctx - 1} from the cache.`,
  },
};

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

const BOTH_WAYS_TOKENS = 32;

/** @type {Lesson} */
export const withWithout = {
  id: "with-without",
  title: "With the cache and without",
  points: ["A cache costs memory and saves compute.", "Without it every token passes again and again.", "The text is the same."],
  text: html`<p>
      Without a cache the model would read the whole text again for every token, like somebody who begins a book anew for each word. With the cache
      it keeps notes. The notes take memory; nothing else is lost: both ways give the same tokens.
    </p>
    <p>The engine will write ${BOTH_WAYS_TOKENS} tokens both ways and count what passes through the model.</p>`,
  predict: {
    ask: `The prompt is 5 tokens, the answer ${BOTH_WAYS_TOKENS}. How many tokens pass through the model in all without a cache?`,
    unit: "tokens",
    within: 0.1,
    answer: (result) => result.naive.pass,
    explain: (result) => html`<b>${count(result.naive.pass)}</b> without, ${count(result.cached.pass)} with: ${digits(result.naive.pass / result.cached.pass)} times as many.
      <span class="faint"> ${formulas.passesNaive.text} against ${formulas.passesCached.text}; within a tenth counts.</span>`,
  },
  action: "Run it both ways",
  async run(session) {
    const run = await compareCaches(session, BOTH_WAYS_TOKENS);
    /** @type {Record<string, any>} */
    const result = { same: run.end.same_tok, curves: {} };
    for (const { name, passed } of run.arms) {
      const { pass_tok: pass, t_us: us, flops, kv_held_peak_bytes: held, n_tok: tokens } = run.end.arms[name];
      result[name] = { pass, us, flops, held, tokens };
      result.curves[name] = { pass: passed };
    }
    return result;
  },
  Show: ({ result }) => {
    const most = result.naive.pass;
    const arms = /** @type {[string, string][]} */ ([["cached", "with the cache"], ["naive", "without"]]);
    return html`<div class="arms">
        ${arms.map(
          ([name, title]) => html`<div>
            <h4>${title}</h4>
            <div class="growing" aria-hidden="true">
              ${result.curves[name].pass.map((/** @type {number} */ pass) => html`<i style=${{ height: `${Math.max(1, (pass / most) * 84)}px` }}></i>`)}
            </div>
            <dl>
              <div><dt>tokens passed</dt><dd>${count(result[name].pass)}</dd></div>
              <div><dt>operations</dt><dd>${inPrefix(result[name].flops)}</dd></div>
              <div><dt>time</dt><dd>${inTime(result[name].us)}</dd></div>
              <div><dt>held between passes</dt><dd>${inBytes(result[name].held)}</dd></div>
            </dl>
          </div>`,
        )}
      </div>
      <p class="small dim">Each bar: tokens passed so far. The first ${result.same} of ${result.cached.tokens} tokens are the same${result.same === result.cached.tokens ? ": all of them" : ""}.</p>`;
  },
  check: {
    ask: "Which of the two holds memory between one pass and the next?",
    options: [["cached", "with the cache"], ["naive", "without"], ["both", "both alike"]],
    answer: (result) => (result.cached.held > result.naive.held ? "cached" : result.cached.held === result.naive.held ? "both" : "naive"),
    explain: (result) => html`<b>With the cache</b>: ${inBytes(result.cached.held)} at its largest, against ${inBytes(result.naive.held)}. A cache does not save memory. It spends memory to
      save ${digits(result.naive.flops / result.cached.flops)} times the operations.`,
  },
};

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
