// @ts-check
// The attention lens: what the model looked at to choose a token, recomputed for this token alone, by layer and head or their mean.

import { html, useEffect, useMemo } from "../html.js";
import { digits, percent } from "../parts/format.js";
import { Badge } from "../parts/numbers.js";
import { Select, upTo } from "../parts/controls.js";
import { Empty, Panel, Why } from "../parts/panel.js";
import { useReply } from "../parts/reply.js";
import { quoted, visible } from "../parts/token_text.js";

const SHOWN = 6; // positions

/**
 * @typedef {{reply: any | null, shares: Map<number, number> | undefined, problem: string, from: number}} Looked
 *   `shares`: of each position, 1 for the largest
 */

/**
 * Fetches the attention behind the token that is looked at, once it stands still.
 * @param {Session} session
 * @param {GenerateState} state
 * @param {Focus | null} focus
 * @returns {Looked}
 */
export function useAttention(session, state, focus) {
  const isStill = focus !== null && session.source.isLive && (focus.isChosen || focus.hasEnded) && focus.pos > 0;
  // The token at a position was chosen by the query of the position before it.
  const from = focus ? (focus.token ? focus.pos - 1 : focus.pos) : 0;
  const query = new URLSearchParams();
  if (state.layer.value >= 0) query.set("layer", String(state.layer.value));
  if (state.head.value >= 0) query.set("head", String(state.head.value));
  const wanted = isStill ? `/v1/attn/${encodeURI(focus.request.req)}/${from}?${query}` : "";
  const { reply, problem } = useReply(session.api, wanted, { wait: 60 });
  useEffect(() => {
    if (reply && (reply.n_layers !== state.shape.value.layers || reply.n_heads !== state.shape.value.heads)) {
      state.shape.value = { layers: reply.n_layers, heads: reply.n_heads };
    }
  }, [reply]);
  const shares = useMemo(() => (reply ? sharesOf(reply) : undefined), [reply]);
  return { reply, shares, problem, from };
}

/** @param {any} reply */
function sharesOf(reply) {
  const largest = reply.top.length ? reply.top[0][3] : 1;
  return new Map(reply.top.map((/** @type {any} */ [pos, , , weight]) => [pos, weight / largest]));
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
      ? `The engine could not look again: ${problem}`
      : session.source.isLive
        ? "Choose a token of the text, or let the text end: what the model read to choose it is underlined in amber."
        : "Attention is recomputed by the engine when somebody looks; a recorded run has none.";
    return html`<${Panel} title="What it read" about="attention, recomputed for one token" actions=${reply ? choose : undefined}><${Empty}><p>${text}</p><//><//>`;
  }
  const top = reply.top.slice(0, SHOWN);
  const others = Math.max(0, 1 - reply.sink - top.reduce((/** @type {number} */ sum, /** @type {any} */ each) => sum + each[3], 0));
  const chosen = focus.token ? html`<q class="mono">${visible(focus.token.text)}</q>` : html`<q class="mono">${visible(reply.text)}</q>`;
  const [first, second] = top;
  return html`<${Panel} title="What it read" about="attention, recomputed for this token alone" actions=${choose}>
    <ol class="read-list">
      ${top.map(
        (/** @type {any} */ [pos, , text, weight]) => html`<li key=${pos}>
          <button class="quiet mono" onClick=${() => (session.selection.pos.value = pos)}>${quoted(text)}<sub>${pos}</sub></button>
          <span class="bar sun"><i style=${{ width: `${weight * 100}%` }}></i></span>
          <span class="number">${percent(weight)}</span>
        </li>`,
      )}
      <li class="apart"><span>the first token</span><span class="bar"><i style=${{ width: `${reply.sink * 100}%` }}></i></span><span class="number">${percent(reply.sink)}</span></li>
      <li class="apart"><span>all others</span><span class="bar"><i style=${{ width: `${others * 100}%` }}></i></span><span class="number">${percent(others)}</span></li>
    </ol>
    ${first &&
    html`<${Why} lead=${html`To choose ${chosen}, the model looked back from position ${from}.`}>
      ${" "}It read <q class="mono">${visible(first[2])}</q> with ${percent(first[3])}${second && html` and <q class="mono">${visible(second[2])}</q> with ${percent(second[3])}`}.
      ${" "}The first token takes ${percent(reply.sink)}: models put there what they need nowhere else.
      <span class="faint"> ${where(state)} · recomputed in ${digits(reply.recomputed.dur_us / 1000)} ms<${Badge}
        of="attention" kind="C" from=${`GET /v1/attn, error of the output ${reply.output_error_frac.toExponential(1)}`}
        note="The query of this one position is computed again and multiplied with the keys in the cache. The weights of each row add up to 1: what is shown, the first token, and all others." /></span>
    <//>`}
  <//>`;
}

/** @param {GenerateState} state */
function where(state) {
  const layer = state.layer.value < 0 ? `mean of ${state.shape.value.layers} layers` : `layer ${state.layer.value}`;
  return `${layer}, ${state.head.value < 0 ? `mean of ${state.shape.value.heads} heads` : `head ${state.head.value}`}`;
}
