// @ts-check
// The figures of a load: rate, percentiles, goodput and cost, static beside continuous.

import { costPerMillion } from "../formulas.js";
import { html } from "../html.js";
import { count, digits, inTime, percent } from "../parts/format.js";
import { Badge } from "../parts/numbers.js";
import { Panel, Why } from "../parts/panel.js";
import { emptySeats } from "./run.js";

/** @param {{state: import("./state.js").ServeState}} props */
export function Figures({ state }) {
  state.version.value;
  const loads = /** @type {import("./run.js").Load[]} */ ([state.loads.static, state.loads.continuous].filter((load) => load?.end));
  if (loads.length === 0) return null;
  const seconds = (/** @type {string} */ spread, /** @type {string} */ which) => (/** @type {any} */ end) => (end[`${spread}_seconds`] ? inTime(end[`${spread}_seconds`][which] * 1e6) : "–");
  const price = state.price.value;
  /** @type {{label: string, value: (end: any, load: import("./run.js").Load) => string, origin: (end: any) => import("../parts/numbers.js").Origin}[]} */
  const rows = [
    { label: "whole answers", value: (end, load) => `${count(end.completed)} of ${load.lanes.length}`, origin: () => ({ kind: "C", from: "load.end.completed" }) },
    { label: "all served after", value: (end) => inTime(end.seconds * 1e6), origin: () => ({ kind: "M", from: "load.end.seconds" }) },
    { label: "output", value: (end) => `${digits(end.output_tok_s)} tokens/s`, origin: () => ({ kind: "M", from: "load.end.output_tok / seconds" }) },
    { label: "first token, p50", value: seconds("first_token", "p50"), origin: () => ({ kind: "M", from: "load.end.first_token_seconds: from the arrival on" }) },
    { label: "first token, p95", value: seconds("first_token", "p95"), origin: () => ({ kind: "M", from: "load.end.first_token_seconds" }) },
    { label: "between tokens, p50", value: seconds("inter_token", "p50"), origin: () => ({ kind: "M", from: "load.end.inter_token_seconds" }) },
    { label: "between tokens, p99", value: seconds("inter_token", "p99"), origin: () => ({ kind: "M", from: "load.end.inter_token_seconds" }) },
    { label: "whole answer, p95", value: seconds("end_to_end", "p95"), origin: () => ({ kind: "M", from: "load.end.end_to_end_seconds" }) },
    { label: "goodput", value: (end, load) => `${digits(end.goodput_per_second)} /s, ${count(end.good)} of ${load.lanes.length}`, origin: () => ({ kind: "M", from: "load.end.good: requests within both limits", note: `First token within ${state.firstSlo.value} s, ${state.betweenSlo.value} s between tokens on average, as they were when it was sent.` }) },
    { label: "prompt from the cache", value: (end) => percent(end.prompt_tok ? end.cached_tok / end.prompt_tok : 0), origin: () => ({ kind: "C", from: "load.end.cached_tok / prompt_tok" }) },
    { label: "a million tokens", value: (end) => (end.output_tok_s > 0 ? digits(costPerMillion.of({ price, rate: end.output_tok_s })) : "–"), origin: (end) => ({ kind: "E", formula: costPerMillion, inputs: { price, rate: end.output_tok_s } }) },
  ];
  return html`<${Panel} title="What the load got" about="times count from the arrival of a request">
    <table class="figures">
      <thead><tr><th scope="col"><span class="spoken">figure</span></th>${loads.map((load) => html`<th scope="col" class="number">${load.discipline}</th>`)}</tr></thead>
      <tbody>
        ${rows.map((row) => html`<tr><th scope="row">${row.label}</th>${loads.map((load) => html`<td class="number">${row.value(load.end, load)}<${Badge} of=${`${row.label}, ${load.discipline}`} ...${row.origin(load.end)} /></td>`)}</tr>`)}
      </tbody>
    </table>
    <${Verdict} state=${state} />
  <//>`;
}

/** @param {{state: import("./state.js").ServeState}} props */
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
