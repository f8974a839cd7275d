// @ts-check
// Compare: the same work done two ways by this engine, really run: with and without the cache, in three formats, alone and together.

import { compareState, KINDS, Loops, spreadOf, timeSentence } from "../compare/loops.js";
import { hueVariable } from "../draw/hues.js";
import { Lines } from "../draw/lines.js";
import { useAsTable } from "../draw/picture.js";
import * as formulas from "../formulas.js";
import { html } from "../html.js";
import { count, counted, digits, FigureTable, inBytes, inPrefix, inTime, measured, median, percent, several } from "../parts/numbers.js";
import { Choice, Empty, focusOn, NeedsServer, Panel, press, Prompt, Refused, Slider, submits, tableKey, useKeys, Why } from "../parts/panel.js";
import { Replay } from "../parts/replay.js";

/** @type {Record<string, string>} */
const ABOUT = {
  cache: "the same prompt twice on engines of their own over the same weights: one keeps keys and values, one computes them again for each token",
  kv_dtype: "the same prompt with the KV cache in three formats, and what each makes of its text; a long text of yours says more",
  batch: "the same requests one after the other, then together",
};

/** @param {{session: Session}} props */
export function View({ session }) {
  const state = compareState(session);
  const asTable = useAsTable();
  state.version.value;
  useKeys("Compare", [
    press("r", "run", "#compare-run, #replay"),
    { keys: ["k"], says: "the next kind of comparison", run: state.nextKind },
    focusOn("/", "to the prompt", "compare-prompt"),
    { keys: [","], says: "a token back", run: () => state.move(-1) },
    { keys: ["."], says: "a token on", run: () => state.move(1) },
    { keys: ["Escape"], says: "the end, or what runs", run: () => (state.at.value = -1) },
    tableKey(asTable),
  ]);
  return html`
    <${Ask} session=${session} state=${state} />
    <${Loops} session=${session} state=${state} />
    <${Figures} state=${state} />
    <${Curves} state=${state} asTable=${asTable} />
  `;
}

/** What is compared. Running it runs all arms on this engine. @param {{session: Session, state: CompareState}} props */
function Ask({ session, state }) {
  const { kind, stop } = state;
  if (session.source.isRecording) {
    const runs = session.recorded.runs("/v1/compare", (body) => KINDS.some(([name]) => name === body.kind));
    const nameOf = (/** @type {any} */ body) => KINDS.find(([name]) => name === body.kind)?.[1];
    return html`<${Panel} title="The comparison" about=${ABOUT[kind.value]}><${Replay} session=${session} runs=${runs} nameOf=${nameOf} state=${state} what="A comparison" /><//>`;
  }
  const run = () => session.source.canRun && state.start();
  return html`<${Panel} title="The comparison" about=${ABOUT[kind.value]}>
    <form class="compare-ask" onSubmit=${submits(run)}>
      <${Choice} label="compare" of=${kind} options=${KINDS} onChoose=${() => (state.at.value = -1)} />
      <${Prompt} id="compare-prompt" rows=${1} of=${state.prompt} onEnter=${run} />
      <${Slider} label="tokens" min=${4} max=${256} step=${4} of=${state.tokens} />
      ${kind.value === "batch" && html`<${Slider} label="requests" min=${2} max=${32} of=${state.batch} />`}
      ${stop.value
        ? html`<button type="button" onClick=${() => stop.value?.abort()}>Stop</button>`
        : html`<button id="compare-run" class="primary" disabled=${!session.source.canRun}>Run ${kind.value === "kv_dtype" ? "all three" : "both"}</button>`}
    </form>
    <${NeedsServer} session=${session} what="a comparison" />
    <${Refused} problem=${state.problem.value} />
  <//>`;
}

/** @type {Record<string, string>} */
const NAMES = { cached: "with cache", naive: "without", one: "one by one", many: "together" };

/** @param {string} arm */
const nameOf = (arm) => NAMES[arm] ?? arm;

/** @param {number} value bytes */
const orNothing = (value) => (value === 0 ? "nothing" : inBytes(value));

/** @param {{state: CompareState}} props */
export function Figures({ state }) {
  const run = state.latest;
  if (!run || run.arms.every((arm) => arm.tokens.length === 0))
    return html`<${Panel} title="What each took"><${Empty}><p>
      Run it: tokens passed, operations, bytes and time of each way are counted and measured while this engine really does the work.
    </p><//><//>`;
  const about = run.isRunning ? "so far" : run.end ? `${several(run.promptTok, "prompt token")}, ${run.maxTokens} new${run.requests > 1 ? `, ${run.requests} requests` : ""}` : "stopped early";
  return html`<${Panel} title="What each took" about=${about}>
    <${FigureTable} columns=${run.arms.map((arm) => ({ name: nameOf(arm.name), hue: hueVariable(arm.number), of: arm }))} rows=${rowsOf(run)} />
    ${run.end && html`<${Verdict} run=${run} />`}
  <//>`;
}

/** @param {Comparison} run @returns {Figure[]} */
function rowsOf(run) {
  /** @param {keyof Arm} column @param {(value: number) => string} format */
  const last = (column, format) => (/** @type {any} */ arm) => (arm.tokens.length ? format(arm[column].at(-1)) : undefined);
  const first = run.arms[0];
  const at = (/** @type {Arm} */ arm) => run.end?.arms[arm.name];
  const us = (/** @type {Arm} */ arm) => at(arm)?.t_us ?? arm.timeUs.at(-1);
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
    ["time", (arm) => (arm.tokens.length ? inTime(us(arm)) : undefined), measured("cmp.run.t_us, the median; before the end cmp.t_us of the first run")],
    ["time of a token", (arm) => (arm.tokens.length ? inTime(us(arm) / arm.tokens.at(-1)) : undefined), measured("time / cmp.n_tok")],
    ["times of its runs", (arm) => (arm.runsUs.length ? spreadOf(arm) : undefined), measured("cmp.run.t_us, the least and the most: the ways run in turn")],
    [
      "kept between steps",
      (arm) => (arm.tokens.length ? orNothing(Math.max(...arm.heldBytes)) : undefined),
      (arm) => counted("cmp.kv_held_bytes, the most: whole blocks", arm.useKvCache ? undefined : "Keys and values of a layer live only while that layer is computed."),
    ],
    ["tokens as in the first column", (arm) => (run.end && arm !== first ? `${count(at(arm).same_tok)} of ${count(Math.min(at(arm).n_tok, at(first).n_tok))}` : undefined), counted("cmp.end.same_tok")],
    ...(run.kind === "kv_dtype" ? rowsOfFormats(run) : []),
    ["log-probabilities of these apart", (arm) => (run.end && arm !== first ? (at(arm).dlogprob_max ? at(arm).dlogprob_max.toPrecision(2) : "0") : undefined), measured("cmp.end.dlogprob_max, the most")],
  ];
}

/** @param {Comparison} run @returns {Figure[]} */
function rowsOfFormats({ end }) {
  const at = (/** @type {Arm} */ arm) => end?.arms[arm.name];
  const read = (/** @type {Arm} */ arm) => `over ${several(at(arm)?.read_tok ?? 0, "token")} of the prompt and the first answer`;
  return [
    ["a token keeps", (arm) => end && inBytes(at(arm).kv_token_bytes), counted("cmp.end.kv_token_bytes: keys and values of all layers, scales included")],
    ["KL to f32, nats", (arm) => (at(arm)?.read_tok ? inNats(at(arm).kl_nats) : undefined), (arm) => measured("cmp.end.kl_nats: how far the distribution of the next token moves", `The mean ${read(arm)}.`)],
    ["likeliest token as with f32", (arm) => (at(arm)?.read_tok ? percent(at(arm).same_top) : undefined), (arm) => measured("cmp.end.same_top", `Its share ${read(arm)}.`)],
  ];
}

/** A divergence. @param {number} nats */
const inNats = (nats) => (nats < 1e-6 ? "< 0.000001" : digits(nats));

/** @param {{run: Comparison}} props */
function Verdict({ run }) {
  const { end } = run;
  const arm = (/** @type {string} */ name) => end.arms[name];
  const parts = run.arms.filter(({ name }) => typeof end.arms[name].first_diff === "number");
  const same = html`<p class="same small">${parts.length === 0
    ? html`<span class="chip same-all">the same text</span>`
    : parts.map(({ name }) => html`<span class="chip trouble">${nameOf(name)} parts at token ${end.arms[name].first_diff + 1}</span> `)}</p>`;
  if (run.kind === "cache") {
    const [c, n] = [arm("cached"), arm("naive")];
    return html`${same}<${Why} lead="A cache costs memory and saves compute.">
      It kept ${inBytes(c.kv_held_peak_bytes)} where the other way kept ${orNothing(n.kv_held_peak_bytes)}. In return ${count(c.pass_tok)} tokens
      passed through the model and not ${count(n.pass_tok)}: ${digits(n.pass_tok / c.pass_tok)} times fewer, and ${digits(n.flops / c.flops)} times fewer operations.
      Here that is ${timeSentence(run, 0, 1)}${growth(run)}
    <//>`;
  }
  if (run.kind === "kv_dtype") {
    const [first, ...others] = run.arms;
    return html`${same}<${Why} lead="Fewer bits a number, scales included.">
      ${first.name} keeps ${inBytes(arm(first.name).kv_held_peak_bytes)}${others.map((each) => `; ${each.name} ${inBytes(arm(each.name).kv_held_peak_bytes)}, ${percent(arm(each.name).kv_held_peak_bytes / arm(first.name).kv_held_peak_bytes)}`)}.
      Scales cost a little, so int8 is not quite half. ${lasting(run)}A format that rounds may choose another token somewhere; from there on the texts go their own ways.
    <//>`;
  }
  const [o, m] = [arm("one"), arm("many")];
  return html`${same}<${Why} lead="One pass reads the weights once, for everybody in it.">
    ${run.requests} answers together moved ${inBytes(m.moved_bytes)} and not ${inBytes(o.moved_bytes)}. They took ${timeSentence(run, 1, 0)} The operations are the same, ${inPrefix(m.flops)}. Keys and values are each request's own, so together they
    take ${inBytes(m.kv_held_peak_bytes)} and not ${inBytes(o.kv_held_peak_bytes)}.
  <//>`;
}

/** What the least format buys, and what it costs. @param {Comparison} run */
function lasting({ arms, end }) {
  const [first, ...others] = arms.map(({ name }) => ({ name, ...end.arms[name] }));
  const least = others.reduce((a, b) => (b.kv_token_bytes < a.kv_token_bytes ? b : a));
  const buys = `The memory of one token in ${first.name} holds ${digits(first.kv_token_bytes / least.kv_token_bytes)} in ${least.name}: so much longer can texts be. `;
  return least.read_tok ? `${buys}It costs ${inNats(least.kl_nats)} nats of KL to f32, where ${first.name} costs ${inNats(first.kl_nats)}. ` : buys;
}

/** How steps without the cache grew, if they did. @param {Comparison} run */
function growth({ arms: [cached, naive] }) {
  const sorted = cached.stepUs.slice(1).sort((a, b) => a - b);
  const at = (/** @type {number} */ share) => sorted[Math.floor(share * (sorted.length - 1))];
  const third = Math.ceil(naive.stepUs.length / 3);
  const [first, last] = [naive.stepUs.slice(0, third), naive.stepUs.slice(-third)].map(median);
  return sorted.length && last > first * (at(0.75) / at(0.25)) ? ` Without it a step grew from ${inTime(first)} to ${inTime(last)}.` : "";
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
    ["tokens passed so far", "passed", count],
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
