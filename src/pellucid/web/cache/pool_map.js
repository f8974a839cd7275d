// @ts-check
// The pool as a map: one cell for each block, by owner, fill and state, as of the cursor.

import * as formulas from "../formulas.js";
import { hatch, hue, hueVariable } from "../draw/hues.js";
import { Picture } from "../draw/picture.js";
import { html } from "../html.js";
import { TableButton } from "../parts/controls.js";
import { count as counted, inBytes, percent } from "../parts/format.js";
import { Badge, Fact, Facts } from "../parts/numbers.js";
import { Empty, Legend, Panel, RequestName, Why } from "../parts/panel.js";
import { COPIED, LOADED, SEALED, SWAPPED_IN } from "../state/pool.js";

const MAX_HEIGHT = 420;
const MIN_SHOWN = 240; // blocks

/**
 * How cells are laid out: as large as fits, 24 pixels at most.
 * @param {number} width
 * @param {number} blocks
 */
export function layout(width, blocks) {
  let size = 24;
  const rows = () => Math.ceil(blocks / Math.max(1, Math.floor(width / size)));
  while (size > 3 && rows() * size > MAX_HEIGHT) size -= 1;
  const columns = Math.max(1, Math.floor(width / size));
  return { size, gap: size > 12 ? 2 : size > 5 ? 1 : 0, columns, height: Math.ceil(blocks / columns) * size };
}

/**
 * How many blocks the map shows: all, or, of a pool that is mostly untouched, twice as many as have been used.
 * @param {Pool} pool
 */
export function shownBlocks(pool) {
  let used = pool.numBlocks;
  while (used > 0 && pool.touched[used - 1] < 0) used -= 1;
  return Math.min(pool.numBlocks, Math.max(MIN_SHOWN, 2 * used));
}

/** @param {{session: Session, asTable: {value: boolean}}} props */
export function PoolMap({ session, asTable }) {
  const { store, cursor, selection } = session;
  const seq = cursor.seq.value;
  const kv = store.hello?.kv;
  if (!kv) {
    return html`<${Panel} title="The block pool"><${Empty}><p>Keys and values live in blocks of a pool that is planned before the model loads. It appears here as soon as the engine says how large it is.</p><//><//>`;
  }
  const pool = store.pool.at(seq);
  const counts = pool.counts();
  let shared = 0;
  let extra = 0;
  for (const owners of pool.owners) {
    if (owners > 1) {
      shared += 1;
      extra += owners - 1;
    }
  }
  const chosen = selection.block.value;
  const isKept = (/** @type {number} */ block) => pool.owners[block] === 0 && (pool.flags[block] & SEALED) !== 0;
  const requestOf = (/** @type {number} */ block) => store.byNumber[pool.lastOwner[block]];
  /** @param {number} block */
  const state = (block) => {
    if (pool.owners[block] > 1) return `shared by ${pool.owners[block]}`;
    if (pool.owners[block] === 1) return pool.flags[block] & SEALED ? "owned, sealed" : "owned";
    return isKept(block) ? "kept for later prompts" : "free";
  };
  /** @param {number} block */
  const cameBy = (block) =>
    pool.flags[block] & COPIED ? "copied on write" : pool.flags[block] & SWAPPED_IN ? "came back from the swap file" : pool.flags[block] & LOADED ? "read from disk" : "";
  const shown = shownBlocks(pool);
  let grid = layout(600, shown);
  /** @param {Surface} surface */
  const draw = ({ ctx, width, palette }) => {
    grid = layout(width, shown);
    const { size, gap, columns } = grid;
    const cell = size - gap;
    for (let block = 0; block < shown; block++) {
      const x = (block % columns) * size;
      const y = Math.floor(block / columns) * size;
      ctx.fillStyle = palette.line;
      ctx.fillRect(x, y, cell, cell);
      const fill = pool.fill[block] / pool.blockTokens;
      if (fill === 0) continue;
      const colour = hue(palette, pool.lastOwner[block]);
      const height = Math.max(1, Math.round(cell * fill));
      if (isKept(block)) {
        if (size > 6) hatch(ctx, x, y + cell - height, cell, height, colour);
        else {
          ctx.globalAlpha = 0.45;
          ctx.fillStyle = colour;
          ctx.fillRect(x, y + cell - height, cell, height);
          ctx.globalAlpha = 1;
        }
        continue;
      }
      ctx.fillStyle = colour;
      ctx.fillRect(x, y + cell - height, cell, height);
      if (size > 10 && pool.flags[block] & SEALED) {
        ctx.fillStyle = palette.panel;
        ctx.beginPath();
        ctx.arc(x + cell - 5, y + 5, 2, 0, 7);
        ctx.fill();
      }
      if (pool.owners[block] > 1) {
        ctx.strokeStyle = palette.ink;
        ctx.lineWidth = size > 10 ? 2 : 1;
        ctx.strokeRect(x + 1, y + 1, cell - 2, cell - 2);
      }
    }
    if (chosen >= 0 && chosen < shown) {
      ctx.strokeStyle = palette.sun;
      ctx.lineWidth = 3;
      ctx.strokeRect((chosen % columns) * size - 0.5, Math.floor(chosen / columns) * size - 0.5, cell + 1, cell + 1);
    }
  };
  const owners = [...pool.tables].filter(([, blocks]) => blocks.length > 0).sort(([a], [b]) => a - b).map(([number]) => store.byNumber[number]).filter(Boolean);
  const label = `${counted(pool.numBlocks)} blocks: ${counted(counts.used)} owned, ${counted(counts.cached)} kept for later, ${counted(counts.free)} free.`;
  const about = `${counted(pool.numBlocks)} blocks of ${kv.block_tok} tokens, ${inBytes(kv.block_bytes)} each`;
  return html`<${Panel} title="The block pool" about=${about}
    actions=${html`<${TableButton} asTable=${asTable} />`}>
    <${Picture}
      label=${label}
      draw=${draw}
      inputs=${[seq, chosen, shown]}
      height=${(/** @type {number} */ width) => layout(width || 600, shown).height}
      asTable=${asTable}
      cells=${{
        count: shown,
        columns: grid.columns,
        describe: (/** @type {number} */ block) =>
          `Block ${block}: ${state(block)}, ${pool.fill[block]} of ${pool.blockTokens} tokens${requestOf(block) ? `, ${requestOf(block).name}` : ""}`,
        rect: (/** @type {number} */ block) => ({
          x: (block % grid.columns) * grid.size, y: Math.floor(block / grid.columns) * grid.size, width: grid.size - grid.gap,
          height: grid.size - grid.gap,
        }),
        hit: (/** @type {number} */ x, /** @type {number} */ y) => {
          const column = Math.floor(x / grid.size);
          const block = Math.floor(y / grid.size) * grid.columns + column;
          return column < grid.columns && block >= 0 && block < shown ? block : -1;
        },
        choose: (/** @type {number} */ block) => (selection.block.value = block === chosen ? -1 : block),
      }}
      twin=${{
        columns: ["block", "state", "owners", "tokens", "sealed", "used by", ""],
        rows: () =>
          Array.from({ length: pool.numBlocks }, (_, block) => [
            block, state(block), pool.owners[block], pool.fill[block], pool.flags[block] & SEALED ? "yes" : "no",
            pool.owners[block] > 0 ? pool.ownersOf(block).map((number) => store.byNumber[number]?.name ?? "?").join(", ") : isKept(block) ? requestOf(block)?.name ?? "" : "",
            cameBy(block),
          ]),
      }}
    />
    ${shown < pool.numBlocks && html`<p class="small dim">and ${counted(pool.numBlocks - shown)} more that no request has used yet</p>`}
    <${Legend}
      items=${[
        ...owners.slice(0, 8).map((request) => ({ label: request.name, colour: hueVariable(request) })),
        { label: "kept, nobody's", pattern: /** @type {"hatched"} */ ("hatched") },
        { label: "free", colour: "var(--line)" },
        { label: "filled height: tokens · ring: shared · dot: sealed", pattern: /** @type {"line"} */ ("line") },
      ]}
    />
    <${Facts}>
      <${Fact} label="owned" value=${counted(counts.used)} unit=${`blocks, ${inBytes(counts.used * kv.block_bytes)}`} kind="C" from="kv.ops up to the cursor" />
      <${Fact} label="kept for later" value=${counted(counts.cached)} unit="blocks" kind="C" from="sealed blocks (H) that nobody owns"
        note="Nobody owns them. A prompt that begins alike takes them as they are; a request that lacks blocks evicts the one unused longest." />
      <${Fact} label="free" value=${counted(counts.free)} unit="blocks" kind="C" from="all blocks − owned − kept" />
      <${Fact} label="wasted" value=${counted(counts.waste)} unit="slots" kind="C" formula=${formulas.wastedSlots} inputs=${{ s: pool.blockTokens }}
        note="Slots of owned blocks without a token yet: fewer than a block for each request." />
    <//>
    ${shared > 0
      ? html`<${Why} lead=${`${counted(shared)} ${shared === 1 ? "block is" : "blocks are"} shared.`}>
          Without sharing ${shared === 1 ? "it" : "they"} would take ${counted(extra)} ${extra === 1 ? "block" : "blocks"} or ${inBytes(formulas.sharedBytes.of({ extra, B: kv.block_bytes }))}<${Badge} of="saved" kind="C" formula=${formulas.sharedBytes} inputs=${{ extra, B: kv.block_bytes }} /> more. A request that writes into a shared block gets a copy first.
        <//>`
      : html`<${Why} lead=${`${percent(counts.used / Math.max(1, pool.numBlocks))} of the pool is owned`}>
          and ${percent(counts.cached / Math.max(1, pool.numBlocks))} is kept for prompts to come. Both can be given to new requests: kept blocks are evicted, the longest unused first.
        <//>`}
    <${Chosen} session=${session} pool=${pool} block=${chosen} state=${state} cameBy=${cameBy} />
    <${Recent} session=${session} />
  <//>`;
}

/** What is known of the chosen block. @param {any} props */
function Chosen({ session, pool, block, state, cameBy }) {
  const { store, selection } = session;
  if (block < 0 || block >= pool.numBlocks) return html`<p class="dim small">Choose a block to see whose it is, and the numbers in it.</p>`;
  const owners = pool.ownersOf(block);
  const how = cameBy(block);
  return html`<p class="small dim">
    <b>Block ${block}</b>: ${state(block)}, ${pool.fill[block]} of ${pool.blockTokens} tokens${how && `, ${how}`}
    ${owners.map((/** @type {number} */ number) => html` <${RequestName} request=${store.byNumber[number]}
      onClick=${() => (selection.req.value = store.byNumber[number]?.req ?? "")} />`)}
    ${owners.length === 0 && pool.lastOwner[block] >= 0 && pool.fill[block] > 0 && html` last used by <${RequestName} request=${store.byNumber[pool.lastOwner[block]]} />`}
  </p>`;
}

/** @type {Record<string, string>} */
const OPS = {
  A: "taken", F: "filled", S: "shared", R: "released", C: "copied on write", H: "sealed", E: "evicted", O: "swapped out", I: "swapped in", L: "read from disk",
};

/** @param {{session: Session}} props */
function Recent({ session }) {
  const { store, cursor, selection } = session;
  const recent = store.pool.recent(cursor.seq.value, 10);
  if (recent.length === 0) return null;
  return html`<ol class="ops" aria-label="what happened to blocks last">
    ${recent.map(({ index, op, block, a, b }) => {
      const request = op === "A" || op === "S" || op === "L" ? a : op === "C" ? b : -1;
      return html`<li key=${index}>
        <button class="chip" onClick=${() => (selection.block.value = block)}>
          ${OPS[op]} <b>${block}</b>${op === "F" && ` to ${a}`}${op === "C" && ` from ${a}`}${request >= 0 && store.byNumber[request] && ` · ${store.byNumber[request].name}`}
        </button>
      </li>`;
    })}
  </ol>`;
}
