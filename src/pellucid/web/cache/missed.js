// @ts-check
// Why a prompt was not found in the prefix cache: both texts side by side where they part, and what that cost.

import { html, useEffect } from "../html.js";
import { count as counted, inTime } from "../parts/format.js";
import { Badge } from "../parts/numbers.js";
import { Panel, RequestName, Why } from "../parts/panel.js";
import { visible } from "../parts/token_text.js";

const BEFORE = 12; // tokens shown before the place where texts part
const AFTER = 6;

/** @type {Record<string, string>} */
const REASONS = {
  recurrent: "The blocks are there, but no snapshot of the model's recurrent states behind them.",
  never_seen: "No earlier text begins like this.",
  evicted: "It was there, and its blocks were needed by others.",
  differs: "An earlier text begins alike and then goes on differently.",
  partial_block: "What is left is shorter than a block, and only full blocks can be found again.",
  disabled: "The prefix cache is switched off.",
  salt: "It is there under another cache_salt: callers who must not see each other's texts do not share them.",
};

/** @param {{session: Session}} props */
export function Missed({ session }) {
  const { store, cursor, runs } = session;
  const request = session.request.value;
  const prefix = request?.prefix && request.prefix.seq <= cursor.seq.value ? request.prefix : null;
  const other = prefix?.near_req ? store.requests.get(prefix.near_req) : undefined;
  const at = prefix?.diff_at_tok ?? prefix?.miss_at_tok ?? -1;
  const own = request?.added?.prompt_ids ?? [];
  const theirs = other ? textIds(store, other) : [];
  const from = Math.max(0, at - BEFORE);
  const ids = [...own.slice(from, at + AFTER), ...theirs.slice(from, at + AFTER), ...(prefix?.diff_ids ?? [])];
  useEffect(() => {
    if (session.source.isLive && ids.length) runs.learnTexts(ids);
  }, [request?.req, prefix?.seq, theirs.length]);
  if (!request || !prefix) return null;
  const N = request.added?.prompt_tok ?? own.length;
  const missed = N - prefix.hit_tok;
  const about = `${counted(prefix.hit_tok)} of ${counted(N)} prompt tokens found`;
  const perToken = promptTime(store, request);
  return html`<${Panel} title=${html`Found and missed <${RequestName} request=${request} />`} about=${about}>
    <div class="found-bar" role="img" aria-label=${about}>
      <i style=${{ width: `${(100 * prefix.hit_tok) / Math.max(1, N)}%` }}></i>
    </div>
    ${prefix.miss_why
      ? html`<${Why} lead=${prefix.hit_tok ? `It found ${counted(prefix.hit_tok)} tokens and missed ${counted(missed)}.` : `It found nothing of its ${counted(N)} tokens.`} trouble=${prefix.miss_why === "evicted"}>
          ${REASONS[prefix.miss_why] ?? prefix.miss_why}
          ${prefix.miss_why === "evicted" && prefix.evicted_ago !== undefined && ` ${counted(prefix.evicted_ago)} blocks have been evicted since.`}
          ${prefix.miss_why === "recurrent" && prefix.snapshot_at_tok !== undefined && ` It takes one behind token ${counted(prefix.snapshot_at_tok)}, where the next prompt that begins like this goes on.`}
          ${perToken !== null && html` Computing the ${counted(missed)} tokens took ${inTime(perToken)}<${Badge} of="prompt time" kind="M" from="step.fwd_us of the steps that computed its prompt" note="The steps may have computed other requests as well." />.`}
        <//>`
      : html`<${Why} lead="Everything that can be found was found.">The last token of a prompt is always computed: its logits choose the first output token.<//>`}
    ${at >= 0 && theirs.length > 0 &&
    html`<div class="parting">
      <${Side} label=${html`<${RequestName} request=${request} />`} ids=${own} from=${from} at=${at} runs=${runs} />
      <${Side} label=${html`<${RequestName} request=${other} />`} ids=${theirs} from=${from} at=${at} runs=${runs} />
    </div>`}
  <//>`;
}

/** @param {{label: any, ids: number[], from: number, at: number, runs: any}} props */
function Side({ label, ids, from, at, runs }) {
  return html`<p>${label} <span class="mono">${from > 0 && "… "}${ids.slice(from, at).map((id) => visible(runs.textOf(id))).join("")}<mark>${at < ids.length ? visible(runs.textOf(ids[at])) : "(end)"}</mark>${ids
    .slice(at + 1, at + AFTER)
    .map((id) => visible(runs.textOf(id)))
    .join("")}${ids.length > at + AFTER && " …"}</span></p>`;
}

/**
 * The token ids of a request's text: prompt and output.
 * @param {Store} store
 * @param {EngineRequest} request
 * @returns {number[]}
 */
function textIds(store, request) {
  const ids = [...(request.added?.prompt_ids ?? [])];
  for (const row of request.tokens) if (row >= store.tokens.first) ids.push(store.tokens.get("id", row));
  return ids;
}

/**
 * The time of the steps that computed a request's prompt; null if they are no longer kept.
 * @param {Store} store
 * @param {EngineRequest} request
 */
function promptTime(store, request) {
  const until = request.tokenSeqs[0] ?? store.head.seq;
  let time = null;
  for (let row = store.steps.find("seq", request.seq); row < store.steps.end && store.steps.get("seq", row) <= until; row++) {
    const part = store.batch(row).find((each) => each.request === request);
    if (part) time = (time ?? 0) + store.steps.get("fwd_us", row);
  }
  return time;
}
