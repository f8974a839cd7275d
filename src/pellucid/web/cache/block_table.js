// @ts-check
// A request's block table, and its cache token by token: N + m - 1 positions after m output tokens.

import * as formulas from "../formulas.js";
import { hueVariable } from "../draw/hues.js";
import { html } from "../html.js";
import { count as counted, inBytes } from "../parts/format.js";
import { Badge, Fact, Facts } from "../parts/numbers.js";
import { Empty, Panel, RequestName, Why } from "../parts/panel.js";
import { ENDED } from "../state/store.js";

const SHOWN = 64; // blocks of a table

/** @param {{session: Session}} props */
export function BlockTable({ session }) {
  const { store, cursor, selection } = session;
  const seq = cursor.seq.value;
  const kv = store.hello?.kv;
  const request = session.request.value;
  if (!kv || !request) {
    return html`<${Panel} title="A request's blocks"><${Empty}><p>Run a prompt in Generate, or send one from any client: its block table appears here, and fills token by token.</p><//><//>`;
  }
  const pool = store.pool.at(seq);
  const table = pool.tables.get(request.number) ?? [];
  const N = request.added?.prompt_tok ?? 0;
  const m = store.tokenCount(request, seq);
  const state = store.stateAt(request, seq)?.to ?? "waiting";
  const held = table.reduce((sum, block) => sum + (pool.fill[block] ?? 0), 0);
  const hasEnded = ENDED.has(state);
  const cached = hasEnded ? formulas.cachedTokens.of({ N, m }) : held;
  const perToken = kv.block_bytes / kv.block_tok;
  const others = store.requestsAt(seq).slice(-12);
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
    <ol class="table-map" style=${{ "--c": hueVariable(request) }}>
      ${table.slice(0, SHOWN).map((block, index) => {
        if (block < 0) return null; // freed behind the window
        const isShared = pool.owners[block] > 1;
        return html`<li key=${block}>
          <button class=${block === selection.block.value ? "on" : ""} onClick=${() => (selection.block.value = block)}
            aria-label=${`block ${index} of the text is block ${block} of the pool, ${pool.fill[block]} of ${pool.blockTokens} tokens${isShared ? ", shared" : ""}`}>
            <span>${index}</span><i style=${{ width: `${(pool.fill[block] / pool.blockTokens) * 100}%` }}></i><b>${block}${isShared ? "*" : ""}</b>
          </button>
        </li>`;
      })}
    </ol>
    ${table.length > SHOWN && html`<p class="small dim">and ${counted(table.length - SHOWN)} more</p>`}
    ${table.length === 0 && html`<p class="dim">${hasEnded ? "It has ended: its blocks went back to the pool." : "It has no block yet."}</p>`}
    <div class="stepper">
      <button onClick=${() => step(-1)} disabled=${m === 0}>a token back</button>
      <output><b>${counted(m)}</b> of ${counted(request.tokenSeqs.length)} output tokens</output>
      <button onClick=${() => step(1)} disabled=${m >= request.tokenSeqs.length}>a token on</button>
    </div>
    <${Facts}>
      <${Fact} label="in the cache" value=${counted(cached)} unit=${m > 0 ? `= ${counted(N)} + ${counted(m)} − 1 tokens` : `of ${counted(N)} prompt tokens`} kind="C" formula=${formulas.cachedTokens} inputs=${{ N, m }}
        note=${hasEnded ? "As it was when the request ended." : `Counted in the blocks of this table: ${counted(held)}.`} />
      <${Fact} label="bytes" value=${inBytes(cached * perToken).split(" ")[0]} unit=${inBytes(cached * perToken).split(" ")[1]} kind="C" formula=${formulas.kvBytes}
        inputs=${{ L: store.hello.model.n_layers, Hkv: store.hello.model.n_kv, d: store.hello.model.head_dim, n: cached, b: perToken / (2 * store.hello.model.n_layers * store.hello.model.n_kv * store.hello.model.head_dim) }} />
      <${Fact} label="blocks" value=${counted(formulas.blocksOf.of({ n: cached, s: kv.block_tok }))} kind="C" formula=${formulas.blocksOf} inputs=${{ n: cached, s: kv.block_tok }}
        unit=${`allocated ${inBytes(formulas.blocksOf.of({ n: cached, s: kv.block_tok }) * kv.block_bytes)}`} />
    <//>
    ${m > 0 &&
    html`<${Why} lead=${`After ${counted(m)} output ${m === 1 ? "token" : "tokens"} the cache holds ${counted(formulas.cachedTokens.of({ N, m }))}.`}>
      The prompt's ${counted(N)} were written by prefill, which also chose the first output token. The newest token is not in the cache: its keys and values are
      written when it is fed back<${Badge} of="cached tokens" kind="C" formula=${formulas.cachedTokens} inputs=${{ N, m }} />.
    <//>`}
  <//>`;
}
