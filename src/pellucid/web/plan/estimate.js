// @ts-check
// The server's estimate as the sliders ask for it: memory, time and cost; the roofline; and the steps of this session beside what the formula gives for them.

import { logarithmic, powerTicks } from "../draw/lines.js";
import { Picture } from "../draw/picture.js";
import { stepTime } from "../formulas.js";
import { computed, effect, html, signal, useRef, useSignal } from "../html.js";
import { Badge, count, digits, duration, Fact, Facts, inBytes, inPrefix, inTime, median, percent, several } from "../parts/numbers.js";
import { Empty, Legend, Panel, Why } from "../parts/panel.js";
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
    if (!session.source.canRun && !session.source.isRecording) return; // it is asked when it answers again
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
      <${Fact} label="one request" value=${inBytes(perRequest.value)} unit=${several(get("kv_blocks_per_request").value, "block")} ...${originOf(perRequest)} />
      <${Fact} label="longest text alone" value=${count(get("longest_context").value)} unit="tokens, by memory and model" ...${originOf(get("longest_context"))} />
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
    const here = numberOf(estimate, `${name}_measured`);
    return html`<${Fact} label=${label} value=${value} unit=${unit + (here ? `, measured ${inTime(here.value * 1e6)}` : "")} ...${originOf(get(name))} />`;
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

const HEIGHT = 300;
const [LEFT, RIGHT, ABOVE, BELOW] = [64, 24, 16, 46];
const rate = (/** @type {number} */ value) => `${inPrefix(value)}FLOP/s`;

/**
 * @param {{state: PlanState, measured: MeasuredStep[], asTable: {value: boolean}}} props
 */
export function Roofline({ state, measured, asTable }) {
  const estimate = /** @type {Estimate} */ (state.estimate.value);
  const { flops_per_second: F, bandwidth_bytes_per_second: W } = estimate.machine;
  const value = (/** @type {string} */ name) => numberOf(estimate, name)?.value ?? 0;
  const points = ["prefill", "decode"].map((name) => {
    const intensity = value(`${name}_intensity`);
    return { name, intensity, rate: value(`${name}_flops`) / value(`${name}_seconds`), seconds: value(`${name}_seconds`), isCompute: intensity > F / W };
  });
  const dots = measured.map((step) => ({ ...step, intensity: step.flops / step.bytes, rate: step.flops / (step.us * 1e-6) }));
  const xs = [F / W, ...points.map((each) => each.intensity), ...dots.map((each) => each.intensity)];
  const [lowX, highX] = [10 ** Math.floor(Math.log10(Math.min(...xs) / 2)), 10 ** Math.ceil(Math.log10(Math.max(...xs) * 2))];
  const lowest = Math.min(lowX * W, ...dots.map((each) => each.rate));
  const [lowY, highY] = [10 ** Math.floor(Math.log10(lowest)), 10 ** Math.ceil(Math.log10(F * 1.2))];
  const [prefill, decode] = points;

  const pointed = useSignal(-1);
  const wide = useRef(300);
  const all = [...points.map((point) => ({ ...point, name: `${point.name}, estimated` })), ...dots.map((dot) => ({ name: `step ${dot.step}, ${dot.kind}`, intensity: dot.intensity, rate: dot.rate, seconds: dot.us / 1e6 }))];
  const placeOf = (/** @type {{intensity: number, rate: number}} */ each) => ({
    x: logarithmic(lowX, highX, LEFT, wide.current - RIGHT)(each.intensity), y: logarithmic(lowY, highY, HEIGHT - BELOW, ABOVE)(Math.max(lowY, each.rate)),
  });
  /** @param {Surface} surface */
  const draw = ({ ctx, width, palette }) => {
    wide.current = width;
    const x = logarithmic(lowX, highX, LEFT, width - RIGHT);
    const y = logarithmic(lowY, highY, HEIGHT - BELOW, ABOVE);
    ctx.font = `14px ${palette.ui}`;
    ctx.lineWidth = 1;
    ctx.textBaseline = "middle";
    ctx.textAlign = "right";
    for (const tick of powerTicks(lowY, highY)) {
      ctx.strokeStyle = palette.line;
      ctx.beginPath();
      ctx.moveTo(LEFT, y(tick));
      ctx.lineTo(width - RIGHT, y(tick));
      ctx.stroke();
      ctx.fillStyle = palette.ink3;
      ctx.fillText(inPrefix(tick), LEFT - 8, y(tick));
    }
    ctx.textBaseline = "alphabetic";
    ctx.textAlign = "center";
    for (const tick of powerTicks(lowX, highX)) ctx.fillText(digits(tick), x(tick), HEIGHT - BELOW + 18);
    ctx.textAlign = "right";
    ctx.fillText("operations a byte moved", width - RIGHT, HEIGHT - 4);
    ctx.textAlign = "left";
    ctx.fillText("FLOP/s", 4, HEIGHT - 4);
    // The roof: bandwidth up to the ridge, then the peak.
    const roof = new Path2D();
    roof.moveTo(x(lowX), y(Math.max(lowY, lowX * W)));
    roof.lineTo(x(F / W), y(F));
    roof.lineTo(x(highX), y(F));
    const below = new Path2D(roof);
    below.lineTo(x(highX), HEIGHT - BELOW);
    below.lineTo(x(lowX), HEIGHT - BELOW);
    ctx.fillStyle = palette.water2;
    ctx.globalAlpha = 0.45;
    ctx.fill(below);
    ctx.globalAlpha = 1;
    ctx.strokeStyle = palette.water;
    ctx.lineWidth = 2;
    ctx.stroke(roof);
    for (const dot of dots) {
      ctx.globalAlpha = 0.55;
      ctx.fillStyle = dot.kind === "decode" ? palette.owners[1] : dot.kind === "prefill" ? palette.owners[2] : palette.ink3;
      ctx.beginPath();
      ctx.arc(x(dot.intensity), y(Math.max(lowY, dot.rate)), 2.5, 0, 7);
      ctx.fill();
    }
    ctx.globalAlpha = 1;
    for (const point of points) {
      const [px, py] = [x(point.intensity), y(point.rate)];
      ctx.fillStyle = palette.ink;
      ctx.strokeStyle = palette.panel;
      ctx.lineWidth = 2;
      ctx.beginPath();
      ctx.arc(px, py, 6, 0, 7);
      ctx.fill();
      ctx.stroke();
      ctx.font = `600 14px ${palette.ui}`;
      const isRight = px > width - 110;
      ctx.textAlign = isRight ? "right" : "left";
      ctx.fillStyle = palette.ink;
      ctx.fillText(point.name, px + (isRight ? -10 : 10), py + 18);
    }
    if (all[pointed.value]) {
      const at = placeOf(all[pointed.value]);
      ctx.fillStyle = palette.ink3;
      ctx.fillRect(Math.round(at.x), ABOVE, 1, HEIGHT - BELOW - ABOVE);
      ctx.fillRect(LEFT, Math.round(at.y), width - RIGHT - LEFT, 1);
    }
  };
  const label = `Roofline of ${estimate.machine.name}: peak ${rate(F)}, ridge at ${digits(F / W)} operations a byte; prefill at ${digits(prefill.intensity)}, decode at ${digits(decode.intensity)}.`;
  return html`<${Panel} title="Roofline" about=${`ridge at ${digits(F / W)} operations a byte; bandwidth ${inPrefix(W)}B/s, peak ${rate(F)}`}>
    <${Picture}
      label=${label}
      draw=${draw}
      inputs=${[estimate, measured, pointed.value]}
      height=${HEIGHT}
      asTable=${asTable}
      onHover=${(/** @type {number} */ index) => (pointed.value = index)}
      cells=${/** @type {Cells} */ ({
        count: all.length,
        columns: 10,
        describe: (index) => `${all[index].name}: ${digits(all[index].intensity)} operations a byte, ${rate(all[index].rate)}, ${inTime(all[index].seconds * 1e6)}`,
        rect: (index) => ({ x: placeOf(all[index]).x - 6, y: placeOf(all[index]).y - 6, width: 12, height: 12 }),
        hit: (x, y) => all.reduce((best, each, index) => {
          const at = placeOf(each);
          const far = Math.hypot(at.x - x, at.y - y);
          return far < best[1] ? [index, far] : best;
        }, [-1, 24])[0],
      })}
      twin=${{
        columns: ["point", "operations a byte", "FLOP/s", "time"],
        rows: () => all.map((each) => [each.name, digits(each.intensity), rate(each.rate), inTime(each.seconds * 1e6)]),
      }}
    />
    <${Legend}
      items=${[
        { label: "the roof", colour: "var(--water)", pattern: "line" },
        { label: "this workload, estimated", colour: "var(--ink)" },
        ...(dots.length > 0 ? [{ label: "measured prefill steps", colour: "var(--o3)" }, { label: "measured decode steps", colour: "var(--o2)" }, { label: "both in one step", colour: "var(--ink3)" }] : []),
      ]}
    />
    <${Why} lead=${decode.isCompute ? "Decode waits for arithmetic." : "Decode waits for memory."}>
      A decode step of ${several(state.batch.value, "request")} does ${digits(decode.intensity)} operations for each byte it reads; this machine could do ${digits(F / W)} in that
      time. ${decode.isCompute ? "More requests at once would not make it faster." : "More requests at once use the same reading of the weights."} Prefill of ${state.prompt.value} tokens
      does ${digits(prefill.intensity)} and waits for ${prefill.isCompute ? "arithmetic" : "memory"}.
    <//>
  <//>`;
}

const MOST = 2000; // newest steps that are looked at

/** @type {("prefill" | "decode" | "mixed")[]} */
const KINDS = ["prefill", "decode", "mixed"];

/**
 * The newest steps up to a row, each with its estimate.
 * @param {Store["steps"]} steps
 * @param {number} endRow the row after the last that counts
 * @param {{F: number, W: number}} machine operations and bytes a second
 * @returns {MeasuredStep[]}
 */
export function measuredSteps(steps, endRow, { F, W }) {
  const found = [];
  for (let row = Math.max(steps.first, endRow - MOST); row < endRow; row++) {
    const flops = steps.get("flops", row);
    const bytes = steps.get("w_bytes", row) + steps.get("kv_read_bytes", row) + steps.get("kv_write_bytes", row);
    const us = steps.get("fwd_us", row);
    if (flops <= 0 || bytes <= 0 || us <= 0) continue;
    found.push({ kind: KINDS[steps.get("kind", row)], step: steps.get("step", row), us, predictedUs: stepTime.of({ flops, F, bytes, W }) * 1e6, flops, bytes });
  }
  return found;
}

/**
 * How far the steps of each kind are from the formula.
 * @param {MeasuredStep[]} steps
 */
export function errors(steps) {
  return KINDS.map((kind) => {
    const own = steps.filter((each) => each.kind === kind);
    if (own.length === 0) return null;
    return {
      kind, count: own.length, us: median(own.map((each) => each.us)), predictedUs: median(own.map((each) => each.predictedUs)),
      ratio: median(own.map((each) => each.us / each.predictedUs)),
      bytesPerSecond: median(own.map((each) => each.bytes / (each.us * 1e-6))), flopsPerSecond: median(own.map((each) => each.flops / (each.us * 1e-6))),
    };
  }).filter((each) => each !== null);
}

/**
 * @param {{state: PlanState, measured: MeasuredStep[]}} props
 */
export function Checked({ state, measured }) {
  if (!state.isOwn.value)
    return html`<${Panel} title="Measured in this session"><${Empty}><p>Choose the loaded model on this machine, as loaded: then its steps are laid over.</p><//><//>`;
  if (measured.length === 0)
    return html`<${Panel} title="Measured in this session"><${Empty}><p>No step has run yet. Generate something: its steps appear here beside their estimates.</p><//><//>`;
  const machine = /** @type {Estimate} */ (state.estimate.value).machine;
  const rows = errors(measured);
  const largest = rows.reduce((most, row) => (row.count > most.count ? row : most));
  return html`<${Panel} title="Measured in this session" about=${`the newest ${several(measured.length, "step")}, medians; each against the formula for its own operations and bytes`}>
    <div class="wide-table"><table>
      <thead><tr><th scope="col">steps</th><th class="number" scope="col">how many</th><th class="number" scope="col">measured</th><th class="number" scope="col">by formula</th><th class="number" scope="col">measured / formula</th><th class="number" scope="col">reached</th></tr></thead>
      <tbody>
        ${rows.map(
          (row) => html`<tr>
            <th scope="row">${row.kind}</th>
            <td class="number">${count(row.count)}<${Badge} of="steps" kind="C" from="step events" /></td>
            <td class="number">${inTime(row.us)}<${Badge} of="measured time" kind="M" from="step.fwd_us, median" /></td>
            <td class="number">${inTime(row.predictedUs)}<${Badge} of="estimated time" kind="E" formula=${stepTime} inputs=${{ F: machine.flops_per_second, W: machine.bandwidth_bytes_per_second }} from="step.flops and its bytes" /></td>
            <td class="number"><b>${digits(row.ratio)}</b><${Badge} of="ratio" kind="M" from="median of step.fwd_us / formula" /></td>
            <td class="number">${inPrefix(row.bytesPerSecond)}B/s · ${inPrefix(row.flopsPerSecond)}FLOP/s</td>
          </tr>`,
        )}
      </tbody>
    </table></div>
    <${Why} lead=${`Half of the ${largest.kind} steps took more than ${digits(largest.ratio)} times the formula, half less.`}>
      The formula counts arithmetic and bytes only: 1 would be a step without any overhead. Small models pay for the work around each matrix,
      and what else this machine does shows here too.
    <//>
  <//>`;
}
