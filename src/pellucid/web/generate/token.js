// @ts-check
// How a token was chosen, and what the model read to choose it: candidates, the funnel of stages, other parameters, attention.

import { entropyBits } from "../formulas.js";
import { html, useEffect, useMemo, useSignal } from "../html.js";
import { Badge, count as counted, digits, percent } from "../parts/numbers.js";
import { Empty, Panel, Refused, Select, Slider, upTo, useReply, Why } from "../parts/panel.js";
import { legible } from "../parts/token_text.js";
import { messageOf } from "../state/api.js";
import { decodeLogits, samplingStages } from "../state/sampling.js";

const MOST_CANDIDATES = 10; // that are known of a choice, as of one that was looked at
const CANDIDATES_SHOWN = 8;

/** @type {Record<string, string>} */
const STAGE_NAMES = {
  logits: "all tokens", temperature: "temp", top_k: "top-k", top_p: "top-p", min_p: "min-p", typical_p: "typical-p",
  repetition_penalty: "repetition", presence_penalty: "presence", frequency_penalty: "frequency", structured_outputs: "the form",
  allowed_token_ids: "allowed", bad_words: "bad words", min_tokens: "no end yet", logit_bias: "bias",
};

/**
 * @param {{session: Session, state: GenerateState,
 *   focus: Focus | null}} props
 */
export function Choice({ session, state, focus }) {
  const look = useLook(session, state, focus);
  const token = focus?.token?.rank === 0 ? look.seen : focus?.token;
  if (focus?.token && !token) {
    return html`<${Panel} title=${html`The choice <q class="mono">${legible(focus.token.text)}</q>`} about="not looked at when it was made">
      <${Empty}><p>
        Looking at each choice would have slowed this text down, so the engine looked at some only.
        ${" "}${look.problem ? `It could not look again: ${look.problem}` : session.source.isLive ? "It computes this one again." : "A recorded run cannot compute this one again."}
      </p><//>
    <//>`;
  }
  if (!focus || !token) {
    return html`<${Panel} title="The choice" about="how a token was picked">
      <${Empty}><p>
        ${focus && focus.count > 0
          ? "This token is the prompt's: nobody chose it. Choose one that follows."
          : "For each token the model gives every word of its vocabulary a probability. Here are the likeliest, and how one of them was drawn."}
      </p><//>
    <//>`;
  }
  const params = focus.request.added?.params;
  const changed = look.stages;
  /** @type {Candidate[]} */
  let candidates = token.cand.map(({ id, text, lp, p_final }) => ({ id, text, p: Math.exp(lp), final: p_final }));
  let funnel = token.funnel;
  if (changed) {
    const last = changed[changed.length - 1].odds;
    candidates = candidates.map((each) => ({ ...each, final: last.get(each.id) ?? 0 }));
    funnel = changed;
  }
  const listed = candidates.slice(0, CANDIDATES_SHOWN);
  if (!listed.some(({ id }) => id === token.id)) {
    listed.pop();
    const final = changed ? (changed[changed.length - 1].odds.get(token.id) ?? 0) : token.p_final;
    listed.push({ id: token.id, text: token.text, p: Math.exp(token.lp), final });
  }
  const rest = Math.max(0, 1 - listed.reduce((sum, each) => sum + each.p, 0));
  const restFinal = Math.max(0, 1 - listed.reduce((sum, each) => sum + each.final, 0));
  const vocab = session.store.hello?.model.vocab ?? 0;
  const about = html`position ${token.pos} · rank ${token.rank} · entropy ${token.ent_bits.toFixed(2)} bit<${Badge}
    of="rank and entropy" kind="C" from="tok.rank, tok.ent_bits" formula=${entropyBits} note=${token === focus.token ? "From the logits of the step that chose this token; nothing was run again." : "Nobody looked when this token was chosen; its logits are computed again, the same to the last bit."} />`;
  return html`<${Panel} title=${html`The choice <q class="mono">${legible(token.text)}</q>`} about=${about}>
    <${Candidates} session=${session} token=${token} focus=${focus} listed=${listed} rest=${rest} restFinal=${restFinal} others=${vocab - listed.length} />
    <${Funnel} funnel=${funnel} vocab=${vocab} params=${changed ? state.whatIf.value : params} />
    <${WhatIf} session=${session} state=${state} focus=${focus} look=${look} params=${params} />
    <${Told} token=${token} listed=${listed} changed=${changed} params=${params} />
  <//>`;
}

/**
 * @param {{session: Session, token: Token, focus: Focus, listed: Candidate[], rest: number,
 *   restFinal: number, others: number}} props
 */
function Candidates({ session, token, focus, listed, rest, restFinal, others }) {
  const { runs, source } = session;
  const canFork = source.canRun;
  const forkTo = (/** @type {Candidate} */ candidate) => fork(session, focus, candidate.id);
  let isFirstOther = true;
  return html`<table class="candidates">
    <caption class="spoken">The likeliest tokens: by the model, and after sampling</caption>
    <thead><tr><th scope="col">token</th><th scope="col" class="wide">after sampling, model</th><th class="number" scope="col">drawn with</th><th class="number" scope="col">model</th><th><span class="spoken">fork</span></th></tr></thead>
    <tbody>
      ${listed.map((each) => {
        const isChosen = each.id === token.id;
        const isFork = !isChosen && isFirstOther && each.final > 0;
        const forks = `fork here: continue with “${legible(each.text)}” instead`;
        if (isFork) isFirstOther = false;
        return html`<tr class=${`${isChosen ? "chosen" : ""} ${each.final === 0 ? "removed" : ""}`}>
          <td class="mono text">${legible(each.text)}</td>
          <td class="wide"><${Bar} p=${each.p} final=${each.final} /></td>
          <td class="number">${each.final === 0 ? "removed" : percent(each.final)}</td>
          <td class="number faint">${percent(each.p)}</td>
          <td>
            ${!isChosen && source.isLive &&
            html`<button
              class=${`quiet ${isFork ? "fork" : ""}`}
              disabled=${!canFork}
              data-tip=${forks}
              aria-label=${forks}
              onClick=${() => forkTo(each)}
            ><${Fork} /></button>`}
          </td>
        </tr>`;
      })}
      <tr class="rest">
        <td>${counted(others)} others</td>
        <td class="wide"><${Bar} p=${rest} final=${restFinal} isRest /></td>
        <td class="number">${percent(restFinal < 1e-9 ? 0 : restFinal)}</td>
        <td class="number faint">${percent(rest)}</td>
        <td></td>
      </tr>
    </tbody>
  </table>
  <${Refused} problem=${runs.problem.value} />`;
}

/**
 * Continues the text up to a token with another one in its place.
 * @param {Session} session
 * @param {Focus} focus
 * @param {number} id of the other token
 */
async function fork(session, focus, id) {
  const { runs, selection, cursor } = session;
  const token = /** @type {Token} */ (focus.token);
  runs.problem.value = "";
  const body = { req: focus.request.req, position: token.pos, token_id: id, max_tokens: 48 };
  try {
    cursor.goLive();
    await session.api.stream("/v1/page/fork", body, {
      onData(data) {
        if (data.ev !== "fork") return;
        selection.req.value = data.req;
        selection.pos.value = -1;
      },
    });
  } catch (error) {
    runs.problem.value = messageOf(error);
  }
}

/** A branch. */
function Fork() {
  const path = "M4 2v5.5a3 3 0 0 0 3 3h1.5a3 3 0 0 0 3-3V2M8 10.5V14";
  return html`<svg viewBox="0 0 16 16" width="13" height="13" aria-hidden="true" class="fork-icon"><path d=${path} /></svg>`;
}

/** @param {{p: number, final: number, isRest?: boolean}} props */
function Bar({ p, final, isRest = false }) {
  return html`<span class=${`bar ${isRest ? "rest" : ""}`}>
    <i class="final" style=${{ width: `${final * 100}%` }}></i><i class="model" style=${{ width: `${p * 100}%` }}></i>
  </span>`;
}

/**
 * The funnel: how many tokens each stage left, on a logarithmic scale, and their probability.
 * @param {{funnel: {stage: string, kept: number, mass_frac: number}[], vocab: number, params: any}} props
 */
function Funnel({ funnel, vocab, params }) {
  const height = (/** @type {number} */ kept) => 6 + 58 * (Math.log(Math.max(1, kept)) / Math.log(Math.max(2, vocab)));
  const given = (/** @type {string} */ stage) => {
    const short = /** @type {Record<string, string>} */ ({ temperature: "temp", repetition_penalty: "rep" })[stage] ?? stage;
    const value = params?.[stage] ?? params?.[short];
    return value === undefined ? "" : ` ${digits(value)}`;
  };
  return html`<figure class="funnel" aria-label=${`The funnel: ${funnel.map((each) => `${STAGE_NAMES[each.stage] ?? each.stage} left ${each.kept}`).join(", ")}, one was drawn.`}>
    ${funnel.map(
      (each) => html`<div>
        <span class="column"><i style=${{ height: `${height(each.kept)}px` }}></i></span>
        <b>${counted(each.kept)}</b>
        <small>${STAGE_NAMES[each.stage] ?? each.stage}${given(each.stage)}</small>
        <small class="faint">${each.mass_frac < 1 ? `${percent(each.mass_frac)} of the odds` : "\u00a0"}</small>
      </div>`,
    )}
    <div class="drawn"><span class="column"><i style=${{ height: "6px" }}></i></span><b>1</b><small>drawn</small><small>\u00a0</small></div>
  </figure>`;
}

/**
 * @param {{session: Session, state: GenerateState,
 *   focus: Focus, look: Look, params: any}} props
 */
function WhatIf({ session, state, focus, look, params }) {
  const isOpen = useSignal(false);
  if (!params) return null;
  const now = state.whatIf.value ?? { temperature: params.temp, top_k: params.top_k, top_p: params.top_p, min_p: params.min_p };
  const disabled = !session.source.isLive;
  const set = (/** @type {string} */ name) => (/** @type {number} */ value) => {
    state.whatIf.value = { ...now, [name]: value };
  };
  return html`<details class="knobs" onToggle=${(/** @type {any} */ { target }) => (isOpen.value = target.open)}>
    <summary><span>The same step with other parameters</span>${state.whatIf.value && html`<span class="chip">changed</span>`}</summary>
    ${isOpen.value && html`<div class="sliders">
      <${Slider} label="temperature" max=${2} step=${0.05} value=${now.temperature} disabled=${disabled} onInput=${set("temperature")} />
      <${Slider} label="top-p" min=${0.05} max=${1} step=${0.01} value=${now.top_p} disabled=${disabled} onInput=${set("top_p")} />
      <${Slider} label="top-k" max=${100} value=${now.top_k} shown=${now.top_k || "all"} disabled=${disabled} onInput=${set("top_k")} />
      <${Slider} label="min-p" max=${0.5} step=${0.01} value=${now.min_p} disabled=${disabled} onInput=${set("min_p")} />
    </div>`}
    <p class="faint">
      ${disabled
        ? "A recorded run has the ten likeliest tokens only; this needs the engine."
        : look.problem
          ? look.problem
          : look.us === null
            ? "Move a slider: the engine gives this step's own logits again, and the funnel above is drawn from them."
            : html`drawn from this step's own logits, recomputed in ${digits(look.us / 1000)} ms${focus.hasEnded ? "" : ", between two steps"}`}
    </p>
    ${state.whatIf.value && html`<button onClick=${() => (state.whatIf.value = null)}>as it was</button>`}
  </details>`;
}

/**
 * The stages with the sliders' parameters, and a choice that nobody looked at: fetches the step's logits for them.
 * @param {Session} session
 * @param {GenerateState} state
 * @param {Focus | null} focus
 * @returns {Look}
 */
function useLook(session, state, focus) {
  const token = focus?.token;
  const wanted = token && session.source.isLive && (state.whatIf.value !== null || token.rank === 0);
  const place = wanted ? `${encodeURI(focus.request.req)}/${token.pos}` : "";
  const { reply, problem } = useReply(session.api, place && `/v1/logits/${place}?logits=1&top=${MOST_CANDIDATES}`, { wait: token?.rank === 0 ? 60 : 0 });
  const found = useMemo(() => {
    if (!reply || !token) return null;
    const logits = decodeLogits(reply.logits_f32);
    const past = { promptIds: reply.prompt_ids, outputCounts: reply.output_counts };
    const stagesOf = (/** @type {any} */ changes) => samplingStages(logits, { ...reply.params, ...changes }, past);
    return {
      seen: token.rank === 0 ? withChoice(token, stagesOf({}), reply.stages[0]) : null,
      stages: state.whatIf.value && stagesOf(state.whatIf.value),
    };
  }, [reply, state.whatIf.value, token?.pos]);
  return found ? { ...found, us: reply.recomputed.dur_us, problem: "" } : { seen: null, stages: null, us: null, problem };
}

/**
 * A token with the choice that its logits tell.
 * @param {Token} token
 * @param {SamplingStage[]} funnel
 * @param {{cand: [number, string, number, number][], ent_bits: number, rest_frac: number}} model its own distribution, as the engine tells it
 * @returns {Token}
 */
function withChoice(token, funnel, model) {
  const odds = funnel[0].odds;
  const final = funnel[funnel.length - 1].odds;
  return {
    ...token, funnel, lp: Math.log(odds.get(token.id) ?? 0), p_final: final.get(token.id) ?? 0, rank: [...odds.keys()].indexOf(token.id) + 1,
    ent_bits: model.ent_bits, rest_frac: model.rest_frac,
    cand: model.cand.map(([id, text, , p]) => ({ id, text, lp: Math.log(p), p_final: final.get(id) ?? 0 })),
  };
}

/**
 * @param {{token: Token, listed: Candidate[], changed: SamplingStage[] | null, params: any}} props
 */
function Told({ token, listed, changed, params }) {
  const p = Math.exp(token.lp);
  const text = html`<q class="mono">${legible(token.text)}</q>`;
  if (changed) {
    const kept = changed[changed.length - 1];
    const final = kept.odds.get(token.id) ?? 0;
    return html`<${Why} lead="With these parameters">
      ${final === 0
        ? html`${text} could not have been drawn.`
        : html`${text} would have been drawn with ${percent(final)}; it was ${percent(token.p_final)}.`}
      ${" "}${counted(kept.kept)} ${kept.kept === 1 ? "token is" : "tokens are"} left to draw from.
    <//>`;
  }
  const best = listed.reduce((found, each) => (each.p > found.p ? each : found), listed[0]);
  if (token.rank === 1) {
    return html`<${Why} lead=${html`The model's first choice was taken.`}>
      It gave ${text} ${percent(p)}${params?.temp === 0 ? "; at temperature 0 the likeliest always wins." : `, and the draw followed with ${percent(token.p_final)}.`}
    <//>`;
  }
  return html`<${Why} lead=${html`Chance had its say.`}>
    The model's first choice was <q class="mono">${legible(best.text)}</q> with ${percent(best.p)}; the draw gave ${text}, rank ${token.rank}, which had
    ${" "}${percent(token.p_final)} after sampling. A temperature below ${digits(params?.temp ?? 1)} makes this rarer.
  <//>`;
}

const READ_SHOWN = 8; // positions
const ATTENTION = {
  text: "softmax(q·Kᵀ / √d)·V",
  inputs: { q: "query of this position", K: "keys of it and of all before it, of none after it", V: "their values", d: "components of a head" },
};

/**
 * Fetches the attention behind the token that is looked at, once it stands still.
 * @param {Session} session
 * @param {GenerateState} state
 * @param {Focus | null} focus
 * @returns {Looked}
 */
export function useAttention(session, state, focus) {
  const isStill = focus !== null && (session.source.isLive || session.source.isRecording) && (focus.isChosen || focus.hasEnded) && focus.pos > 0;
  // The token at a position was chosen by the query of the position before it.
  const from = focus ? (focus.token ? focus.pos - 1 : focus.pos) : 0;
  const query = new URLSearchParams();
  if (state.layer.value >= 0) query.set("layer", String(state.layer.value));
  if (state.head.value >= 0) query.set("head", String(state.head.value));
  const read = useRead(session.api, isStill ? focus.request.req : "", from, query);
  const { reply } = read;
  useEffect(() => {
    if (reply && (reply.n_layers !== state.shape.value.layers || reply.n_heads !== state.shape.value.heads)) {
      state.shape.value = { layers: reply.n_layers, heads: reply.n_heads };
    }
  }, [reply]);
  return { ...read, from };
}

/** Fetches what the token at a position read. @param {Api} api @param {string} req "": nothing is wanted @param {number} from @param {any} [query] layer and head */
export function useRead(api, req, from, query = "") {
  const found = useReply(api, req && `/v1/attn/${encodeURI(req)}/${from}?${query}`, { wait: 60 });
  /** @type {[number, number, string, number][] | undefined} */
  const top = found.reply?.top;
  return { ...found, shares: useMemo(() => top && new Map(top.map(([pos, , , weight]) => [pos, weight / top[0][3]])), [top]) };
}

/**
 * @param {{session: Session, state: GenerateState,
 *   focus: Focus | null, attention: Looked}} props
 */
export function Attention({ session, state, focus, attention }) {
  const { reply, problem, from } = attention;
  const { layers, heads } = state.shape.value;
  const choose = html`<div class="lens">
    <label>layer <${Select} of=${state.layer} options=${[[-1, "mean"], ...upTo(layers)]} /></label>
    <label>head <${Select} of=${state.head} options=${[[-1, "mean"], ...upTo(heads)]} /></label>
  </div>`;
  if (!reply || !focus) {
    const text = problem
      ? session.source.isRecording ? problem : `The engine could not look again: ${problem}`
      : session.source.isLive || session.source.isRecording
        ? "Choose a token of the text, or let the text end: what the model read to choose it is underlined in amber."
        : "Attention is recomputed by the engine when somebody looks; a recorded run has none.";
    return html`<${Panel} title="What it read" about="attention, recomputed for one token" actions=${reply || problem ? choose : undefined}><${Empty}><p>${text}</p><//><//>`;
  }
  const top = reply.top.slice(0, READ_SHOWN);
  const others = Math.max(0, 1 - reply.sink - top.reduce((/** @type {number} */ sum, /** @type {any} */ each) => sum + each[3], 0));
  const chosen = html`<q class="mono">${legible(focus.token ? focus.token.text : reply.text)}</q>`;
  const [first, second] = top;
  return html`<${Panel} title="What it read" about="attention, recomputed for this token alone" actions=${choose}>
    <ol class="read-list">
      ${top.map(
        (/** @type {any} */ [pos, , text, weight]) => html`<li key=${pos}>
          <button class="quiet mono" onClick=${() => (session.selection.pos.value = pos)}>${legible(text)}<sub>${pos}</sub></button>
          <span class="bar sun"><i style=${{ width: `${weight * 100}%` }}></i></span>
          <span class="number">${percent(weight)}</span>
        </li>`,
      )}
      <li class="apart"><span>the first token</span><span class="bar"><i style=${{ width: `${reply.sink * 100}%` }}></i></span><span class="number">${percent(reply.sink)}</span></li>
      <li class="apart"><span>all others</span><span class="bar"><i style=${{ width: `${others * 100}%` }}></i></span><span class="number">${percent(others)}</span></li>
    </ol>
    ${first &&
    html`<${Why} lead=${html`To choose ${chosen}, the model looked back from position ${from}.`}>
      ${" "}It read <q class="mono">${legible(first[2])}</q> with ${percent(first[3])}${second && html` and <q class="mono">${legible(second[2])}</q> with ${percent(second[3])}`}.
      ${" "}The first token takes ${percent(reply.sink)}: models put there what they need nowhere else.
      <span class="faint"> ${where(state)} · recomputed in ${digits(reply.recomputed.dur_us / 1000)} ms<${Badge}
        of="attention" kind="C" formula=${ATTENTION} from=${`GET /v1/attn, error of the output ${reply.output_error_frac.toExponential(1)}`}
        note="The query of this one position is computed again and multiplied with the keys in the cache. The weights of each row add up to 1: what is shown, the first token, and all others." /></span>
    <//>`}
  <//>`;
}

/** @param {GenerateState} state */
function where(state) {
  const layer = state.layer.value < 0 ? `mean of ${state.shape.value.layers} layers` : `layer ${state.layer.value}`;
  return `${layer}, ${state.head.value < 0 ? `mean of ${state.shape.value.heads} heads` : `head ${state.head.value}`}`;
}
