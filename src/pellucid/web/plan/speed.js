// @ts-check
// What the workload takes in time and money, by formula.

import { html } from "../html.js";
import { digits, duration } from "../parts/format.js";
import { Fact, Facts } from "../parts/numbers.js";
import { Panel } from "../parts/panel.js";
import { numberOf, originOf } from "./state.js";

/** @param {{state: import("./state.js").PlanState}} props */
export function Speed({ state }) {
  const estimate = /** @type {import("./state.js").Estimate} */ (state.estimate.value);
  const get = (/** @type {string} */ name) => /** @type {import("./state.js").Estimated} */ (numberOf(estimate, name));
  const time = (/** @type {string} */ label, /** @type {string} */ name) => {
    const [value, unit] = duration(get(name).value * 1e6);
    return html`<${Fact} label=${label} value=${value} unit=${unit} ...${originOf(get(name))} />`;
  };
  const price = numberOf(estimate, "price_per_million_tokens");
  return html`<${Panel} title="Time and cost" about="the fastest that the machine's ceilings allow, no queue">
    <${Facts}>
      ${time("first token", "first_token_seconds")} ${time("each token", "decode_seconds")} ${time("whole answer", "request_seconds")}
      <${Fact} label="throughput" value=${digits(get("tokens_per_second").value)} unit="tokens/s" ...${originOf(get("tokens_per_second"))} />
      ${price && html`<${Fact} label="a million tokens" value=${digits(price.value)} unit="at the price an hour" ...${originOf(price)} />`}
      <${Fact} label="tokens passed, an answer" value=${digits(get("cached_token_passes").value)} unit=${`without a cache ${digits(get("naive_token_passes").value)}`} ...${originOf(get("cached_token_passes"))} />
    <//>
  <//>`;
}
