// @ts-check
// The server's estimate as the sliders ask for it, and what it says of memory, time and cost.

import { computed, effect, html, signal } from "../html.js";
import { Badge, count, digits, duration, Fact, Facts, inBytes, percent } from "../parts/numbers.js";
import { Panel, Why } from "../parts/panel.js";
import { messageOf } from "../state/api.js";

const PAUSE_MS = 120; // of a slider, before the server is asked

/** @param {Session} session */
export function planState(session) {
  return /** @type {ReturnType<typeof create>} */ (session.views.plan ??= create(session));
}

/** @param {Session} session */
function create(session) {
  const ask = {
    /** A known shape; "": the loaded model. */
    shape: signal(""),
    machine: signal("this"),
    /** "": as loaded. */
    quantization: signal(""),
    kv_cache_dtype: signal(""),
    prompt: signal(512),
    output: signal(128),
    batch: signal(8),
    price_per_hour: signal(1),
  };
  const estimate = signal(/** @type {Estimate | null} */ (null));
  const problem = signal("");
  const again = signal(0);
  const query = computed(() => {
    const words = new URLSearchParams();
    for (const [name, value] of Object.entries(ask)) {
      if (value.value !== "" && !(name === "price_per_hour" && value.value === 0)) words.set(name, String(value.value));
    }
    return words.toString();
  });
  let newest = 0; // question; answers to earlier ones are not shown
  let timer = /** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined);
  effect(() => {
    const words = query.value;
    again.value;
    if (!session.source.canRun) return; // it is asked when it answers again
    clearTimeout(timer);
    timer = setTimeout(async () => {
      newest += 1;
      const own = newest;
      try {
        const reply = await session.api.get(`/v1/estimate?${words}`);
        if (own !== newest) return;
        estimate.value = reply;
        problem.value = "";
      } catch (error) {
        if (own === newest) problem.value = messageOf(error);
      }
    }, PAUSE_MS);
  });
  return {
    ...ask,
    estimate,
    problem,
    retry: () => (again.value += 1),
    /** Whether it is this machine and the model that runs on it, so that measurements can be laid over. */
    isOwn: computed(() => ask.machine.value === "this" && ask.shape.value === "" && ask.quantization.value === "" && ask.kv_cache_dtype.value === ""),
  };
}

/**
 * A number by its name.
 * @param {Estimate} estimate
 * @param {string} name
 * @returns {Estimated | null}
 */
export const numberOf = (estimate, name) => estimate.numbers.find((each) => each.name === name) ?? null;

/**
 * Where an estimated number comes from, for its badge.
 * @param {Estimated} number
 * @returns {Origin}
 */
const originOf = ({ name, provenance, formula, inputs }) => ({
  kind: provenance,
  from: `/v1/estimate: ${name}`,
  formula: { text: formula, inputs: Object.fromEntries(Object.keys(inputs).map((key) => [key, key.replaceAll("_", " ")])) },
  inputs,
});

/** @param {{state: PlanState}} props */
export function Memory({ state }) {
  const estimate = /** @type {Estimate} */ (state.estimate.value);
  const get = (/** @type {string} */ name) => /** @type {Estimated} */ (numberOf(estimate, name));
  const [weights, cache] = [get("weight_bytes"), get("kv_bytes_batch")];
  const memory = estimate.machine.memory_bytes;
  const used = weights.value + cache.value;
  const whole = Math.max(memory, used);
  const fits = used <= memory;
  const share = (/** @type {number} */ bytes) => `${(bytes / whole) * 100}%`;
  const perRequest = get("kv_bytes_per_request");
  const shown = get("requests_that_fit");
  return html`<${Panel} title="Memory" about=${`${inBytes(memory)} on ${estimate.machine.name}`}>
    <div class=${`memory-bar${fits ? "" : " over"}`} role="img" aria-label=${`weights ${inBytes(weights.value)}, keys and values ${inBytes(cache.value)}, of ${inBytes(memory)}`}>
      <i class="weights" style=${{ width: share(weights.value) }}></i>
      <i class="cache" style=${{ width: share(cache.value) }}></i>
      ${!fits && html`<b class="limit" style=${{ left: share(memory) }}></b>`}
    </div>
    <ul class="memory-parts">
      <li><i class="weights"></i>weights <b>${inBytes(weights.value)}</b><${Badge} of="weights" ...${originOf(weights)} /></li>
      <li><i class="cache"></i>keys and values <b>${inBytes(cache.value)}</b><${Badge} of="keys and values" ...${originOf(cache)} /></li>
      <li>${fits ? html`<i class="left"></i>left <b>${inBytes(memory - used)}</b> ${percent((memory - used) / memory)}` : html`<i class="over"></i>too much by <b>${inBytes(used - memory)}</b>`}</li>
    </ul>
    <${Facts}>
      <${Fact} label="requests that fit" value=${count(shown.value)} unit="of this length" ...${originOf(shown)} />
      <${Fact} label="a token's keys and values" value=${inBytes(get("kv_bytes_per_token").value)} unit="" ...${originOf(get("kv_bytes_per_token"))} />
      <${Fact} label="one request" value=${inBytes(perRequest.value)} unit=${`${count(get("kv_blocks_per_request").value)} blocks`} ...${originOf(perRequest)} />
      <${Fact} label="longest text alone" value=${count(get("longest_context").value)} unit="tokens by memory" ...${originOf(get("longest_context"))} />
    <//>
    ${fits
      ? html`<${Why} lead=${`${count(state.batch.value)} requests of ${count(state.prompt.value + state.output.value)} tokens fit.`}>
          Their keys and values take ${percent(cache.value / used)} of what is used. ${cache.value > weights.value ? "They take more than the weights: fewer bits a number would help here." : "The weights take more than they do."}
        <//>`
      : html`<${Why} trouble lead=${`${count(state.batch.value)} requests do not fit.`}>
          ${weights.value > memory ? "The weights alone are larger than the memory." : html`Memory holds ${count(shown.value)} of them; the others would wait or be preempted.`}
        <//>`}
  <//>`;
}

/** What the workload takes in time and money. @param {{state: PlanState}} props */
export function Speed({ state }) {
  const estimate = /** @type {Estimate} */ (state.estimate.value);
  const get = (/** @type {string} */ name) => /** @type {Estimated} */ (numberOf(estimate, name));
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
