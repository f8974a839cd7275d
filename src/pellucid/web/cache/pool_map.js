// @ts-check
// The pool as a map, one cell for each block, by owner, fill and state, as of the cursor; and the numbers in a block beside what fewer bits make of them.

import { hatch, hue, hueVariable } from "../draw/hues.js";
import { Picture } from "../draw/picture.js";
import * as formulas from "../formulas.js";
import { html, useSignal, useRef } from "../html.js";
import { Badge, count as counted, Fact, Facts, inBytes, Num, percent, plural, several } from "../parts/numbers.js";
import { Choice, Empty, Legend, Panel, RequestName, Select, TableButton, upTo, useReply, Why } from "../parts/panel.js";
import { legible } from "../parts/token_text.js";
import { COPIED, LOADED, SEALED, SWAPPED_IN } from "../state/pool.js";

const MAX_HEIGHT = 420;
const MIN_SHOWN = 240; // blocks

/**
 * How cells are laid out: as large as fits, 24 pixels at most.
 * @param {number} width
 * @param {number} blocks
 */
function layout(width, blocks) {
  let size = 24;
  const rows = () => Math.ceil(blocks / Math.max(1, Math.floor(width / size)));
  while (size > 3 && rows() * size > MAX_HEIGHT) size -= 1;
  const columns = Math.max(1, Math.floor(width / size));
  return { size, gap: size > 12 ? 2 : size > 5 ? 1 : 0, columns, height: Math.ceil(blocks / columns) * size };
}

/**
 * How many blocks the map shows. Of a pool that is mostly untouched it shows a part and doubles it: each size draws all cells anew.
 * @param {Pool} pool
 */
function shownBlocks(pool) {
  let used = pool.numBlocks;
  while (used > 0 && pool.touched[used - 1] < 0) used -= 1;
  let shown = MIN_SHOWN;
  while (shown < used) shown *= 2;
  return Math.min(pool.numBlocks, shown);
}

/** @param {{session: Session, asTable: {value: boolean}}} props */
export function PoolMap({ session, asTable }) {
  const { store, cursor, selection } = session;
  const seq = cursor.seq.value;
  const kv = store.hello?.kv;
  if (!kv) {
    return html`<${Panel} title="The block pool"><${Empty}><p>Keys and values live in blocks of a pool that is planned before the model loads. It appears here once the engine tells its size.</p><//><//>`;
  }
  const pool = store.pool.at(seq);
  const counts = pool.counts();
  const { shared, extra } = counts;
  const chosen = selection.block.value;
  /** @param {number} block */
  const isKept = (block, of = pool) => of.owners[block] === 0 && (of.flags[block] & SEALED) !== 0;
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
  const grid = useRef(layout(600, shown));
  const looks = useRef(new Int32Array(0)); // of each block, as it was drawn
  /** @param {Surface} surface */
  const draw = ({ ctx, width, palette, isFresh }) => {
    const pool = store.pool.at(cursor.seq.value);
    grid.current = layout(width, shown);
    const { size, gap, columns } = grid.current;
    const cell = size - gap;
    if (isFresh) looks.current = new Int32Array(shown).fill(-1);
    for (let block = 0; block < shown; block++) {
      const look = (pool.fill[block] * 4 + Math.min(pool.owners[block], 2)) * 16 + (pool.flags[block] & SEALED ? 8 : 0) + ((pool.lastOwner[block] + 6) % 6);
      if (looks.current[block] === look) continue;
      looks.current[block] = look;
      const x = (block % columns) * size;
      const y = Math.floor(block / columns) * size;
      ctx.fillStyle = palette.line;
      ctx.fillRect(x, y, cell, cell);
      const fill = pool.fill[block] / pool.blockTokens;
      if (fill === 0) continue;
      const colour = hue(palette, requestOf(block)?.hue ?? -1);
      const height = Math.max(1, Math.round(cell * fill));
      if (isKept(block, pool)) {
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
  const owners = [...pool.tables].filter(([, blocks]) => blocks.some((block) => block >= 0)).sort(([a], [b]) => a - b).map(([number]) => store.byNumber[number]).filter(Boolean);
  const label = `${counted(pool.numBlocks)} blocks: ${counted(counts.used)} owned, ${counted(counts.cached)} kept for later, ${counted(counts.free)} free.`;
  const about = `${several(pool.numBlocks, "block")} of ${several(kv.block_tok, "token")}, ${inBytes(kv.block_bytes)} each`;
  return html`<${Panel} title="The block pool" about=${about}
    actions=${html`<${TableButton} asTable=${asTable} />`}>
    <${Picture}
      label=${label}
      draw=${draw}
      inputs=${[chosen, shown]}
      follows=${cursor.seq}
      keeps=${`${chosen} ${shown}`}
      height=${(/** @type {number} */ width) => layout(width || 600, shown).height}
      asTable=${asTable}
      cells=${/** @type {Cells} */ ({
        count: shown,
        get columns() {
          return grid.current.columns;
        },
        describe: (block) =>
          `Block ${block}: ${state(block)}, ${pool.fill[block]} of ${pool.blockTokens} tokens${requestOf(block) ? `, ${requestOf(block).name}` : ""}`,
        rect(block) {
          const { size, gap, columns } = grid.current;
          return { x: (block % columns) * size, y: Math.floor(block / columns) * size, width: size - gap, height: size - gap };
        },
        hit(x, y) {
          const { size, columns } = grid.current;
          const column = Math.floor(x / size);
          const block = Math.floor(y / size) * columns + column;
          return column < columns && block >= 0 && block < shown ? block : -1;
        },
        choose: (block) => (selection.block.value = block === chosen ? -1 : block),
      })}
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
        { label: "kept, nobody's", pattern: "hatched" },
        { label: "free", colour: "var(--line)" },
        { label: "filled height: tokens · ring: shared · dot: sealed", pattern: "line" },
      ]}
    />
    <${Facts}>
      <${Fact} label="owned" value=${counted(counts.used)} unit=${`${plural(counts.used, "block")}, ${inBytes(counts.used * kv.block_bytes)}`} kind="C" from="kv.ops up to the cursor" />
      <${Fact} label="kept for later" value=${counted(counts.cached)} unit=${plural(counts.cached, "block")} kind="C" from="sealed blocks (H) that nobody owns"
        note="Nobody owns them. A prompt that begins alike takes them as they are; a request that lacks blocks evicts the one unused longest." />
      <${Fact} label="free" value=${counted(counts.free)} unit=${plural(counts.free, "block")} kind="C" from="all blocks − owned − kept" />
      <${Fact} label="wasted" value=${counted(counts.waste)} unit=${plural(counts.waste, "slot")} kind="C" formula=${formulas.wastedSlots} inputs=${{ s: pool.blockTokens }}
        note="Slots of owned blocks without a token yet: fewer than a block for each request." />
    <//>
    ${shared > 0
      ? html`<${Why} lead=${`${counted(shared)} ${shared === 1 ? "block is" : "blocks are"} shared.`}>
          Without sharing ${shared === 1 ? "it" : "they"} would take ${several(extra, "block")} or ${inBytes(formulas.sharedBytes.of({ extra, B: kv.block_bytes }))}<${Badge} of="saved" kind="C" formula=${formulas.sharedBytes} inputs=${{ extra, B: kv.block_bytes }} /> more. A request that writes into a shared block gets a copy first.
        <//>`
      : counts.used + counts.cached === 0
        ? html`<${Why} lead="The cache is empty.">A request takes a block for its first tokens, and one more whenever its last is full.<//>`
        : html`<${Why} lead=${`${percent(counts.used / Math.max(1, pool.numBlocks))} of the pool is owned.`}>
          ${percent(counts.cached / Math.max(1, pool.numBlocks))} is kept for prompts to come. When no block is free, a new request gets the kept one that was unused the longest.
        <//>`}
    <${Chosen} session=${session} pool=${pool} block=${chosen} state=${state} cameBy=${cameBy} />
    <${Recent} session=${session} seq=${seq} />
  <//>`;
}

/** @param {any} props */
function Chosen({ session, pool, block, state, cameBy }) {
  const { store, selection } = session;
  if (block < 0 || block >= pool.numBlocks) return html`<p class="dim small">Choose a block to see whose it is, and the numbers in it.</p>`;
  const owners = pool.ownersOf(block);
  const how = cameBy(block);
  return html`<p class="small dim">
    <b>Block ${block}</b>: ${state(block)}, ${pool.fill[block]} of ${pool.blockTokens} tokens${how && `, ${how}`}
    ${owners.map((/** @type {number} */ number) => html` <${RequestName} request=${store.byNumber[number]}
      onClick=${() => (selection.req.value = store.byNumber[number]?.req ?? "")} />`)}
    ${owners.length === 0 && pool.lastOwner[block] >= 0 && pool.fill[block] > 0 && html`, last used by <${RequestName} request=${store.byNumber[pool.lastOwner[block]]} />`}
  </p>`;
}

/** @type {Record<string, string>} */
const OPS = {
  A: "taken", F: "filled", S: "shared", R: "released", C: "copied on write", H: "sealed", E: "evicted", O: "swapped out", I: "swapped in", L: "read from disk",
};

/** @param {{session: Session, seq: number}} props */
function Recent({ session, seq }) {
  const { store, selection } = session;
  const recent = store.pool.recent(seq, 10);
  if (recent.length === 0) return null;
  return html`<ol class="ops" aria-label="what happened to blocks last">
    ${recent.map(({ op, block, a, b }) => {
      const request = op === "A" || op === "S" || op === "L" ? a : op === "C" ? b : -1;
      return html`<li>
        <button class="chip" onClick=${() => (selection.block.value = block)}>
          ${OPS[op]} <b>${block}</b>${op === "F" && ` to ${a}`}${op === "C" && ` from ${a}`}${request >= 0 && store.byNumber[request] && ` · ${store.byNumber[request].name}`}
        </button>
      </li>`;
    })}
  </ol>`;
}

const BANDS = [
  ["own", "as cached"],
  ["int8", "8 bits"],
  ["int4", "4 bits"],
  ["error", "error of 4 bits, 8 times enlarged"],
];
const ROW = 5; // pixels a token, at most
const LABEL = 20;
const GAP = 16; // pixels between two bands

/** @param {{session: Session, asTable: {value: boolean}}} props */
export function Contents({ session, asTable }) {
  const { selection, source, api, cursor, store } = session;
  const layer = useSignal(0);
  const head = useSignal(0);
  const which = useSignal("k");
  const block = selection.block.value;
  const pool = store.pool.at(cursor.seq.value);
  const fill = block >= 0 && block < pool.numBlocks ? store.pool.newest.fill[block] : 0;
  const wanted = source.isLive && block >= 0 && fill > 0 ? `/v1/kv/blocks/${block}?layer=${layer.value}&head=${head.value}` : "";
  const { reply, problem } = useReply(api, wanted, { wait: 80, inputs: [fill] });
  if (!reply || reply.filled_tok === 0) {
    const text = problem
      ? `The engine could not look: ${problem}`
      : !source.isLive
        ? "The numbers in a block are read from a running engine; a recorded run has none."
        : block < 0
          ? "Choose a block of the pool: its keys and values appear here, beside what 8 and 4 bits would make of them."
          : fill === 0
            ? `Block ${block} is empty.`
            : "Reading the block …";
    return html`<${Panel} title="Keys and values"><${Empty}><p>${text}</p><//><//>`;
  }
  const own = reply[which.value];
  const coded = { int8: reply.int8[which.value], int4: reply.int4[which.value] };
  const largest = Math.max(1e-9, ...own.flat().map(Math.abs));
  const tokens = reply.filled_tok;
  const rowHeight = Math.max(2, Math.min(ROW, Math.floor(160 / tokens)));
  const bandHeight = LABEL + tokens * rowHeight + 6;
  const across = (/** @type {number} */ width) => (width < 480 ? 1 : 2);
  /** @param {string} band @param {number} token @param {number} i */
  const number = (band, token, i) => {
    if (band === "own") return own[token][i];
    if (band === "error") return 8 * (coded.int4.numbers[token][i] - own[token][i]);
    return coded[/** @type {"int8" | "int4"} */ (band)].numbers[token][i];
  };
  /** @param {Surface} surface */
  const draw = ({ ctx, width, palette }) => {
    ctx.font = `14px ${palette.ui}`;
    ctx.textBaseline = "middle";
    const columns = across(width);
    const pitch = (width + GAP) / columns;
    const cell = (pitch - GAP) / reply.head_dim;
    BANDS.forEach(([band, label], index) => {
      const left = (index % columns) * pitch;
      const top = Math.floor(index / columns) * bandHeight;
      ctx.globalAlpha = 1;
      ctx.fillStyle = palette.ink2;
      ctx.fillText(label, left, top + LABEL / 2);
      for (let token = 0; token < tokens; token++) {
        for (let i = 0; i < reply.head_dim; i++) {
          const value = number(band, token, i) / largest;
          ctx.globalAlpha = Math.min(1, Math.abs(value)) ** 0.7;
          ctx.fillStyle = band === "error" ? palette.coral : value < 0 ? palette.sun : palette.water;
          ctx.fillRect(left + i * cell, top + LABEL + token * rowHeight, Math.max(1, cell - 0.5), rowHeight - (rowHeight > 3 ? 0.5 : 0));
        }
      }
    });
    ctx.globalAlpha = 1;
  };
  const name = which.value === "k" ? "keys" : "values";
  const label = `${name} of block ${block}, layer ${layer.value}, head ${head.value}: ${tokens} tokens of ${reply.head_dim} numbers.`;
  return html`<${Panel} title="Keys and values" about=${`block ${block}: ${tokens} tokens of ${reply.head_dim} numbers, in ${reply.dtype}`}>
    <div class="pick-row">
      <${Choice} label="show" of=${which} options=${[["k", "keys"], ["v", "values"]]} />
      <label class="dim">layer <${Select} of=${layer} options=${upTo(reply.n_layers)} /></label>
      <label class="dim">kv-head <${Select} of=${head} options=${upTo(reply.n_kv)} /></label>
    </div>
    <${Picture} label=${label} draw=${draw} inputs=${[reply, which.value]} height=${(/** @type {number} */ width) => (BANDS.length / across(width || 600)) * bandHeight} asTable=${asTable}
      twin=${{
        columns: ["position in the block", "token", ...Array.from({ length: Math.min(8, reply.head_dim) }, (_, i) => `[${i}]`), "largest error, 8 bits", "4 bits"],
        rows: () =>
          own.map((/** @type {number[]} */ row, /** @type {number} */ token) => [
            token, legible(reply.texts?.[token] ?? ""), ...row.slice(0, 8),
            ...["int8", "int4"].map((format) => Math.max(...row.map((x, i) => Math.abs(/** @type {any} */ (coded)[format].numbers[token][i] - x))).toPrecision(3)),
          ]),
      }}
    />
    <${Why} lead=${`8 bits change these ${name} by ${percent(coded.int8.rms_error_frac)}, 4 bits by ${percent(coded.int4.rms_error_frac)}.`}>
      The error is the root of its mean square over that of the numbers:
      ${" "}<${Num} of="error of 8 bits" value=${percent(coded.int8.rms_error_frac)} kind="C" from="GET /v1/kv/blocks: int8.rms_error_frac" /> and
      ${" "}<${Num} of="error of 4 bits" value=${percent(coded.int4.rms_error_frac)} kind="C" from="GET /v1/kv/blocks: int4.rms_error_frac" />. Teal is positive, amber negative.
    <//>
  <//>`;
}
