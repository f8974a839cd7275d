// @ts-check
// Generate: the text as it appears, how each token was chosen, what it read, and what would have been with other parameters.

import { Blocks, focusOf, Text } from "../generate/text.js";
import { Attention, Choice as TokenChoice, useAttention } from "../generate/token.js";
import { html, signal, useEffect } from "../html.js";
import { Choice, focusOn, NeedsServer, Panel, press, Prompt, Refused, Slider, submits, useKeys } from "../parts/panel.js";
import { legible } from "../parts/token_text.js";

/** Sentences of the lessons, for the bundled model and others. */
const EXAMPLES = ["Once upon a time", "The capital of France is", "Today the weather is so", "The cat sat on the"];

/** What Generate remembers while other views are shown. @param {Session} session */
export function generateState(session) {
  return /** @type {ReturnType<typeof create>} */ (session.views.generate ??= create(session));
}

/** @param {Session} session */
function create({ store }) {
  const layer = signal(-1); // -1: the mean over all
  const head = signal(-1);
  /** How many there are to choose from: told by the first look. */
  const shape = signal({ layers: store.hello?.model.n_layers ?? 1, heads: store.hello?.model.n_q ?? 1 });
  /** @param {Numeric} which @param {number} by @param {number} count */
  const cycle = (which, by, count) => {
    which.value = ((which.value + 2 + by + count) % (count + 1)) - 1;
  };
  return {
    prompt: signal(EXAMPLES[0]),
    /** "text" continues the prompt, "chat" answers it in the model's template. */
    mode: signal("text"),
    temperature: signal(0.8),
    top_k: signal(0),
    top_p: signal(0.95),
    min_p: signal(0),
    max_tokens: signal(48),
    seed: signal(4),
    withIds: signal(false),
    layer,
    head,
    shape,
    /** Share of attention by position, 0..1 of the largest. @type {import("@preact/signals-core").Signal<Map<number, number> | undefined>} */
    read: signal(undefined),
    moveLayer: (/** @type {number} */ by) => cycle(layer, by, shape.value.layers),
    moveHead: (/** @type {number} */ by) => cycle(head, by, shape.value.heads),
    /** Other parameters for a step that was: what the sliders of the funnel say. @type {import("@preact/signals-core").Signal<any>} */
    whatIf: signal(null),
  };
}

/** @param {{session: Session}} props */
export function View({ session }) {
  const state = generateState(session);
  const { selection } = session;
  // Keys may come faster than the page is drawn: they start from the token chosen now.
  /** @param {number} by */
  const move = (by) => {
    const now = focusOf(session, session.cursor.seq.peek());
    if (!now) return;
    const last = now.promptIds.length + now.count - 1;
    selection.pos.value = Math.max(0, Math.min(last, now.pos + by));
  };
  useKeys("Generate", [
    focusOn("/", "to the prompt", "prompt"),
    press("r", "run", "#run"),
    { keys: [","], says: "the token before", run: () => move(-1) },
    { keys: ["."], says: "the next token", run: () => move(1) },
    { keys: ["Escape"], says: "follow the newest token", run: () => (selection.pos.value = -1) },
    { keys: ["["], says: "attention: a layer down", run: () => state.moveLayer(-1) },
    { keys: ["]"], says: "attention: a layer up", run: () => state.moveLayer(1) },
    { keys: ["{"], says: "attention: a head down", run: () => state.moveHead(-1) },
    { keys: ["}"], says: "attention: a head up", run: () => state.moveHead(1) },
    { keys: ["i"], says: "token ids", run: () => (state.withIds.value = !state.withIds.value) },
    press("f", "fork: continue with the likeliest other token", ".candidates button.fork"),
  ]);
  return html`
    <div class="column">
      <${Ask} session=${session} state=${state} />
      <${Words} session=${session} state=${state} />
    </div>
    <div class="column"><${Choosing} session=${session.later} state=${state} /></div>
  `;
}

/** The text, and what was read for the token that is looked at. @param {{session: Session, state: GenerateState}} props */
function Words({ session, state }) {
  const focus = focusOf(session, session.cursor.seq.value);
  const attention = useAttention(session, state, focus);
  const { shares } = attention;
  useEffect(() => {
    state.read.value = shares;
  }, [shares]);
  const shared = { session, state, focus };
  return html`<${Text} ...${shared} read=${shares} /><${Attention} ...${shared} attention=${attention} />`;
}

/** How the token that is looked at was chosen, and its request's memory. @param {{session: Session, state: GenerateState}} props */
function Choosing({ session, state }) {
  const shared = { session, state, focus: focusOf(session, session.cursor.seq.value) };
  return html`<${TokenChoice} ...${shared} /><${Blocks} ...${shared} read=${state.read.value} />`;
}

const MOST_RECORDED = 12; // requests that are offered

/** The texts of a recording: each is played from where it arrived. @param {{session: Session}} props */
function Recorded({ session }) {
  const { store, cursor, selection, runs, request: { value: shown } } = session;
  const all = store.requestsAt(store.head.seq).filter(({ added }) => added?.prompt_ids?.length);
  const listed = all.slice(0, MOST_RECORDED);
  const ids = listed.flatMap(({ added }) => added.prompt_ids);
  useEffect(() => {
    void runs.learnTexts(ids);
  }, [ids.length]);
  const begin = (/** @type {EngineRequest} */ request) => {
    selection.req.value = request.req;
    selection.pos.value = -1;
    cursor.seek(request.seq);
    cursor.toggle();
  };
  return html`<${Panel} title="The recorded texts" about="choose one: it plays from its arrival; then choose any token of it">
    <div class="ask">
      <div class="examples">${listed.map((request) => html`<button type="button" class="chip" aria-pressed=${request === shown} onClick=${() => begin(request)}>
        ${request.name} ${legible(request.added.prompt_ids.map(runs.textOf).join("").replace(/^<[^>]*>/, "").slice(0, 32))}…</button>`)}</div>
      <p class="faint small">${all.length > listed.length ? `The first ${listed.length} of ${all.length}; the others are in Timeline. ` : ""}A prompt of your own needs <code>pellucid serve</code>.</p>
    </div>
  <//>`;
}

/** The prompt, and how tokens are to be chosen. @param {{session: Session, state: GenerateState}} props */
function Ask({ session, state }) {
  const { runs, source } = session;
  if (source.isRecording) return html`<${Recorded} session=${session} />`;
  const running = runs.active.value.at(-1);
  const run = () => {
    if (!source.canRun) return;
    const { temperature, top_k, top_p, min_p, max_tokens, seed, prompt } = state;
    const params = Object.entries({ temperature, top_k, top_p, min_p, max_tokens, seed }).map(([name, each]) => [name, each.value]);
    const isChat = state.mode.value === "chat";
    const text = isChat ? { messages: [{ role: "user", content: prompt.value }] } : { prompt: prompt.value };
    state.whatIf.value = null;
    runs.start(isChat ? "/v1/chat/completions" : "/v1/completions", { ...text, ...Object.fromEntries(params) }).catch(() => {});
  };
  return html`<${Panel} title="The prompt" about="a request like any other client's">
    <form class="ask" onSubmit=${submits(run)}>
      <${Prompt} id="prompt" of=${state.prompt} onEnter=${run} />
      <div class="row">
        <div class="examples">
          ${EXAMPLES.map((text) => html`<button type="button" class="chip" onClick=${() => (state.prompt.value = text)}>${text}</button>`)}
        </div>
        <${Choice} label="as" of=${state.mode} options=${[["text", "text"], ["chat", "a question"]]} />
        ${running
          ? html`<button type="button" onClick=${() => runs.stop(running)}>Stop</button>`
          : html`<button id="run" class="primary" disabled=${!source.canRun}>Generate</button>`}
      </div>
      <details class="knobs">
        <summary>
          <span>temperature ${state.temperature.value}</span><span>top-p ${state.top_p.value}</span>
          <span>top-k ${state.top_k.value || "all"}</span><span>${state.max_tokens.value} tokens</span><span>seed ${state.seed.value}</span>
        </summary>
        <div class="sliders">
          <${Slider} label="temperature" max=${2} step=${0.05} of=${state.temperature} />
          <${Slider} label="top-p" min=${0.05} max=${1} step=${0.05} of=${state.top_p} />
          <${Slider} label="top-k" max=${100} of=${state.top_k} shown=${state.top_k.value || "all"} />
          <${Slider} label="min-p" max=${0.5} step=${0.01} of=${state.min_p} />
          <${Slider} label="at most" min=${1} max=${200} of=${state.max_tokens} unit="tokens" />
          <${Slider} label="seed" max=${99} of=${state.seed} />
        </div>
        <p class="faint small">The temperature is how adventurous the draw is: 0 always takes the likeliest token.</p>
      </details>
      <${NeedsServer} session=${session} what="generating" />
      <${Refused} problem=${runs.problem.value} />
    </form>
  <//>`;
}
