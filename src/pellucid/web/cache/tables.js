// @ts-check
// Who holds which blocks: the block table of a request, what it found and missed, and the prefix tree.

import { hueVariable } from "../draw/hues.js";
import * as formulas from "../formulas.js";
import { html, useEffect } from "../html.js";
import { Badge, cachedUnit, count as counted, Fact, Facts, inBytes, inTime, several } from "../parts/numbers.js";
import { Empty, Panel, RequestName, useReply, Why } from "../parts/panel.js";
import { TokenCells } from "../parts/token_cells.js";
import { legible, visible } from "../parts/token_text.js";
import { ENDED } from "../state/store.js";

const BLOCKS_SHOWN = 64; // blocks of a table

/** @param {{session: Session}} props */
export function BlockTable({ session }) {
  const { store, cursor, selection } = session;
  const seq = cursor.seq.value;
  const kv = store.hello?.kv;
  const request = session.request.value;
  if (!kv || !request) {
    return html`<${Panel} title="A request's blocks"><${Empty}><p>Run a prompt in Generate, or send one from any client: its block table fills here, token by token.</p><//><//>`;
  }
  const pool = store.pool.at(seq);
  const table = pool.tables.get(request.number) ?? [];
  const N = request.added?.prompt_tok ?? 0;
  const m = store.tokenCount(request, seq);
  const change = store.stateAt(request, seq);
  const state = change?.to ?? "waiting";
  const hasEnded = ENDED.has(state);
  const cached = store.cachedCount(request, seq) ?? 0;
  const { n_layers: L, n_kv: Hkv, head_dim: d } = store.hello.model;
  const b = kv.block_bytes / kv.block_tok / (2 * L * Hkv * d);
  const [bytes, unit] = inBytes(formulas.kvBytes.of({ L, Hkv, d, n: cached, b })).split(" ");
  const held = hasEnded ? store.pool.at(/** @type {StateChange} */ (change).seq - 1).tables.get(request.number) : table;
  const blocks = held?.filter((block) => block >= 0).length ?? 0;
  const others = store.requestsAt(seq).slice(-12);
  const newest = m > 0 ? store.token(request.tokens[m - 1]) : null;
  const step = (/** @type {number} */ by) => {
    const at = m + by;
    if (at < 0 || at > request.tokenSeqs.length) return;
    // The moment just before the next token: everything that token `at` caused has happened.
    const next = at < request.tokenSeqs.length ? request.tokenSeqs[at] - 1 : store.head.seq;
    cursor.seek(Math.max(next, at > 0 ? request.tokenSeqs[at - 1] : request.seq));
  };
  return html`<${Panel} title=${html`Block table <${RequestName} request=${request} />`} about=${`${state}, as of the cursor`}>
    ${others.length > 1 &&
    html`<p class="others">${others.map((each) => html`<${RequestName} key=${each.req} request=${each} onClick=${() => (selection.req.value = each.req)} /> `)}</p>`}
    <${TokenCells} session=${session} request=${request} />
    <ol class="table-map" style=${{ "--c": hueVariable(request) }}>
      ${table.slice(0, BLOCKS_SHOWN).map((block, index) => {
        if (block < 0) return null; // freed behind the window
        const isShared = pool.owners[block] > 1;
        return html`<li key=${block}>
          <button class=${block === selection.block.value ? "on" : ""} onClick=${() => (selection.block.value = block)}
            data-tip=${`block ${index} of the text is block ${block} of the pool, ${pool.fill[block]} of ${pool.blockTokens} tokens${isShared ? ", shared" : ""}`}>
            <span>${index}</span><i style=${{ width: `${(pool.fill[block] / pool.blockTokens) * 100}%` }}></i><b>${block}${isShared ? "*" : ""}</b>
          </button>
        </li>`;
      })}
    </ol>
    ${table.length > BLOCKS_SHOWN && html`<p class="small dim">and ${counted(table.length - BLOCKS_SHOWN)} more</p>`}
    ${table.length === 0 && html`<p class="dim">${hasEnded ? "It has ended: its blocks went back to the pool." : "It has no block yet."}</p>`}
    <div class="stepper">
      <button onClick=${() => step(-1)} disabled=${m === 0}>a token back</button>
      <output><b>${counted(m)}</b> of ${several(request.tokenSeqs.length, "output token")}${newest &&
      html`<br />${m === 1 ? "prefill" : "decode"} chose <q class="mono">${legible(newest.text)}</q>`}</output>
      <button onClick=${() => step(1)} disabled=${m >= request.tokenSeqs.length}>a token on</button>
    </div>
    <${Facts}>
      <${Fact} label="in the cache" value=${counted(cached)} unit=${cachedUnit(cached, N, m)} kind="C" formula=${formulas.cachedTokens} inputs=${{ N, m }}
        note=${hasEnded ? "As it was when the request ended." : "Counted in the blocks of this table."} />
      <${Fact} label="bytes" value=${bytes} unit=${unit} kind="C" formula=${formulas.kvBytes} inputs=${{ L, Hkv, d, n: cached, b }} />
      <${Fact} label="blocks" value=${counted(blocks)} unit=${`allocated ${inBytes(blocks * kv.block_bytes)}`} kind="C" from="kv.ops" formula=${formulas.blocksOf} inputs=${{ n: cached, s: kv.block_tok }} />
    <//>
    ${m > 0 && cached === N + m - 1 &&
    html`<${Why} lead=${`After ${several(m, "output token")} the cache holds ${counted(cached)}.`}>
      The prompt's ${counted(N)} were written by prefill, which also chose the first output token. The newest token is not in the cache: its keys and values are
      written when it is fed back.
    <//>`}
  <//>`;
}

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
  const seq = cursor.seq.value;
  const request = session.request.value;
  const prefix = request?.prefix && request.prefix.seq <= seq ? request.prefix : null;
  const other = prefix?.near_req ? store.requests.get(prefix.near_req) : undefined;
  const at = prefix?.diff_at_tok ?? prefix?.miss_at_tok ?? -1;
  const own = request?.added?.prompt_ids ?? [];
  const theirs = other ? textIds(store, other) : [];
  const from = Math.max(0, at - BEFORE);
  const ids = [...own.slice(from, at + AFTER), ...theirs.slice(from, at + AFTER), ...(prefix?.diff_ids ?? [])];
  useEffect(() => {
    if (ids.length) runs.learnTexts(ids);
  }, [request?.req, prefix?.seq, theirs.length]);
  if (!request || !prefix) return null;
  const N = request.added?.prompt_tok ?? own.length;
  const missed = N - prefix.hit_tok;
  const about = `${counted(prefix.hit_tok)} of ${counted(N)} prompt tokens found`;
  const promptUs = promptTime(store, request, seq);
  return html`<${Panel} title=${html`Found and missed <${RequestName} request=${request} />`} about=${about}>
    <div class="found-bar" role="img" aria-label=${about}>
      <i style=${{ width: `${(100 * prefix.hit_tok) / Math.max(1, N)}%` }}></i>
    </div>
    ${prefix.miss_why
      ? html`<${Why} lead=${prefix.hit_tok ? `It found ${several(prefix.hit_tok, "token")} and missed ${counted(missed)}.` : `It found nothing of its ${several(N, "token")}.`} trouble=${prefix.miss_why === "evicted"}>
          ${REASONS[prefix.miss_why] ?? prefix.miss_why}
          ${prefix.miss_why === "evicted" && prefix.evicted_ago !== undefined && ` Since then ${several(prefix.evicted_ago, "block")} went.`}
          ${prefix.miss_why === "recurrent" && prefix.snapshot_at_tok !== undefined && ` It takes one behind token ${counted(prefix.snapshot_at_tok)}, where the next prompt that begins like this goes on.`}
          ${promptUs !== null && html` Computing ${several(missed, "token")} took ${inTime(promptUs)}<${Badge} of="prompt time" kind="M" from="step.fwd_us of the steps that computed its prompt" note="The steps may have computed other requests as well." />.`}
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
 * The ids of prompt and output.
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
 * @param {number} seq
 */
function promptTime(store, request, seq) {
  const { steps } = store;
  const last = store.token(request.tokens[0])?.step ?? Infinity; // its event follows that of the token
  let time = null;
  for (let row = steps.find("seq", request.seq); row <= store.rowAt(steps, seq) && steps.get("step", row) <= last; row++) {
    if (store.batch(row).some((each) => each.request === request)) time = (time ?? 0) + steps.get("fwd_us", row);
  }
  return time;
}

const RUNS_SHOWN = 80; // rows
const MIN_WAIT_MS = 1000; // between two looks

/**
 * Joins blocks that have one successor each into runs, in the order of a walk through the tree.
 * @param {PrefixNode[]} nodes
 * @returns {PrefixRun[]}
 */
function runsOf(nodes) {
  const known = new Set(nodes.map((node) => node.block));
  /** @type {Map<number | null, PrefixNode[]>} */
  const children = new Map();
  for (const node of nodes) {
    const parent = node.parent !== null && known.has(node.parent) ? node.parent : null;
    children.set(parent, [...(children.get(parent) ?? []), node]);
  }
  /** @type {PrefixRun[]} */
  const runs = [];
  /** @type {[PrefixNode, number][]} */
  const open = (children.get(null) ?? []).map((node) => /** @type {[PrefixNode, number]} */ ([node, 0])).reverse();
  while (open.length) {
    const [first, depth] = /** @type {[PrefixNode, number]} */ (open.pop());
    const run = [first];
    let next = children.get(first.block) ?? [];
    while (next.length === 1) {
      run.push(next[0]);
      next = children.get(next[0].block) ?? [];
    }
    runs.push({ nodes: run, depth });
    for (const node of [...next].reverse()) open.push([node, depth + 1]);
  }
  return runs;
}

/** @param {{session: Session}} props */
export function PrefixTree({ session }) {
  const { store, cursor, api, source, selection } = session;
  cursor.seq.value;
  const row = store.kv.end - 1;
  const kept = row < store.kv.first ? 0 : store.kv.get("cached", row);
  const inputs = [kept, store.requests.size, store.hello?.boot_id];
  const { reply, problem } = useReply(api, source.isLive && store.hello ? "/v1/kv/tree" : "", { apart: MIN_WAIT_MS, inputs });
  const about = "what later prompts can find, at this moment";
  if (!reply || reply.nodes.length === 0) {
    const text = problem
      ? `The engine could not tell: ${problem}`
      : source.isLive
        ? "Nothing yet. A block becomes findable when it is full."
        : "A recorded run has the pool, but not the texts of the tree.";
    return html`<${Panel} title="The prefix tree" about=${about}><${Empty}><p>${text}</p><//><//>`;
  }
  const runs = runsOf(reply.nodes);
  return html`<${Panel} title="The prefix tree" about=${about}>
    <ol class="prefix-tree">
      ${runs.slice(0, RUNS_SHOWN).map(({ nodes, depth }) => {
        const request = store.requests.get(nodes[0].by);
        const refs = Math.max(...nodes.map((node) => node.refs));
        return html`<li key=${nodes[0].block} style=${{ "--depth": Math.min(depth, 8), "--c": request ? hueVariable(request) : "var(--line2)" }} class=${refs > 0 ? "used" : "kept"}>
          <button onClick=${() => (selection.block.value = nodes[0].block)}>
            <span class="mono">${nodes.map((node) => node.text).join("").slice(0, 160).replaceAll("\n", "↵")}</span>
            <small>${several(nodes.length, "block")}${refs > 1 ? ` · shared by ${refs}` : refs === 1 ? " · in use" : " · kept"}</small>
          </button>
          ${request && html`<${RequestName} request=${request} />`}
        </li>`;
      })}
    </ol>
    <p class="small dim">
      ${several(reply.nodes.length, "block")} in ${several(runs.length, "run")}<${Badge} of="blocks of the tree" kind="C" from="GET /v1/kv/tree" />.
      An indented run continues the text above it; a branch is where two texts part.
      ${runs.length > RUNS_SHOWN && ` The first ${RUNS_SHOWN} are shown.`}
    </p>
  <//>`;
}
