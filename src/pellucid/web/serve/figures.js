// @ts-check
// The figures of a load: rate, percentiles, goodput and cost, static beside continuous.

import { costPerMillion } from "../formulas.js";
import { html } from "../html.js";
import { counted, FigureTable, maybeTime, measured } from "../parts/figures.js";
import { count, digits, inTime, percent } from "../parts/format.js";
import { Panel, Why } from "../parts/panel.js";
import { emptySeats } from "./run.js";

/** @param {{state: ServeState}} props */
export function Figures({ state }) {
  state.version.value;
  const loads = [state.loads.static, state.loads.continuous].filter((load) => load?.end);
  if (loads.length === 0) return null;
  const { firstSlo, betweenSlo } = state;
  const price = state.price.value;
  /** @param {string} spread @param {string} which */
  const seconds = (spread, which) => (/** @type {Load} */ { end }) => maybeTime(end[`${spread}_seconds`] && end[`${spread}_seconds`][which] * 1e6);
  const goodput = `First token within ${firstSlo.value} s, ${betweenSlo.value} s between tokens on average, as they were when it was sent.`;
  /** @type {import("../parts/figures.js").Figure[]} */
  const rows = [
    ["whole answers", ({ end, lanes }) => `${count(end.completed)} of ${lanes.length}`, counted("load.end.completed")],
    ["all served after", ({ end }) => inTime(end.seconds * 1e6), measured("load.end.seconds")],
    ["output", ({ end }) => `${digits(end.output_tok_s)} tokens/s`, measured("load.end.output_tok / seconds")],
    ["first token, p50", seconds("first_token", "p50"), measured("load.end.first_token_seconds: from the arrival on")],
    ["first token, p95", seconds("first_token", "p95"), measured("load.end.first_token_seconds")],
    ["between tokens, p50", seconds("inter_token", "p50"), measured("load.end.inter_token_seconds")],
    ["between tokens, p99", seconds("inter_token", "p99"), measured("load.end.inter_token_seconds")],
    ["whole answer, p95", seconds("end_to_end", "p95"), measured("load.end.end_to_end_seconds")],
    ["goodput", ({ end, lanes }) => `${digits(end.goodput_per_second)} /s, ${count(end.good)} of ${lanes.length}`, measured("load.end.good: requests within both limits", goodput)],
    ["seats that stood empty", (load) => (load.discipline === "static" ? percent(emptySeats(load, state.seats.value)) : undefined), measured("1 − Σ (end − sent) / (seats · whole time) of load.req", "A seat of a static batch stays empty from the end of its answer to the end of the longest one.")],
    ["prompt from the cache", ({ end }) => percent(end.prompt_tok ? end.cached_tok / end.prompt_tok : 0), counted("load.end.cached_tok / prompt_tok")],
    ["a million tokens", ({ end }) => (end.output_tok_s > 0 ? digits(costPerMillion.of({ price, rate: end.output_tok_s })) : undefined), ({ end }) => ({ kind: "E", formula: costPerMillion, inputs: { price, rate: end.output_tok_s } })],
  ];
  return html`<${Panel} title="What the load got" about="times count from the arrival of a request">
    <${FigureTable} columns=${loads.map((load) => ({ name: load?.discipline ?? "", of: load }))} rows=${rows} />
    <${Verdict} state=${state} />
  <//>`;
}

/** @param {{state: ServeState}} props */
function Verdict({ state }) {
  const { static: fixed, continuous } = state.loads;
  if (fixed?.end?.first_token_seconds && continuous?.end?.first_token_seconds) {
    const [f, c] = [fixed.end, continuous.end];
    const isFaster = c.first_token_seconds.p50 < f.first_token_seconds.p50;
    return html`<${Why} lead=${isFaster ? "Continuous batching lets requests in as they come." : "Here continuous batching did not help."}>
      On the same arrivals half of the requests had their first token within ${inTime(c.first_token_seconds.p50 * 1e6)}, against ${inTime(f.first_token_seconds.p50 * 1e6)} with static batches
      of ${state.seats.value}, which wait until they are full and then for their slowest answer: ${percent(emptySeats(fixed, state.seats.value))} of their seats' time stood empty.
      Continuous, as many run at once as the engine has seats and blocks for. The last answer ended after ${inTime(c.seconds * 1e6)} and ${inTime(f.seconds * 1e6)}.
    <//>`;
  }
  const load = continuous?.end ? continuous : fixed;
  const failed = load?.lanes.find((lane) => lane.state === "failed");
  if (failed) return html`<${Why} trouble lead=${`Request ${failed.index + 1} did not end well.`}>${failed.message || "It was cancelled."}<//>`;
  return html`<${Why} lead="One discipline has run.">Send the load under both to see what it changes.<//>`;
}
