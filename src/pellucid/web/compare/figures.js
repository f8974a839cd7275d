// @ts-check
// The arms side by side: figures with their origins, the explanation that they give, and curves over the tokens made.

import * as formulas from "../formulas.js";
import { hueVariable } from "../draw/hues.js";
import { Lines } from "../draw/lines.js";
import { html } from "../html.js";
import { counted, FigureTable, measured } from "../parts/figures.js";
import { count, digits, inBytes, inPrefix, inTime, percent } from "../parts/format.js";
import { Badge } from "../parts/numbers.js";
import { Empty, Panel, Why } from "../parts/panel.js";

/** @type {Record<string, string>} */
const NAMES = { cached: "with cache", naive: "without", one: "one by one", many: "together" };

/** @param {string} arm */
export const nameOf = (arm) => NAMES[arm] ?? arm;

/** @param {number} value bytes */
const orNothing = (value) => (value === 0 ? "nothing" : inBytes(value));

/** @param {{state: CompareState}} props */
export function Figures({ state }) {
  const run = state.latest;
  if (!run || run.arms.every((arm) => arm.tokens.length === 0))
    return html`<${Panel} title="What each took"><${Empty}><p>
      Run it: tokens passed, operations, bytes and time of each way are counted and measured while this engine really does the work.
    </p><//><//>`;
  const about = run.isRunning ? "so far" : run.end ? `${run.promptTok} prompt tokens, ${run.maxTokens} new ones${run.requests > 1 ? `, ${run.requests} requests` : ""}` : "stopped early";
  return html`<${Panel} title="What each took" about=${about}>
    <${FigureTable} columns=${run.arms.map((arm) => ({ name: nameOf(arm.name), hue: hueVariable(arm), of: arm }))} rows=${rowsOf(run)} />
    ${run.end && html`<${Verdict} run=${run} />`}
  <//>`;
}

/** @param {Comparison} run @returns {import("../parts/figures.js").Figure[]} */
function rowsOf(run) {
  /** @param {keyof Arm} column @param {(value: number) => string} format */
  const last = (column, format) => (/** @type {any} */ arm) => (arm.tokens.length ? format(arm[column].at(-1)) : undefined);
  return [
    ["tokens made", last("tokens", count), counted("cmp.n_tok")],
    [
      "tokens passed",
      last("passed", count),
      (arm) => ({
        ...counted("cmp.pass_tok", run.requests > 1 ? `Of each of the ${run.requests} requests.` : undefined),
        formula: arm.useKvCache ? formulas.passesCached : formulas.passesNaive,
        inputs: { N: run.promptTok, T: (arm.tokens.at(-1) ?? 0) / run.requests },
      }),
    ],
    ["operations", last("flops", inPrefix), { ...counted("cmp.flops: of all its steps"), formula: formulas.forwardFlops }],
    ["bytes moved", last("moved", inBytes), counted("cmp.moved_bytes: weights, keys and values read and written")],
    ["time", last("timeUs", inTime), measured("cmp.t_us: of its own steps")],
    ["time of a token", (arm) => (arm.tokens.length ? inTime(arm.timeUs.at(-1) / arm.tokens.at(-1)) : undefined), measured("cmp.t_us / cmp.n_tok")],
    [
      "kept between steps",
      (arm) => (arm.tokens.length ? orNothing(Math.max(...arm.heldBytes)) : undefined),
      (arm) => counted("cmp.kv_held_bytes, the most: whole blocks", arm.useKvCache ? undefined : "Keys and values of a layer live only while that layer is computed."),
    ],
  ];
}

/** @param {{run: Comparison}} props */
function Verdict({ run }) {
  const { end } = run;
  const arm = (/** @type {string} */ name) => end.arms[name];
  const all = Math.min(...run.arms.map((each) => end.arms[each.name].n_tok));
  const same = html`<p class="same small">
    <span class=${end.first_diff === null ? "chip same-all" : "chip trouble"}>${end.first_diff === null ? "the same text" : `parts at token ${end.first_diff + 1}`}</span>
    ${count(end.same_tok)} of ${count(all)} tokens are the same<${Badge} of="same tokens" kind="C" from="cmp.end.same_tok" />; log-probabilities of these differ by at most ${end.dlogprob_max === 0 ? "0" : end.dlogprob_max.toPrecision(2)}<${Badge}
      of="largest difference of log-probabilities" kind="M" from="cmp.end.dlogprob_max" />
  </p>`;
  if (run.kind === "cache") {
    const [c, n] = [arm("cached"), arm("naive")];
    return html`${same}<${Why} lead="A cache costs memory and saves compute.">
      It kept ${inBytes(c.kv_held_peak_bytes)} where the other way kept ${orNothing(n.kv_held_peak_bytes)}. In return ${count(c.pass_tok)} tokens
      passed through the model and not ${count(n.pass_tok)}: ${digits(n.pass_tok / c.pass_tok)} times fewer, and ${digits(n.flops / c.flops)} times fewer operations.
      Here that is ${inTime(c.t_us)} and not ${inTime(n.t_us)}${n.t_us > c.t_us ? `, ${digits(n.t_us / c.t_us)} times faster` : ""}. Each step without it takes longer than the one before.
    <//>`;
  }
  if (run.kind === "kv_dtype") {
    const [first, ...others] = run.arms;
    return html`${same}<${Why} lead="Fewer bits a number, scales included.">
      ${first.name} keeps ${inBytes(arm(first.name).kv_held_peak_bytes)}${others.map((each) => `; ${each.name} ${inBytes(arm(each.name).kv_held_peak_bytes)}, ${percent(arm(each.name).kv_held_peak_bytes / arm(first.name).kv_held_peak_bytes)}`)}.
      Scales cost a little, so int8 is not quite half. A format that rounds may choose another token somewhere; from there on the texts go their own ways.
    <//>`;
  }
  const [o, m] = [arm("one"), arm("many")];
  return html`${same}<${Why} lead="One pass reads the weights once, for everybody in it.">
    ${run.requests} answers together moved ${inBytes(m.moved_bytes)} and not ${inBytes(o.moved_bytes)}, and took ${inTime(m.t_us)} and not ${inTime(o.t_us)}: ${digits(o.t_us / m.t_us)} times the tokens a second. The operations are the same, ${inPrefix(m.flops)}. Keys and values are each request's own, so together they
    take ${inBytes(m.kv_held_peak_bytes)} and not ${inBytes(o.kv_held_peak_bytes)}.
  <//>`;
}

/**
 * What each arm took, over the tokens that it made.
 * @param {{state: CompareState, asTable: {value: boolean}}} props
 */
export function Curves({ state, asTable }) {
  const run = state.latest;
  if (!run) return null;
  const isBatch = run.kind === "batch";
  /** @type {[string, "timeUs" | "stepUs" | "passed" | "flops" | "heldBytes", (value: number) => string, number?][]} */
  const curves = [
    isBatch ? ["time so far", "timeUs", inTime] : ["time of each token", "stepUs", inTime],
    ["tokens passed through the model, so far", "passed", count],
    ["operations so far", "flops", inPrefix],
    ["keys and values kept after the step", "heldBytes", (value) => (value ? inBytes(value) : "0"), 1024],
  ];
  const choose = (/** @type {number} */ at) => (state.at.value = at);
  return html`<${Panel} title="Curves" about="choose a point to look at that token; t shows tables">
    <div class="curves">
      ${curves.map(([title, column, format, base]) => {
        const lines = run.arms.filter(({ tokens }) => tokens.length > 0).map((arm) => {
          // The last token ends the request, and its blocks are freed.
          const end = column === "heldBytes" && run.end && arm.tokens.length > 1 ? -1 : undefined;
          return { name: nameOf(arm.name), hue: arm.number, xs: arm.tokens.slice(0, end), ys: arm[column].slice(0, end) };
        });
        return html`<div key=${column}>
          <h3>${title}</h3>
          <${Lines} across="tokens" label=${`${title}, by tokens made.`} lines=${lines} format=${format} base=${base} at=${state.at.value} onChoose=${choose} asTable=${asTable} />
        </div>`;
      })}
    </div>
  <//>`;
}
