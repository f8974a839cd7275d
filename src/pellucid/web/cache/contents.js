// @ts-check
// The numbers in one block: keys or values of a layer and kv-head as a heat strip, beside what 8 and 4 bits make of them, and the error.

import { Picture } from "../draw/picture.js";
import { html, useSignal } from "../html.js";
import { percent } from "../parts/format.js";
import { Num } from "../parts/numbers.js";
import { Choice, Select, upTo } from "../parts/controls.js";
import { Empty, Panel, Why } from "../parts/panel.js";
import { useReply } from "../parts/reply.js";
import { quoted } from "../parts/token_text.js";

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
    ctx.font = `12px ${palette.ui}`;
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
      <${Choice} label="" of=${which} options=${[["k", "keys"], ["v", "values"]]} />
      <label class="dim">layer <${Select} of=${layer} options=${upTo(reply.n_layers)} /></label>
      <label class="dim">kv-head <${Select} of=${head} options=${upTo(reply.n_kv)} /></label>
    </div>
    <${Picture} label=${label} draw=${draw} inputs=${[reply, which.value]} height=${(/** @type {number} */ width) => (BANDS.length / across(width || 600)) * bandHeight} asTable=${asTable}
      twin=${{
        columns: ["position in the block", "token", ...Array.from({ length: Math.min(8, reply.head_dim) }, (_, i) => `[${i}]`), "largest error, 8 bits", "4 bits"],
        rows: () =>
          own.map((/** @type {number[]} */ row, /** @type {number} */ token) => [
            token, quoted(reply.texts?.[token] ?? ""), ...row.slice(0, 8),
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
