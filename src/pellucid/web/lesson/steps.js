// @ts-check
// The steps of Learn, in their order: tokens one at a time, keys and values, with and without the cache, memory in blocks, guessing ahead, many at once, and
// the challenge of a shorter answer.

import { newRun, take } from "../compare/loops.js";
import { hueVariable } from "../draw/hues.js";
import { Picture, useAsTable } from "../draw/picture.js";
import * as formulas from "../formulas.js";
import { html } from "../html.js";
import { count, digits, inBytes, inPrefix, inTime, median, percent } from "../parts/numbers.js";
import { legible, visible } from "../parts/token_text.js";
import { emptySeats, newLoad, takeLoad } from "../serve/load.js";
import { Arms, runText } from "./frame.js";
import { Pieces } from "./pieces.js";

const PROMPT = "Once upon a time";
const TOKENS = 12;

/** Writes a text with and without the cache. @param {Session} session @param {number} max_tokens @returns {Promise<Comparison>} */
async function compareCaches(session, max_tokens) {
  /** @type {any} */
  let run = null;
  await session.api.stream("/v1/compare", { prompt: PROMPT, kind: "cache", max_tokens, temperature: 0 }, {
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
  took: (result) => `${cached(result)} tokens in the cache: prefill ${inTime(result.steps[0].us)}, then ${inTime(median(result.steps.slice(1).map((/** @type {any} */ { us }) => us)))} a token`,
  title: "One token at a time",
  points: ["A model writes one token per pass.", "The prompt passes once, together: prefill.", "Each further token passes alone: decode."],
  Opening: Pieces,
  text: html`<p>
      A language model does one thing: it looks at the tokens of a text and gives each token that it knows a probability of coming next. One is drawn, appended, and the
      model looks again. The first pass takes the whole prompt: <b>prefill</b>. Each later pass takes only the newest token: <b>decode</b>. What it worked
      out about all the others is kept in the <b>KV cache</b>.
    </p>
    <p>The engine will continue “${PROMPT}” by ${TOKENS} tokens.</p>`,
  predict: {
    ask: `The prompt is 5 tokens long, and the engine adds ${TOKENS}. How many tokens are in the cache when it has chosen the last one?`,
    unit: "tokens",
    answer: cached,
    explain: (result) => html`${result.promptTok} + ${result.output.length} − 1 = <b>${cached(result)}</b>
      <span class="faint"> (${formulas.cachedTokens.text})</span>. The last token was chosen but never fed back, so nothing of it is in the cache yet.`,
  },
  goOn: ["timeline", "shows these steps on one axis, and where the time of each went."],
  action: `Generate ${TOKENS} tokens`,
  /** The arm with a cache of a comparison: an engine that makes no drafts, whatever the server's does. */
  async run(session) {
    const run = await compareCaches(session, TOKENS);
    const { passed, stepUs, texts } = run.arms[0];
    const steps = passed.map((ctx, row) => ({ q: ctx - (passed[row - 1] ?? 0), ctx, us: stepUs[row], made: [texts[row]] }));
    return { promptTok: run.promptTok, output: texts, steps };
  },
  Show: ({ result }) => html`<table class="run-steps">
    <caption>Each pass of your run: the tokens that passed, the one that it chose, tokens in the cache behind it, and its time</caption>
    <thead><tr><th>pass</th><th class="number">tokens</th><th class="wide"></th><th>chose</th><th class="number">cached</th><th class="number">time</th></tr></thead>
    <tbody>
      ${result.steps.map(
        (/** @type {RunFact["steps"][number]} */ step, /** @type {number} */ index) => html`<tr>
          <td>${index === 0 ? "prefill" : "decode"}</td>
          <td class="number">${step.q}</td>
          <td class="wide"><span class=${`passes ${index === 0 ? "prefill" : ""}`} style=${{ "--n": step.q }}></span></td>
          <td class="mono">${legible(step.made.join(""))}</td>
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

const MIA = "Once upon a time there was a girl called Mia. She had a red kite and a small dog. One day the wind was strong and the kite flew away over the hill.";
const ROW = 14; // pixels
const LEFT = 92;

/** @type {Lesson} */
export const keysValues = {
  id: "keys-values",
  took: (result) => `${count(2 * result.layers * result.heads * result.headDim)} numbers a token`,
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
        rows: () => rows.map((row, index) => [legible(result.tokens[index]), ...row]),
      }}
    />
  </figure>`;
}

const BOTH_WAYS_TOKENS = 32;

/** @type {Lesson} */
export const withWithout = {
  id: "with-without",
  took: (result) => `${count(result.cached.pass)} tokens passed and not ${count(result.naive.pass)}, ${inTime(result.cached.us)} and not ${inTime(result.naive.us)}; ${inBytes(result.cached.held)} held`,
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
  goOn: ["compare", "runs a text of yours in both ways, token by token."],
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
    const arm = (/** @type {string} */ title, /** @type {any} */ { pass, flops, us, held }, /** @type {{pass: number[]}} */ curve) => [
      title,
      html`<div class="growing" aria-hidden="true">${curve.pass.map((each) => html`<i style=${{ height: `${Math.max(1, (each / most) * 84)}px` }}></i>`)}</div>`,
      [["tokens passed", count(pass)], ["operations", inPrefix(flops)], ["time", inTime(us)], ["held between passes", inBytes(held)]],
    ];
    return html`<${Arms} arms=${[arm("with the cache", result.cached, result.curves.cached), arm("without", result.naive, result.curves.naive)]} />
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
  took: (result) => `${result.hit} of ${result.promptTok} prompt tokens found, ${result.shared} blocks shared, ${result.fresh} new`,
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
      numBlocks: kv.n_blocks, cached: second.promptTok + second.output.length - 1, hue: request.hue, name: request.name,
    };
  },
  Show: ({ result }) => html`<p class="dim small">The second request's blocks, in the order of its text</p>
    <ol class="blocks large" style=${{ "--c": hueVariable(result) }}>
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

/** @type {Lesson} */
export const speculation = {
  id: "speculation",
  took: (result) => `${result.passes.drafted} passes and not ${result.passes.plain}, ${inTime(result.us.drafted)} and not ${inTime(result.us.plain)}`,
  title: "Guessing ahead",
  points: ["A draft is a cheap guess of the next tokens.", "One pass verifies all guesses together.", "The text stays the same; only the time changes."],
  text: html`<p>
      A decode pass spends most of its time reading the weights, whether it computes one token or five. So a cheap helper <b>guesses</b> a few tokens, and the
      model checks all of them in one pass. Guesses that agree with what the model chooses itself are kept; at the first that does not, the model's own choice
      stands. Even if all are wrong one token has come out, as always.
    </p>
    <p>It pays when guesses are often right and checking is nearly free. Otherwise it costs: the engine measures both.</p>`,
  predict: {
    ask: "Four tokens were guessed and one pass verifies them. How many positions does this pass compute?",
    options: [["1", "1"], ["4", "4"], ["5", "5"], ["all", "the whole text again"]],
    answer: (result) => (result.rounds.length === 0 ? "5" : String(4 + result.extra)),
    explain: (result) => html`k + 1 = <b>5</b>: each guess, and the newest token that the model had chosen before them.
      ${result.rounds.length > 0 && html` In your run a pass with ${result.rounds[0].draft.length} guesses computed ${result.rounds[0].q} positions.`}
      ${" "}The rest comes from the cache.`,
  },
  goOn: ["speculate", "shows each round of guesses, for a text of yours."],
  action: "Run it with and without guesses",
  async run(session) {
    /** @param {string} drafter */
    const compare = async (drafter) => {
      /** @type {any} */
      const found = { rounds: [], passes: { plain: 0, drafted: 0 }, drafter };
      let before = 0;
      await session.api.stream("/v1/compare", { prompt: PROMPT, kind: "drafts", drafter, num_drafts: 4, max_tokens: 40, temperature: 0 }, {
        onData(event) {
          if (event.ev === "cmp.end") found.end = event;
          if (event.ev !== "cmp") return;
          found.passes[event.arm] += 1;
          for (const [draft, right, chosen] of event.rounds) found.rounds.push({ draft, right, chosen, q: event.pass_tok - before });
          before = event.pass_tok;
        },
      });
      return found;
    };
    // Without a draft model guesses are looked up in the text.
    const { rounds, passes, drafter, end } = await compare("draft").catch(() => compare("ngram"));
    if (rounds.length === 0) throw new Error("nothing was guessed: the text does not repeat itself, and this engine has no draft model");
    const { runs } = session;
    await runs.learnTexts(rounds.flatMap((/** @type {any} */ each) => [...each.draft, each.chosen ?? each.draft[0]]));
    const { plain, drafted } = end.arms;
    return {
      rounds: rounds.map((/** @type {any} */ each) => ({
        ...each, draft: each.draft.map(runs.textOf), chosen: each.chosen === null ? "" : runs.textOf(each.chosen),
      })),
      drafter, passes, extra: rounds[0].q - rounds[0].draft.length, drafted: drafted.drafted, right: drafted.right, tokens: drafted.n_tok,
      text: drafted.texts[0], isSame: end.first_diff === null, us: { plain: plain.t_us, drafted: drafted.t_us },
    };
  },
  Show: ({ result }) => html`<ol class="rounds">
      ${result.rounds.slice(0, 10).map(
        (/** @type {any} */ round) => html`<li>
          ${round.draft.map(
            (/** @type {string} */ text, /** @type {number} */ index) =>
              html`<span class=${`guess mono ${index < round.right ? "right" : "wrong"}`}>${visible(text)}<span class="spoken">${index < round.right ? " right" : " wrong"}</span></span>`,
          )}
          ${round.chosen && html`<span class="instead">the model: <q class="mono">${legible(round.chosen)}</q></span>`}
        </li>`,
      )}
    </ol>
    <p class="small dim">${result.rounds.length} rounds. The same ${result.tokens} tokens took ${result.passes.drafted} passes with guesses by ${result.drafter === "draft" ? "a smaller model" : "prompt lookup"} and
      ${" "}${result.passes.plain} without; ${inTime(result.us.drafted)} and ${inTime(result.us.plain)}.${result.isSame ? " The texts are the same." : ""}</p>`,
  check: {
    ask: "What share of the guesses of this run were right, in percent?",
    unit: "%",
    within: 0.1,
    answer: (result) => (100 * result.right) / result.drafted,
    explain: (result) => {
      const a = result.right / result.drafted;
      const gain = formulas.expectedTokens.of({ a, k: 4 });
      return html`${result.right} of ${result.drafted}: <b>${percent(a)}</b>. If each of four guesses were right that often, a round would give ${digits(gain)} tokens
        <span class="faint"> (${formulas.expectedTokens.text})</span>.`;
    },
  },
};

const SEATS = 4;
const LOAD = { num_requests: 12, concurrency: SEATS, prompt_tokens: "16-48", output_tokens: "8-64", seed: 7, static_batch: SEATS };

/** @type {Lesson} */
export const batching = {
  id: "batching",
  took: (result) => `${digits(result.continuous.rate)} tokens a second, static ${digits(result.static.rate)}`,
  title: "Many at once",
  points: ["One pass can serve many requests.", "Static: a batch waits for its slowest.", "Continuous: whoever ends makes room at once."],
  text: html`<p>
      Reading the weights once can serve many requests: each pass computes the next token of all of them. With <b>static</b> batching a batch is filled, and nobody
      enters until its longest answer has ended: seats stand empty. With <b>continuous</b> batching a request leaves when it is done, and the next one takes its
      seat in the very next pass.
    </p>
    <p>The engine will serve the same ${LOAD.num_requests} requests both ways, at most ${SEATS} at a time. Answers are between 8 and 64 tokens long.</p>`,
  predict: {
    ask: `With static batches of ${SEATS}, what share of the seats stands empty, in percent?`,
    unit: "%",
    within: 0.35,
    answer: (result) => 100 * result.static.idle,
    explain: (result) => html`<b>${percent(result.static.idle)}</b> of the seats' time in your run: whoever had ended waited for the slowest of the batch.
      <span class="faint"> A third more or less counts.</span>`,
  },
  goOn: ["serve", "puts a load on this engine, with other arrivals and lengths."],
  action: "Serve them both ways",
  async run(session) {
    /** @type {Record<string, any>} */
    const result = {};
    for (const discipline of ["static", "continuous"]) {
      /** @type {any} */
      let load = null;
      await session.api.stream("/v1/load", { ...LOAD, discipline }, {
        onData(event) {
          if (event.ev === "load.begin") load = newLoad(event);
          else takeLoad(load, event);
        },
      });
      if (!load?.end) throw new Error("the load did not end");
      const rows = /** @type {Load} */ (load).lanes.filter((lane) => lane.state === "done").sort((a, b) => a.sentUs - b.sentUs || a.index - b.index)
        .map(({ index, tokens, dueUs, sentUs, endUs }) => ({ index, tokens, due: dueUs ?? 0, sent: sentUs, done: endUs }));
      result[discipline] = { rows, us: Math.max(...rows.map((row) => row.done)), rate: load.end.output_tok_s, idle: emptySeats(load, SEATS) };
    }
    return result;
  },
  Show: ({ result }) => {
    const whole = Math.max(result.static.us, result.continuous.us);
    return html`<${Arms} arms=${["static", "continuous"].map((name) => [
      name,
      html`<div class="lanes">
        ${result[name].rows.map(
          (/** @type {any} */ lane) => html`<div data-tip=${`request ${lane.index}: ${lane.tokens} tokens`} style=${{ "--c": hueVariable(lane.index) }}>
            <i class="queued" style=${{ left: `${(lane.due / whole) * 100}%`, width: `${((lane.sent - lane.due) / whole) * 100}%` }}></i>
            <i class="running" style=${{ left: `${(lane.sent / whole) * 100}%`, width: `${((lane.done - lane.sent) / whole) * 100}%` }}></i>
          </div>`,
        )}
      </div>`,
      [["all served after", inTime(result[name].us)], ["tokens a second", digits(result[name].rate)]],
    ])} />`;
  },
  check: {
    ask: "Which of the two served more tokens a second in your run?",
    options: [["static", "static"], ["continuous", "continuous"]],
    answer: (result) => (result.continuous.rate >= result.static.rate ? "continuous" : "static"),
    explain: (result) => html`${digits(result.continuous.rate)} tokens a second continuous, ${digits(result.static.rate)} static:
      <b> ${digits(Math.max(result.continuous.rate, result.static.rate) / Math.min(result.continuous.rate, result.static.rate))} times</b>. Prompts, lengths and the ${SEATS} seats were the same.`,
  },
};

const QUESTION = "What is the capital of Italy?";
const LONG = 160;

/** @type {Lesson} */
export const challenge = {
  id: "challenge",
  took: (result) => `${inTime(result.after.totalUs)} and not ${inTime(result.before.totalUs)}`,
  title: "Challenge: say it shorter",
  points: ["Time is the first token plus one step for each further token.", "The form of the answer decides, not the cap."],
  text: html`<p>
      A question can be answered by a page or by one word. Here the engine answers “${QUESTION}” twice: freely, up to ${LONG} tokens, and with the rule that the answer
      is <q class="mono">Rome</q> or <q class="mono">Paris</q>. A smaller <code>max_tokens</code> alone would only cut a long answer off; the rule changes the answer.
    </p>`,
  predict: {
    ask: "How many times as fast will the short answer be?",
    unit: "×",
    within: 0.5,
    answer: (result) => result.before.totalUs / result.after.totalUs,
    explain: (result) => html`<b>${digits(result.before.totalUs / result.after.totalUs)} times</b>: ${inTime(result.before.totalUs)} for ${count(result.before.tokens)} tokens, then
      ${" "}${inTime(result.after.totalUs)} for ${count(result.after.tokens)}. <span class="faint">Half as much or half more counts.</span>`,
  },
  goOn: ["chat", "shows for each answer why it took so long."],
  action: "Ask both ways",
  async run(session) {
    const prompt = `Question: ${QUESTION}\nAnswer:`;
    const fact = (/** @type {RunFact} */ ran) => ({
      totalUs: ran.totalUs, firstUs: ran.firstUs, eachUs: ran.eachUs, tokens: ran.output.length, text: ran.output.join(""),
    });
    // Once before the clock counts, so that both find the prompt alike.
    await runText(session, "/v1/completions", { prompt, max_tokens: 1, temperature: 0 });
    const before = fact(await runText(session, "/v1/completions", { prompt, max_tokens: LONG, temperature: 0.8, seed: 1, ignore_eos: true }));
    const after = fact(await runText(session, "/v1/completions", { prompt, max_tokens: 8, temperature: 0.8, seed: 1, structured_outputs: { choice: [" Rome", " Paris"] } }));
    return { before, after };
  },
  Show: ({ result }) => html`<${Arms} arms=${["before", "after"].map((name) => [
    name,
    html`<p class="answer mono" tabindex="0" role="region" aria-label=${name}>${result[name].text}</p>`,
    [["tokens", count(result[name].tokens)], ["time", inTime(result[name].totalUs)]],
  ])} />`,
  check: {
    ask: (/** @type {any} */ result) => html`Your long answer had its first token after ${inTime(result.before.firstUs)} and each further one after ${inTime(result.before.eachUs)}. How many milliseconds
      would 50 tokens have taken?`,
    unit: "ms",
    within: 0.1,
    answer: (result) => (result.before.firstUs + 49 * result.before.eachUs) / 1000,
    explain: (result) => html`${inTime(result.before.firstUs)} + 49 · ${inTime(result.before.eachUs)} = <b>${inTime(result.before.firstUs + 49 * result.before.eachUs)}</b>.`,
  },
};
