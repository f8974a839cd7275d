// @ts-check
// Where the text's keys and values are: the request's blocks in the order of its text. The Cache view shows the whole pool.

import * as formulas from "../formulas.js";
import { hueVariable } from "../draw/hues.js";
import { html } from "../html.js";
import { inBytes } from "../parts/format.js";
import { Badge } from "../parts/numbers.js";
import { Panel } from "../parts/panel.js";
import { SEALED } from "../state/pool.js";

/** @param {{session: Session, focus: Focus | null}} props */
export function Blocks({ session, focus }) {
  const { store, cursor, route } = session;
  const kv = store.hello?.kv;
  if (!focus || !kv) return null;
  const pool = store.pool.at(cursor.seq.value);
  const { request, promptTok, count, hasEnded } = focus;
  const table = (pool.tables.get(request.number) ?? []).filter((block) => block >= 0);
  const kept = [];
  if (table.length === 0) {
    for (let block = 0; block < pool.numBlocks; block++) {
      if (pool.owners[block] === 0 && pool.flags[block] & SEALED && pool.lastOwner[block] === request.number) kept.push(block);
    }
  }
  const cached = formulas.cachedTokens.of({ N: promptTok, m: count });
  const perToken = kv.block_bytes / kv.block_tok;
  const about = html`${table.length || kept.length || "none"} of ${kv.n_blocks} blocks of ${kv.block_tok} tokens · ${inBytes(cached * perToken)}<${Badge}
    of="bytes in the cache" kind="C" formula=${BYTES} inputs=${{ n: cached, "B / s": perToken }}
    note="Keys and values of all layers, scales included, as the engine allocates them." />`;
  return html`<${Panel} title="Its memory" about=${about} actions=${html`<button class="quiet" onClick=${() => route.go("cache")}>the pool</button>`}>
    <ol class="blocks" style=${{ "--c": hueVariable(request) }} aria-label="blocks of this request">
      ${(table.length ? table : kept).map((block) => {
        const fill = pool.fill[block] / pool.blockTokens;
        const isSealed = (pool.flags[block] & SEALED) !== 0;
        const name = `${pool.owners[block] > 1 ? "shared" : ""} ${isSealed ? "sealed" : ""} ${table.length ? "" : "kept"}`;
        return html`<li key=${block} class=${name} title=${`block ${block}: ${pool.fill[block]} of ${pool.blockTokens} tokens`}>
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
