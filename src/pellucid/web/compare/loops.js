// @ts-check
// A comparison as its events tell it, and its arms as short code that would run, the line lit that computed the token looked at; what each wrote and read for it.

import { lastAtMost } from "../draw/lines.js";
import { useRead } from "../generate/token.js";
import { html, signal, useEffect } from "../html.js";
import { count, digits, inBytes, inTime, percent, several } from "../parts/numbers.js";
import { Empty, Panel } from "../parts/panel.js";
import { legible, TokenText } from "../parts/token_text.js";
import { createStreamed } from "../state/api.js";
import { PassedCells } from "./cells.js";

/** @type {[string, string][]} */
export const KINDS = [["cache", "with and without cache"], ["kv_dtype", "bf16, int8, int4"], ["batch", "one and many"]];

/** @param {any} begin the event cmp.begin @returns {Comparison} */
export function newRun(begin) {
  return {
    kind: begin.kind,
    arms: begin.arms.map((/** @type {any} */ arm, /** @type {number} */ number) => ({
      name: arm.arm, number, useKvCache: arm.use_kv_cache, req: arm.req ?? "", tokens: [], passed: [], flops: [], moved: [], stepUs: [], timeUs: [], heldBytes: [],
      ids: [], odds: [], texts: [], runsUs: [],
    })),
    requests: begin.requests,
    promptIds: begin.prompt_ids,
    promptTok: begin.prompt_ids.length,
    maxTokens: begin.max_new_tok,
    end: null,
    isRunning: true,
  };
}

/**
 * Takes in an event; the comparison changes in place.
 * @param {Comparison} run
 * @param {any} event
 */
export function take(run, event) {
  if (event.ev === "cmp") {
    const arm = /** @type {Arm} */ (run.arms.find((each) => each.name === event.arm));
    arm.tokens.push(event.n_tok);
    arm.passed.push(event.pass_tok);
    arm.flops.push(event.flops);
    arm.moved.push(event.moved_bytes);
    arm.stepUs.push(event.step_us);
    arm.timeUs.push(event.t_us);
    arm.heldBytes.push(event.kv_held_bytes);
    const [, ids = [], text = "", odds = []] = event.new[0] ?? [];
    arm.ids.push(...ids);
    arm.odds.push(...odds);
    arm.texts.push(text);
  } else if (event.ev === "cmp.run") /** @type {Arm} */ (run.arms.find((each) => each.name === event.arm)).runsUs.push(event.t_us);
  else if (event.ev === "cmp.end") run.end = event;
}

/** From the shortest run of an arm to the longest. @param {Arm} arm */
export const spreadOf = ({ runsUs }) => [...new Set([Math.min(...runsUs), Math.max(...runsUs)])].map(inTime).join(" – ");

/** Whether a run of each of two arms took longer than one of the other. @param {Arm[]} arms */
export const isNoise = (...[{ runsUs: one }, { runsUs: two }]) => Math.max(...one) >= Math.min(...two) && Math.max(...two) >= Math.min(...one);

/**
 * The median times of two arms of a comparison that has ended, and how many times as fast one was as the other; or that they are no more apart than runs
 * of one arm.
 * @param {Comparison} run
 * @param {number} arm
 * @param {number} other
 */
export function timeSentence({ arms, end }, arm, other) {
  const [a, b] = [arm, other].map((each) => end.arms[arms[each].name].t_us);
  const num = arms[arm].runsUs.length;
  const runs = num > 1 ? `the medians of ${num} runs in turn` : "in one run each";
  return `${inTime(a)} and not ${inTime(b)}, ${runs}: ${isNoise(arms[arm], arms[other]) ? "no more apart than runs of one way are" : `${digits(b / a)} times as fast`}.`;
}

/** How many output tokens the longest arm has so far. @param {Comparison} run */
const mostTokens = (run) => Math.max(0, ...run.arms.map((arm) => arm.tokens.at(-1) ?? 0));

/**
 * What the loop of an arm does: "idle" before it begins, "prefill" and "decode" while a token is computed, "done" at its end.
 * @param {Comparison} run
 * @param {Arm} arm
 * @param {number} at output tokens that are looked at; -1: as of now
 * @returns {"idle" | "prefill" | "decode" | "done"}
 */
export function phaseOf(run, arm, at) {
  const made = arm.tokens.at(-1) ?? 0;
  const all = run.maxTokens * run.requests;
  if (at < 0) {
    const before = run.arms[arm.number - 1];
    const begun = !before || (before.tokens.at(-1) ?? 0) >= all;
    if (made >= all || (!run.isRunning && made > 0)) return "done";
    if (made === 0) return run.isRunning && begun ? "prefill" : "idle";
    return "decode";
  }
  if (made === 0) return "idle";
  if (at > made) return "done";
  return at <= 1 ? "prefill" : "decode";
}

/** What is to be compared, and the latest run of each kind. @param {Session} session */
export function compareState(session) {
  return /** @type {ReturnType<typeof create>} */ (session.views.compare ??= create(session));
}

/** @param {Session} session */
function create(session) {
  const kind = signal("cache");
  const prompt = signal("Once upon a time there was a small dog who lived near the sea.");
  const tokens = signal(200);
  const batch = signal(8);
  /** Output tokens that are looked at; -1: the newest. */
  const at = signal(-1);
  const streamed = createStreamed(session);
  /** @type {Record<string, Comparison>} */
  const runs = {};
  return {
    kind, prompt, tokens, batch, at, ...streamed,
    /** What the shown run was asked, in a recording. */
    asked: /** @type {any} */ (null),
    /** Plays a recorded run. @param {any} body */
    play(body) {
      if (streamed.stop.value) return;
      this.asked = body;
      kind.value = body.kind;
      prompt.value = body.prompt;
      tokens.value = body.max_tokens;
      void this.start();
    },
    /** Tokens of a block. */
    get blockTok() {
      return session.store.hello?.kv.block_tok ?? 16;
    },
    /** The latest run of the chosen kind. */
    get latest() {
      streamed.version.value;
      return runs[kind.value] ?? null;
    },
    /** Really runs it, to the end or until somebody stops it. */
    start: () =>
      streamed.run(async (stream) => {
        const asked = kind.value;
        at.value = -1;
        const body = { kind: asked, prompt: prompt.value, max_tokens: tokens.value, batch: batch.value, temperature: 0 };
        try {
          await stream("/v1/compare", body, (event) => {
            if (event.ev === "cmp.begin") runs[asked] = newRun(event);
            else take(runs[asked], event);
          });
        } finally {
          if (runs[asked]) runs[asked].isRunning = false;
        }
      }),
    /** @param {number} by */
    move(by) {
      const most = runs[kind.value] ? mostTokens(runs[kind.value]) : 0;
      if (most) this.lookAt((at.value < 0 ? most : at.value) + by);
    },
    /** Looks at an output token, or at the closest one that there is. @param {number} token from 1 */
    lookAt(token) {
      at.value = Math.max(1, Math.min(mostTokens(runs[kind.value]), token));
    },
    nextKind() {
      const index = KINDS.findIndex(([name]) => name === kind.value);
      kind.value = KINDS[(index + 1) % KINDS.length][0];
      at.value = -1;
    },
  };
}

/** @type {Record<string, Record<string, {title: string, code: LoopCode}>>} */
const LOOPS = {
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
        ["for r in requests:"],
        ["    model(r.prompt, r.cache)", "prefill"],
        ["    while not r.ended:"],
        ["        logits = model(r.last, r.cache)", "decode"],
        ["        r.append(sample(logits))"],
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

/** @param {{session: Session, state: CompareState}} props */
export function Loops({ session, state }) {
  const loops = LOOPS[state.kind.value];
  const run = state.latest;
  useEffect(() => {
    if (run?.requests === 1) void session.runs.learnTexts([...run.promptIds, ...run.arms.flatMap(({ ids }) => ids)]);
  }, [run, run?.isRunning]);
  const at = state.at.value;
  const most = run ? mostTokens(run) : 0;
  const shared = { session, state, run, version: state.version.value }; // the run changes in place
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
          ? html`<${Loop} key=${arm.name} ...${shared} ...${loops[arm.name]} arm=${arm} />`
          : html`<${Written} key=${arm.name} ...${shared} title=${arm.name} arm=${arm} />`,
      )}
    </div>
    ${run?.requests === 1 && html`<p class="small dim">A cell each token, a group each block. Filled: in the cache when the step ended. Framed: through the model in this step.
      Arcs and amber: what was read to write the newest token.</p>`}
    ${!loops && !run && html`<${Empty}><p>One prompt, three formats of keys and values: what each takes, and where the answers part.</p><//>`}
  <//>`;
}

/** @param {{title: string, code: LoopCode, arm: any, run: Comparison | null, session: Session, state: CompareState, version: number}} props */
function Loop({ title, code, arm, ...shared }) {
  const { run, state } = shared;
  const phase = run ? phaseOf(run, arm, state.at.value) : "idle";
  return html`<div class="loop" style=${{ "--c": `var(--o${(arm.number ?? 0) + 1})` }}>
    <h3>${title}<span class=${`phase-chip ${phase}`}>${{ idle: "waits", prefill: "prefill", decode: "decode", done: "done" }[phase]}</span></h3>
    <ol class="code" aria-label=${`the loop ${title}`}>
      ${code.map(([line, ...phases]) => {
        const hash = line.indexOf("#");
        const [text, comment] = hash < 0 ? [line, ""] : [line.slice(0, hash), line.slice(hash)];
        const lit = phase !== "idle" && phases.includes(/** @type {any} */ (phase));
        return html`<li class=${lit ? "lit" : ""} aria-current=${lit ? "step" : undefined}><code>${text}${comment && html`<span class="comment">${comment}</span>`}</code></li>`;
      })}
    </ol>
    ${run && html`<${Written} ...${shared} arm=${arm} />`}
  </div>`;
}

/** What an arm had written when a step ended, and what that step did. @param {{arm: Arm, run: Comparison, session: Session, state: CompareState, version: number, title?: string}} props */
function Written({ arm, title, ...shared }) {
  const { run, state } = shared;
  const at = state.at.value;
  const row = at < 0 ? arm.tokens.length - 1 : lastAtMost(arm.tokens, at);
  if (row < 0) return html`<p class="written faint">${title && html`<b>${title}</b> `}nothing yet</p>`;
  const passed = arm.passed[row] - (row > 0 ? arm.passed[row - 1] : 0);
  const isEnd = run.end !== null && row === arm.tokens.length - 1;
  const kept = html`<b>${arm.heldBytes[row] === 0 ? "nothing" : inBytes(arm.heldBytes[row])}</b> kept for the next`;
  return html`<div class="written" style=${{ "--c": `var(--o${arm.number + 1})` }}>
    ${title && html`<h3>${title}</h3>`}
    ${run.requests > 1 && html`<p class="mono text" tabindex="0" role="region" aria-label="what was written">${arm.texts.slice(0, row).join("")}<mark>${arm.texts[row]}</mark></p>`}
    <p class="small dim">
      this step: <b>${several(passed, "token")}</b> through the model${run.requests === 1 &&
      html`, <b>${arm.useKvCache ? count(arm.passed[row] - passed) : "none"}</b> from the cache`} · ${isEnd && arm.useKvCache ? "the end frees the cache" : kept}
    </p>
    ${run.requests === 1 && html`<${Seen} ...${shared} arm=${arm} row=${row} />`}
  </div>`;
}

/**
 * The picture that views share: the text, arcs from its newest token, the blocks that hold it.
 * @param {{arm: Arm, run: Comparison, row: number, session: Session, state: CompareState, version: number}} props
 */
function Seen({ arm, run, row, session, state }) {
  const { promptIds, promptTok } = run;
  const made = arm.tokens[row];
  const newest = promptTok + made - 1;
  const textOf = session.runs.textOf;
  // The token was chosen by the query of the one before it.
  const { reply, shares } = useRead(session.api, run.isRunning ? "" : arm.req, newest - 1);
  const pieces = [
    ...promptIds.map((id, pos) => ({ pos, id, text: textOf(id), p: -1, isPrompt: true })),
    ...arm.ids.slice(0, made).map((id, index) => ({ pos: promptTok + index, id, text: textOf(id) || arm.texts[index], p: arm.odds[index] ?? NaN, isPrompt: false })),
  ];
  return html`<${TokenText}
      pieces=${pieces} chosen=${newest} read=${shares} isOpen=${run.isRunning} withIds=${false}
      onChoose=${(/** @type {number} */ pos) => state.lookAt(pos - promptTok + 1)}
    />
    <${PassedCells} run=${run} arm=${arm} row=${row} blockTok=${state.blockTok} read=${shares} />
    ${reply?.top.length > 0 && html`<p class="small dim">To write <q class="mono">${legible(pieces[newest].text)}</q> it read ${reply.top.slice(0, 3).map(
      (/** @type {any} */ [, , text, weight], /** @type {number} */ index) => html`${index > 0 && ", "}<q class="mono">${legible(text)}</q> ${percent(weight)}`,
    )}.</p>`}`;
}
