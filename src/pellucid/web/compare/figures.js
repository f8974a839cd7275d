// @ts-check
// The arms side by side in figures, each with its origin, and the explanation that the figures give.

import * as formulas from "../formulas.js";
import { html } from "../html.js";
import { count, digits, inBytes, inTime, percent, scaled } from "../parts/format.js";
import { Badge } from "../parts/numbers.js";
import { Empty, Panel, Why } from "../parts/panel.js";

/** @type {Record<string, string>} */
const NAMES = { cached: "with cache", naive: "without", one: "one by one", many: "together" };

/** @param {string} arm */
export const nameOf = (arm) => NAMES[arm] ?? arm;

/** @param {{state: import("./state.js").CompareState}} props */
export function Figures({ state }) {
  const run = state.run;
  if (!run || run.arms.every((arm) => arm.tokens.length === 0))
    return html`<${Panel} title="What each took"><${Empty}><p>
      Run it: tokens passed, operations, bytes and time of each way are counted and measured while this engine really does the work.
    </p><//><//>`;
  const rows = rowsOf(run);
  return html`<${Panel} title="What each took" about=${run.isRunning ? "so far" : run.end ? `${run.promptTok} prompt tokens, ${run.maxTokens} new ones${run.requests > 1 ? `, ${run.requests} requests` : ""}` : "stopped early"}>
    <table class="figures">
      <thead>
        <tr><th scope="col"><span class="spoken">figure</span></th>${run.arms.map((arm) => html`<th scope="col" class="number"><i style=${{ "--c": `var(--o${arm.number + 1})` }}></i>${nameOf(arm.name)}</th>`)}</tr>
      </thead>
      <tbody>
        ${rows.map(
          (row) => html`<tr>
            <th scope="row">${row.label}</th>
            ${run.arms.map((arm) => html`<td class="number">${row.value(arm)}${row.value(arm) !== "–" && html`<${Badge} of=${`${row.label}, ${nameOf(arm.name)}`} ...${row.origin(arm)} />`}</td>`)}
          </tr>`,
        )}
      </tbody>
    </table>
    ${run.end && html`<${Verdict} run=${run} />`}
  <//>`;
}

/**
 * @param {import("./run.js").Run} run
 * @returns {{label: string, value: (arm: import("./run.js").Arm) => string, origin: (arm: import("./run.js").Arm) => import("../parts/numbers.js").Origin}[]}
 */
function rowsOf(run) {
  /** @param {number[]} column */
  const last = (column) => column.at(-1);
  /**
   * @param {(arm: import("./run.js").Arm) => number | undefined} get
   * @param {(value: number) => string} format
   */
  const shown = (get, format) => (/** @type {import("./run.js").Arm} */ arm) => {
    const value = get(arm);
    return value === undefined ? "–" : format(value);
  };
  /** @param {string} from @returns {() => import("../parts/numbers.js").Origin} */
  const counted = (from) => () => ({ kind: "C", from });
  return [
    { label: "tokens made", value: shown((arm) => last(arm.tokens), count), origin: counted("cmp.n_tok") },
    {
      label: "tokens passed",
      value: shown((arm) => last(arm.passed), count),
      origin: (arm) => ({
        kind: "C",
        from: "cmp.pass_tok",
        formula: arm.useKvCache ? formulas.passesCached : formulas.passesNaive,
        inputs: { N: run.promptTok, T: (last(arm.tokens) ?? 0) / run.requests },
        note: run.requests > 1 ? `Of each of the ${run.requests} requests.` : undefined,
      }),
    },
    { label: "operations", value: shown((arm) => last(arm.flops), (value) => scaled(value).join(" ")), origin: () => ({ kind: "C", from: "cmp.flops: of all its steps", formula: formulas.forwardFlops }) },
    { label: "bytes moved", value: shown((arm) => last(arm.moved), inBytes), origin: counted("cmp.moved_bytes: weights, keys and values read and written") },
    { label: "time", value: shown((arm) => last(arm.timeUs), inTime), origin: () => ({ kind: "M", from: "cmp.t_us: of its own steps" }) },
    {
      label: "time of a token",
      value: shown((arm) => (arm.tokens.length > 0 ? /** @type {number} */ (last(arm.timeUs)) / /** @type {number} */ (last(arm.tokens)) : undefined), inTime),
      origin: () => ({ kind: "M", from: "cmp.t_us / cmp.n_tok" }),
    },
    { label: "kept between steps", value: shown((arm) => (arm.tokens.length > 0 ? Math.max(...arm.heldBytes) : undefined), (value) => (value === 0 ? "nothing" : inBytes(value))), origin: (arm) => ({ kind: "C", from: "cmp.kv_held_bytes, the most: whole blocks", note: arm.useKvCache ? undefined : "Keys and values of a layer live only while that layer is computed." }) },
  ];
}

/** @param {{run: import("./run.js").Run}} props */
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
      It kept ${inBytes(c.kv_held_peak_bytes)} where the other way kept ${n.kv_held_peak_bytes === 0 ? "nothing" : inBytes(n.kv_held_peak_bytes)}. In return ${count(c.pass_tok)} tokens
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
    ${run.requests} answers together moved ${inBytes(m.moved_bytes)} and not ${inBytes(o.moved_bytes)}, and took ${inTime(m.t_us)} and not ${inTime(o.t_us)}: ${digits(o.t_us / m.t_us)} times the tokens a second. The operations are the same, ${scaled(m.flops).join(" ")}. Keys and values are each request's own, so together they
    take ${inBytes(m.kv_held_peak_bytes)} and not ${inBytes(o.kv_held_peak_bytes)}.
  <//>`;
}
