// @ts-check
// What Plan asks the server to estimate, and its latest answer.

import { computed, effect, signal } from "@preact/signals-core";

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
      if (!session.source.isLive) return;
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
        if (own === newest) problem.value = error instanceof Error ? error.message : String(error);
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
export const originOf = ({ name, provenance, formula, inputs }) => ({
  kind: provenance,
  from: `/v1/estimate: ${name}`,
  formula: { text: formula, inputs: Object.fromEntries(Object.keys(inputs).map((key) => [key, key.replaceAll("_", " ")])), of: () => 0 },
  inputs,
});
