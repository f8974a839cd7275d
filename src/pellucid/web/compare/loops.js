// @ts-check
// The loops of the arms as short code that would run, the line lit that computed the token looked at.

import { html } from "../html.js";
import { count, inBytes } from "../parts/format.js";
import { Empty, Panel } from "../parts/panel.js";
import { lastAtMost } from "../draw/scale.js";
import { mostTokens, phaseOf } from "./run.js";

/**
 * Lines of code with the phase in which each is the one that takes the time.
 * @typedef {[string, ("prefill" | "decode" | "done" | "")?, ("decode")?][]} Code
 */

/** @type {Record<string, Record<string, {title: string, code: Code}>>} */
export const LOOPS = {
  cache: {
    cached: {
      title: "with the cache",
      code: [
        ["cache = KVCache()"],
        ["logits = model(prompt, cache)  # once", "prefill"],
        ["tokens = prompt + [sample(logits[-1])]"],
        ["while not ended(tokens):"],
        ["    last = tokens[-1:]  # one token"],
        ["    logits = model(last, cache)", "decode"],
        ["    tokens += [sample(logits[-1])]"],
        ["return tokens", "done"],
      ],
    },
    naive: {
      title: "without the cache",
      code: [
        ["tokens = prompt"],
        ["while True:"],
        ["    logits = model(tokens)  # all, again", "prefill", "decode"],
        ["    tokens += [sample(logits[-1])]"],
        ["    if ended(tokens):"],
        ["        return tokens", "done"],
      ],
    },
  },
  batch: {
    one: {
      title: "one after the other",
      code: [
        ["for request in requests:"],
        ["    model(request.prompt, request.cache)", "prefill"],
        ["    while not request.ended:"],
        ["        logits = model(request.last, request.cache)", "decode"],
        ["        request.append(sample(logits))"],
        ["return requests", "done"],
      ],
    },
    many: {
      title: "together",
      code: [
        ["model([r.prompt for r in requests], caches)", "prefill"],
        ["while running := [r for r in requests if not r.ended]:"],
        ["    logits = model([r.last for r in running], caches)", "decode"],
        ["    for r, row in zip(running, logits):"],
        ["        r.append(sample(row))"],
        ["return requests", "done"],
      ],
    },
  },
};

/** @param {{state: CompareState}} props */
export function Loops({ state }) {
  const loops = LOOPS[state.kind.value];
  const run = state.latest;
  const at = state.at.value;
  const most = run ? mostTokens(run) : 0;
  const slider = run && html`<div class="step-through">
    <button class="quiet" aria-label="a token back" onClick=${() => state.move(-1)}>◂</button>
    <input
      type="range"
      aria-label="output token looked at"
      min="1"
      max=${Math.max(1, most)}
      value=${at < 0 ? most : at}
      style=${{ "--at": `${most > 1 ? (((at < 0 ? most : at) - 1) / (most - 1)) * 100 : 0}%` }}
      onInput=${(/** @type {any} */ event) => (state.at.value = Number(event.target.value))}
    />
    <button class="quiet" aria-label="a token on" onClick=${() => state.move(1)}>▸</button>
    <output>${at < 0 ? (run.isRunning ? "running" : "at the end") : `token ${at} of ${most}`}</output>
  </div>`;
  return html`<${Panel} title=${loops ? "The loops" : "What was written"} about=${loops ? "lit: the line that computed the token" : "step through the tokens"}>
    ${slider}
    <div class=${`loops ${loops ? "" : "three"}`}>
      ${(run?.arms ?? (loops ? Object.keys(loops).map((name) => ({ name })) : [])).map((/** @type {any} */ arm) =>
        loops
          ? html`<${Loop} key=${arm.name} ...${loops[arm.name]} arm=${arm} run=${run} at=${at} />`
          : html`<${Written} key=${arm.name} arm=${arm} run=${run} at=${at} title=${arm.name} />`,
      )}
    </div>
    ${!loops && !run && html`<${Empty}><p>One prompt, three formats of keys and values: what each takes, and where the answers part.</p><//>`}
  <//>`;
}

/** @param {{title: string, code: Code, arm: any, run: Comparison | null, at: number}} props */
function Loop({ title, code, arm, run, at }) {
  const phase = run ? phaseOf(run, arm, at) : "idle";
  return html`<div class="loop" style=${{ "--c": `var(--o${(arm.number ?? 0) + 1})` }}>
    <h3>${title}<span class=${`phase-chip ${phase}`}>${{ idle: "waits", prefill: "prefill", decode: "decode", done: "done" }[phase]}</span></h3>
    <ol class="code" tabindex="0" aria-label=${`the loop ${title}`}>
      ${code.map(([line, ...phases]) => {
        const hash = line.indexOf("#");
        const [text, comment] = hash < 0 ? [line, ""] : [line.slice(0, hash), line.slice(hash)];
        const lit = phase !== "idle" && phases.includes(/** @type {any} */ (phase));
        return html`<li class=${lit ? "lit" : ""} aria-current=${lit ? "step" : undefined}><code>${text}${comment && html`<span class="comment">${comment}</span>`}</code></li>`;
      })}
    </ol>
    ${run && html`<${Written} arm=${arm} run=${run} at=${at} />`}
  </div>`;
}

/** @param {{arm: Arm, run: Comparison, at: number, title?: string}} props */
function Written({ arm, run, at, title }) {
  const row = at < 0 ? arm.tokens.length - 1 : lastAtMost(arm.tokens, at);
  if (row < 0) return html`<p class="written faint">${title && html`<b>${title}</b> `}nothing yet</p>`;
  const passed = arm.passed[row] - (row > 0 ? arm.passed[row - 1] : 0);
  return html`<div class="written" style=${{ "--c": `var(--o${arm.number + 1})` }}>
    ${title && html`<h3>${title}</h3>`}
    <p class="mono text" tabindex="0" role="region" aria-label="what was written">${arm.texts.slice(0, row).join("")}<mark>${arm.texts[row]}</mark></p>
    <p class="small dim">this step: <b>${count(passed)}</b> ${passed === 1 ? "token" : "tokens"} through the model · ${run.end && row === arm.tokens.length - 1 ? "the last: nothing is kept" : html`<b>${arm.heldBytes[row] === 0 ? "nothing" : inBytes(arm.heldBytes[row])}</b> kept for the next`}</p>
  </div>`;
}
