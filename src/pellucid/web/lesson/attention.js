// @ts-check
// The step of Learn about attention: one head of one layer, its formula and its numbers. A row of the triangle is a token that looks, a column one that is read.

import { hue } from "../draw/hues.js";
import { Picture, useAsTable, useCanvas } from "../draw/picture.js";
import { html, useMemo, useRef, useSignal } from "../html.js";
import { digits, percent } from "../parts/numbers.js";
import { legible } from "../parts/token_text.js";
import { Film } from "./film.js";
import { runText } from "./frame.js";

const PROMPT = "The cat sat on the mat because it";
/** Heads that are worth a look, [layer, head], by the model's layers and query heads. 30 × 9 is SmolLM2 135M: this head looks for what a text is about. @type {Record<string, [number, number]>} */
const KNOWN = { "30x9": [13, 8] };
const MOST_LOOKS = 24; // at heads of other models, to find one that looks at another word than the newest and the first

/** Finds a head that looks back at one word. @param {Session} session @param {string} place of the last token @param {number} last its position @returns {Promise<[number, number]>} */
async function lookingHead({ api }, place, last) {
  const { n_layers: layers, n_heads: heads } = await api.get(`/v1/attn/${place}`);
  const known = KNOWN[`${layers}x${heads}`];
  if (known) return known;
  const apart = Math.max(1, Math.ceil((layers * heads) / MOST_LOOKS));
  let [best, most] = [/** @type {[number, number]} */ ([0, 0]), -1];
  for (let index = 0; index < layers * heads; index += apart) {
    const at = /** @type {[number, number]} */ ([Math.floor(index / heads), index % heads]);
    const { top } = await api.get(`/v1/attn/${place}?layer=${at[0]}&head=${at[1]}&top=${last}`);
    const [, , , weight] = top.find((/** @type {any[]} */ [pos]) => pos < last - 1) ?? [0, 0, "", 0];
    if (weight > most) [best, most] = [at, weight];
  }
  return best;
}

/** The likeliest word that a row reads, but for itself and the first token. @param {number[]} weights @returns {number} */
const readMost = (weights) => weights.slice(0, -1).reduce((best, weight, index) => (index > 0 && (best === 0 || weight > weights[best]) ? index : best), 0);

const word = (/** @type {any} */ result) => result.tokens[readMost(result.weights.at(-1))].trim();

/** @type {Lesson} */
export const attention = {
  id: "attention",
  isAboutMeaning: true,
  took: (result) => `${legible(result.tokens.at(-1))} read ${legible(result.tokens[readMost(result.weights.at(-1))])} with ${percent(result.weights.at(-1)[readMost(result.weights.at(-1))])}`,
  title: "Where it looks",
  points: ["A query asks, keys answer, values tell.", "A weight for each earlier token; they add up to 1.", "Later tokens are masked: they are not written yet."],
  scene: html`<p>“${PROMPT}” – and now the next word. To choose it, the newest token <q class="mono">it</q> looks back over the text: not at all words alike.</p>`,
  predict: {
    ask: html`At which word will <q class="mono">it</q> look most?`,
    options: [["cat", "cat"], ["mat", "mat"], ["because", "because"], ["on", "on"]],
    answer: word,
    explain: (result) => html`This head gives <q class="mono">${word(result)}</q> ${percent(result.weights.at(-1)[readMost(result.weights.at(-1))])} of its attention. Other heads look elsewhere: the model has
      ${" "}${result.layers} layers with ${result.heads} heads each, and each has learned what it looks for.`,
  },
  text: html`<p>
      How it is done: each token has three rows of numbers. Its <b>query</b> says what it looks for. Its <b>key</b> says what it is. Its <b>value</b> is what it has to tell. The
      query of the newest token is multiplied with the key of each token before it: a large product is a good fit (the root in the formula only keeps products small). <b>Softmax</b> turns the products into weights
      that add up to 1. What comes out is the values, mixed by these weights.
    </p>
    <p>One such look is a <b>head</b>. A <b>layer</b> has several heads, and a model has many layers on top of each other. Nobody can look at a token that is not written yet, so half of
      the square stays empty: the <b>causal mask</b>.</p>`,
  goOn: ["generate", "shows this for each token of a text of yours, by layer and head."],
  action: "Run it on this engine",
  async run(session) {
    const ran = await runText(session, "/v1/completions", { prompt: PROMPT, max_tokens: 1, temperature: 0, ignore_eos: true });
    const name = encodeURI(ran.req);
    const last = ran.promptTok - 1;
    const [layer, head] = await lookingHead(session, `${name}/${last}`, last);
    const short = (/** @type {number[]} */ row) => row.map((value) => Number(value.toPrecision(3)));
    /** @type {any} */
    const result = { layer, head, tokens: ran.prompt, weights: [], queries: [] };
    for (let pos = 0; pos <= last; pos++) {
      const look = await session.api.get(`/v1/attn/${name}/${pos}?layer=${layer}&head=${head}&top=${Math.max(1, pos)}&numbers=1`);
      const weights = Array.from({ length: pos + 1 }, () => 0);
      weights[0] = look.sink;
      for (const [at, , , weight] of look.top) weights[at] = weight;
      result.weights.push(short(weights));
      result.queries.push(short(look.query));
      if (pos === last) Object.assign(result, { keys: look.keys.map(short), values: look.values.map(short), scale: look.scale, layers: look.n_layers, heads: look.n_heads });
    }
    return result;
  },
  Show: ({ result, plays, onEnd }) => html`<${Film} frames=${result.tokens.length} plays=${plays} onEnd=${onEnd}
    says=${(/** @type {number} */ frame) => `token ${frame} of ${result.tokens.length}`} lasts=${() => 700}>
    ${(/** @type {number} */ frame) => html`<${Head} result=${result} shown=${frame} />`}
  <//>`,
  check: {
    ask: "Why is the upper right half of the square empty?",
    options: [["later", "tokens there come later: nobody can read them yet"], ["small", "the weights there are too small to see"], ["cut", "the picture leaves them out"]],
    answer: (result) => (result.weights.every((/** @type {number[]} */ row, /** @type {number} */ index) => row.length === index + 1) ? "later" : "none"),
    explain: (result) => html`Row by row: the first token reads itself alone, the second one two tokens, the last one all <b>${result.tokens.length}</b>. This is why what was worked out about
      earlier tokens stays true when a new one comes, and can be kept.`,
  },
};

const LABEL = 92; // pixels: tokens beside the rows
const TOP = 84; // tokens above the columns, upright

/** The triangle of weights, and the formula over the numbers of one row. @param {{result: any, shown: number}} props `shown`: rows */
function Head({ result, shown }) {
  const asTable = useAsTable();
  const pointed = useSignal(-1); // a cell of the triangle
  const size = result.tokens.length;
  const [row, column] = pointed.value >= 0 ? [Math.floor(pointed.value / size), pointed.value % size] : [Math.max(0, shown - 1), -1];
  const cell = (/** @type {number} */ width) => Math.min(44, Math.floor((width - LABEL - 2) / size));
  const side = useSignal(30);
  const draw = (/** @type {Surface} */ { ctx, width, palette }) => {
    const each = cell(width);
    side.value = each;
    ctx.font = `14px ${palette.mono}`;
    ctx.textBaseline = "middle";
    result.tokens.forEach((/** @type {string} */ text, /** @type {number} */ index) => {
      const middle = index * each + each / 2;
      ctx.fillStyle = index === row ? palette.ink : palette.ink2;
      ctx.fillText(legible(text).slice(0, 9), 0, TOP + middle, LABEL - 8);
      ctx.save();
      ctx.translate(LABEL + middle, TOP - 6);
      ctx.rotate(-Math.PI / 2);
      ctx.fillStyle = index === column ? palette.ink : palette.ink2;
      ctx.fillText(legible(text).slice(0, 9), 0, 0, TOP - 8);
      ctx.restore();
    });
    for (let y = 0; y < size; y++) {
      for (let x = 0; x < size; x++) {
        const [left, top] = [LABEL + x * each, TOP + y * each];
        if (x > y) {
          ctx.fillStyle = palette.line2; // masked: a dot
          ctx.fillRect(left + each / 2 - 1, top + each / 2 - 1, 2, 2);
          continue;
        }
        ctx.fillStyle = palette.line;
        ctx.fillRect(left + 1, top + 1, each - 2, each - 2);
        if (y >= shown) continue;
        ctx.globalAlpha = Math.sqrt(result.weights[y][x]);
        ctx.fillStyle = palette.sun;
        ctx.fillRect(left + 1, top + 1, each - 2, each - 2);
        ctx.globalAlpha = 1;
      }
    }
    ctx.strokeStyle = palette.ink;
    ctx.lineWidth = 1.5;
    ctx.strokeRect(LABEL + 0.5, TOP + row * each + 0.5, (row + 1) * each - 1, each - 1);
  };
  const says = (/** @type {number} */ index) => {
    const [y, x] = [Math.floor(index / size), index % size];
    const [from, to] = [legible(result.tokens[y]), legible(result.tokens[x])];
    return x > y ? `${from} cannot read ${to}: it comes later` : y >= shown ? `${from} has not looked yet` : `${from} reads ${to} with ${percent(result.weights[y][x])}`;
  };
  return html`<div class="head-picture">
    <figure>
      <figcaption>Weights <span class="dim">who reads whom</span>
        <button class="quiet" aria-pressed=${asTable.value} onClick=${() => (asTable.value = !asTable.value)}>${asTable.value ? "picture" : "table"}</button></figcaption>
      <p class="small dim">A row is a token that looks, a column one that is read. The deeper the colour, the more.</p>
      <${Picture}
        label=${`Attention of one head: ${size} tokens, each reads itself and those before it.`}
        draw=${draw}
        inputs=${[result, shown, row, column]}
        height=${(/** @type {number} */ width) => TOP + size * cell(width) + 2}
        asTable=${asTable}
        onHover=${(/** @type {number} */ index) => (pointed.value = index)}
        cells=${/** @type {Cells} */ ({
          count: size * size,
          columns: size,
          describe: says,
          rect: (index) => ({ x: LABEL + (index % size) * side.value, y: TOP + Math.floor(index / size) * side.value, width: side.value, height: side.value }),
          hit: (x, y) => {
            const [across, down] = [Math.floor((x - LABEL) / side.value), Math.floor((y - TOP) / side.value)];
            return across >= 0 && down >= 0 && across < size && down < size ? down * size + across : -1;
          },
          choose: (index) => (pointed.value = index),
        })}
        twin=${{
          columns: ["reads", ...result.tokens.map(legible)],
          rows: () => result.weights.map((/** @type {number[]} */ weights, /** @type {number} */ index) => [legible(result.tokens[index]), ...result.tokens.map((/** @type {string} */ _, /** @type {number} */ at) => (at > index ? "–" : percent(weights[at])))]),
        }}
      />
      <p class="small dim">Dots: not written yet. Point at a cell, or go there with the arrow keys. This is head ${result.head} of layer ${result.layer}.</p>
    </figure>
    <${Formula} result=${result} row=${row} column=${column} />
  </div>`;
}

/** softmax(q·Kᵀ/√d)·V for one row, with its numbers. @param {{result: any, row: number, column: number}} props */
function Formula({ result, row, column }) {
  const weights = result.weights[row];
  const query = result.queries[row];
  const dot = (/** @type {number[]} */ key) => key.reduce((sum, value, index) => sum + value * query[index], 0) * result.scale;
  const output = useMemo(
    () => query.map((/** @type {number} */ _, /** @type {number} */ index) => weights.reduce((/** @type {number} */ sum, /** @type {number} */ weight, /** @type {number} */ at) => sum + weight * result.values[at][index], 0)),
    [result, row],
  );
  return html`<div class="head-formula">
    <p class="formula-line mono">softmax(<b class="of-q">q</b>·<b class="of-k">K</b>ᵀ / √${query.length})·<b class="of-v">V</b></p>
    <table>
      <caption>How the weights of <q class="mono">${legible(result.tokens[row])}</q> come about: part 3 explains it</caption>
      <thead><tr><th scope="col">reads</th><th scope="col" class="of-k">key</th><th scope="col" class="number">fit</th><th scope="col" class="wide">weight</th><th scope="col" class="of-v">value</th></tr></thead>
      <tbody>
        <tr class="apart"><th scope="row" class="of-q">query</th><td colspan="4"><${Numbers} row=${query} says="query" /></td></tr>
        ${weights.map((/** @type {number} */ weight, /** @type {number} */ at) => html`<tr key=${at} class=${at === column ? "on" : ""}>
          <th scope="row" class="mono">${legible(result.tokens[at])}</th>
          <td><${Numbers} row=${result.keys[at]} says="key" /></td>
          <td class="number">${digits(dot(result.keys[at]))}</td>
          <td class="wide"><span><span class="bar sun"><i style=${{ width: `${100 * weight}%` }}></i></span><small>${percent(weight)}</small></span></td>
          <td><${Numbers} row=${result.values[at]} says="value" /></td>
        </tr>`)}
        <tr class="apart"><th scope="row">output</th><td colspan="4"><${Numbers} row=${output} says="output: the values, mixed by the weights" /></td></tr>
      </tbody>
    </table>
    <p class="small dim">Each strip is a row of real numbers: ${" "}<i class="plus"></i> above zero, <i class="minus"></i> below, the deeper the larger.</p>
  </div>`;
}

/** Numbers as a strip of colour. @param {{row: number[], says: string}} props */
function Numbers({ row, says }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const { canvas, tall } = useCanvas({
    box,
    height: 20,
    inputs: [row],
    draw({ ctx, width, height, palette }) {
      const most = Math.max(...row.map(Math.abs), 1e-9);
      const each = width / row.length;
      row.forEach((value, index) => {
        ctx.globalAlpha = Math.sqrt(Math.abs(value) / most);
        ctx.fillStyle = value >= 0 ? hue(palette, 0) : hue(palette, 1);
        ctx.fillRect(index * each, 0, each + 0.3, height);
      });
      ctx.globalAlpha = 1;
    },
  });
  return html`<span class="numbers" ref=${box} data-tip=${`${says}: ${row.slice(0, 4).map(digits).join(", ")} … ${row.length} numbers`}><canvas ref=${canvas} style=${{ width: "100%", height: `${tall}px` }} aria-hidden="true"></canvas></span>`;
}
