// @ts-check
// Cache: the block pool, a request's block table token by token, why a prompt was not found, the prefix tree, the numbers in a block.

import { Contents, PoolMap } from "../cache/pool_map.js";
import { BlockTable, Missed, PrefixTree } from "../cache/tables.js";
import { useAsTable } from "../draw/picture.js";
import { html } from "../html.js";
import { tableKey, useKeys } from "../parts/panel.js";

/** @param {{session: Session}} props */
export function View({ session }) {
  const { selection, store, later } = session;
  const asTable = useAsTable();
  /** @param {number} by */
  const moveBlock = (by) => {
    const { numBlocks } = store.pool.newest;
    if (numBlocks > 0) selection.block.value = Math.max(0, Math.min(numBlocks - 1, selection.block.value + by));
  };
  useKeys("Cache", [
    tableKey(asTable),
    { keys: [","], says: "the block before", run: () => moveBlock(-1) },
    { keys: ["."], says: "the next block", run: () => moveBlock(1) },
    { keys: ["Escape"], says: "no block", run: () => (selection.block.value = -1) },
  ]);
  return html`
    <div class="column">
      <${PoolMap} session=${session} asTable=${asTable} />
      <${Contents} session=${session} asTable=${asTable} />
    </div>
    <div class="column">
      <${BlockTable} session=${later} />
      <${Missed} session=${later} />
      <${PrefixTree} session=${later} />
    </div>
  `;
}
