// @ts-check
// The text as it appears, why it stopped, and the blocks that hold it.

import { hueVariable } from "../draw/hues.js";
import * as formulas from "../formulas.js";
import { html, useEffect } from "../html.js";
import { Badge, cachedUnit, count as counted, duration, Fact, Facts, inBytes, plural, several } from "../parts/numbers.js";
import { Panel, RequestName } from "../parts/panel.js";
import { TokenCells } from "../parts/token_cells.js";
import { TokenText } from "../parts/token_text.js";
import { SEALED } from "../state/pool.js";
import { ENDED } from "../state/store.js";
import { FirstRun } from "./first_run.js";

const MAX_SHOWN = 4096; // tokens: of longer texts the end

/** @param {Session} session @param {number} seq @returns {Focus | null} */
export function focusOf({ store, selection, request: { value: request } }, seq) {
  if (!request) return null;
  const count = store.tokenCount(request, seq);
  const promptIds = request.added?.prompt_ids ?? [];
  const promptTok = request.added?.prompt_tok ?? promptIds.length;
  const last = promptTok + count - 1;
  const isChosen = selection.pos.value >= 0 && selection.pos.value <= last;
  const pos = isChosen ? selection.pos.value : last;
  const first = count > 0 ? store.token(request.tokens[0])?.pos ?? promptTok : promptTok;
  const token = pos >= first && pos - first < count ? store.token(request.tokens[pos - first]) : null;
  const state = store.stateAt(request, seq);
  return { request, promptIds, promptTok, count, pos, isChosen, token, state, hasEnded: ENDED.has(state?.to ?? "") };
}

/**
 * @param {{session: Session, state: GenerateState, focus: Focus | null,
 *   read: Map<number, number> | undefined}} props
 */
export function Text({ session, state, focus, read }) {
  const { runs } = session;
  useEffect(() => {
    if (focus) runs.learnTexts(focus.promptIds);
  }, [focus?.request.req, focus?.promptIds.length]);
  if (!focus) {
    return html`<${Panel} title="From a prompt to its words" about="nothing has been generated yet: this is how it goes">
      <${FirstRun} session=${session} />
    <//>`;
  }
  const actions = html`<button class="quiet" aria-pressed=${state.withIds.value} onClick=${() => (state.withIds.value = !state.withIds.value)}>ids</button>`;
  const about = `prompt ${several(focus.promptTok, "token")}, then one at a time; the deeper the tint, the surer the model was`;
  return html`<${Panel} title=${html`The text <${RequestName} request=${focus.request} />`} about=${about} actions=${actions}>
    <${Tokens} session=${session} state=${state} read=${read} />
    <${Ending} focus=${focus} />
    <${Took} session=${session} focus=${focus} />
  <//>`;
}

/**
 * The text with each token as it comes.
 * @param {{session: Session, state: GenerateState, read: Map<number, number> | undefined}} props
 */
function Tokens({ session, state, read }) {
  const { store, runs, selection, cursor } = session;
  const focus = focusOf(session, cursor.seq.value);
  if (!focus) return null;
  const { request, promptIds, count } = focus;
  /** @type {Piece[]} */
  const pieces = promptIds.map((id, pos) => ({ pos, id, text: runs.textOf(id), p: -1, isPrompt: true }));
  for (let index = 0; index < count; index++) {
    const row = request.tokens[index];
    if (row < store.tokens.first) continue;
    const slot = store.tokens.slot(row);
    const c = store.tokens.columns;
    pieces.push({
      pos: c.pos[slot], id: c.id[slot], text: store.words[c.text[slot]], p: Math.exp(c.lp[slot]), isPrompt: false,
    });
  }
  const shown = pieces.length > MAX_SHOWN ? pieces.slice(-MAX_SHOWN) : pieces;
  return html`<${TokenText}
    pieces=${shown}
    chosen=${focus.pos}
    read=${read}
    isOpen=${!focus.hasEnded}
    withIds=${state.withIds.value}
    onChoose=${(/** @type {number} */ pos) => (selection.pos.value = pos)}
  />`;
}

/** @type {Record<string, string>} */
const STOPS = {
  eos: "the model chose its end token",
  length: "it reached the number of tokens asked for",
  stop: "a stop string or stop token appeared",
  cancel: "the client stopped it",
  error: "the request failed",
};

/** @param {{focus: Focus}} props */
function Ending({ focus }) {
  const { state, count, request } = focus;
  if (!focus.hasEnded || !state) {
    const hold = state?.to === "waiting" ? `waiting: ${state.reason.replaceAll("_", " ")}` : state?.to;
    return html`<p class="ending"><span class="chip quiet">${hold ?? "…"}</span></p>`;
  }
  const finish = state.finish ?? state.to;
  return html`<p class="ending">
    <span class=${`chip ${finish === "error" ? "trouble" : ""}`}>stopped: ${finish}</span>
    ${STOPS[finish] ?? state.reason.replaceAll("_", " ")}${finish === "length" && ` (${counted(count)})`}
    ${request.preempts.length > 0 && html` · preempted ${request.preempts.length}×`}
  </p>`;
}

/** @param {{session: Session, focus: Focus}} props */
export function Took({ session, focus }) {
  const { store, cursor } = session;
  const { request, promptTok, count } = focus;
  if (count === 0) return null;
  const first = store.token(request.tokens[0]);
  const last = store.token(request.tokens[count - 1]);
  const arrived = request.added?.arrive_us;
  const [ttft, ttftUnit] = first && arrived !== undefined ? duration(first.t_us - arrived) : ["–", ""];
  const [each, eachUnit] = first && last && count > 1 ? duration((last.t_us - first.t_us) / (count - 1)) : ["–", ""];
  const passed = store.passedCount(request, cursor.seq.value);
  const naive = formulas.passesNaive.of({ N: promptTok, T: count });
  const cached = store.cachedCount(request, cursor.seq.value);
  return html`<${Facts}>
    <${Fact} label="first token" value=${ttft} unit=${ttftUnit} kind="M" from="tok.t_us − req.add.arrive_us"
      note="From the moment the client asked, queue and prompt included, to the first token." />
    <${Fact} label="each token" value=${each} unit=${eachUnit} kind="M" from="tok.t_us: the mean after the first" />
    <${Fact} label="in the cache" value=${cached === null ? "–" : counted(cached)} unit=${cachedUnit(cached, promptTok, count)} kind="C"
      formula=${formulas.cachedTokens} inputs=${{ N: promptTok, m: count }}
      note="The newest token is not in the cache yet: its keys and values are written when it is fed back to choose the next one." />
    <${Fact} label="passed the model" value=${passed === null ? "–" : counted(passed)} unit=${`${plural(passed ?? 0, "token")}; without a cache ${counted(naive)}`} kind="C"
      from="step.batch, summed"
      note="Drafts and what preemptions repeat count; what the cache had does not pass." />
  <//>`;
}

/** @param {{session: Session, focus: Focus | null, read: Map<number, number> | undefined}} props */
export function Blocks({ session, focus, read }) {
  const { store, cursor, route } = session;
  const seq = cursor.seq.value;
  const kv = store.hello?.kv;
  if (!focus || !kv) return null;
  const pool = store.pool.at(seq);
  const { request, hasEnded } = focus;
  const table = (pool.tables.get(request.number) ?? []).filter((block) => block >= 0);
  const kept = [];
  if (table.length === 0) {
    for (let block = 0; block < pool.numBlocks; block++) {
      if (pool.owners[block] === 0 && pool.flags[block] & SEALED && pool.lastOwner[block] === request.number) kept.push(block);
    }
  }
  const cached = store.cachedCount(request, seq) ?? 0;
  const perToken = kv.block_bytes / kv.block_tok;
  const about = html`${table.length || kept.length || "none"} of ${counted(kv.n_blocks)} blocks of ${kv.block_tok} tokens · ${inBytes(cached * perToken)}<${Badge}
    of="bytes in the cache" kind="C" formula=${BYTES} inputs=${{ n: cached, "B / s": perToken }}
    note="Keys and values of all layers, scales included, as the engine allocates them." />`;
  return html`<${Panel} title="Its memory" about=${about} actions=${html`<button class="quiet" onClick=${() => route.go("cache")}>the pool</button>`}>
    <${TokenCells} session=${session} request=${request} read=${read} />
    <ol class="blocks" style=${{ "--c": hueVariable(request) }} aria-label="blocks of this request">
      ${(table.length ? table : kept).map((block) => {
        const fill = pool.fill[block] / pool.blockTokens;
        const isSealed = (pool.flags[block] & SEALED) !== 0;
        const name = `${pool.owners[block] > 1 ? "shared" : ""} ${isSealed ? "sealed" : ""} ${table.length ? "" : "kept"}`;
        const says = `block ${block}: ${pool.fill[block]} of ${pool.blockTokens} tokens${isSealed ? ", full and sealed" : ""}`;
        return html`<li key=${block} class=${name} data-tip=${says} aria-label=${says}>
          <i style=${{ height: `${fill * 100}%` }}></i>
        </li>`;
      })}
    </ol>
    <p class="dim small">
      ${table.length
        ? `Filled height is tokens; a dot: full and sealed, so that a later prompt can find it.`
        : hasEnded
          ? kept.length
            ? `The request has ended. ${kept.length === 1 ? "Its sealed block is" : "Its sealed blocks are"} kept: a prompt that begins alike will find ${kept.length === 1 ? "it" : "them"}.`
            : request.seq < store.snapshotSeq && store.snapshotSeq <= seq
              ? "The request had ended when this page was opened: which of its blocks are kept, it does not know."
              : "The request has ended and its blocks are free. None is kept: none was full, or an earlier request keeps the same text."
          : "No block yet."}
    </p>
  <//>`;
}

/** @type {Formula} */
const BYTES = {
  text: "n·(B / s)",
  inputs: { n: "tokens in the cache", "B / s": "bytes of a block over its tokens" },
  of: (inputs) => inputs.n * inputs["B / s"],
};
