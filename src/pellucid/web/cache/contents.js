// @ts-check
// The numbers in one block: keys or values of a layer and kv-head as a heat strip, beside what 8 and 4 bits make of them, and the error.

import { Picture } from "../draw/picture.js";
import { html, useSignal } from "../html.js";
import { percent } from "../parts/format.js";
import { Num } from "../parts/numbers.js";
import { Choice, Empty, Panel, Why } from "../parts/panel.js";
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

/** @param {{session: import("../state/session.js").Session, asTable: {value: boolean}}} props */
export function Contents({ session, asTable }) {
  const { selection, source, api, cursor, store } = session;
  const layer = useSignal(0);
  const head = useSignal(0);
  const which = useSignal(/** @type {"k" | "v"} */ ("k"));
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
  /** @param {string} band @param {number} token @param {number} i */
  const number = (band, token, i) => {
    if (band === "own") return own[token][i];
    if (band === "error") return 8 * (coded.int4.numbers[token][i] - own[token][i]);
    return coded[/** @type {"int8" | "int4"} */ (band)].numbers[token][i];
  };
  /** @param {import("../draw/picture.js").Surface} surface */
  const draw = ({ ctx, width, palette }) => {
    ctx.font = `12px ${palette.ui}`;
    ctx.textBaseline = "middle";
    const cell = width / reply.head_dim;
    BANDS.forEach(([band, label], index) => {
      const top = index * bandHeight;
      ctx.globalAlpha = 1;
      ctx.fillStyle = palette.ink2;
      ctx.fillText(label, 0, top + LABEL / 2);
      for (let token = 0; token < tokens; token++) {
        for (let i = 0; i < reply.head_dim; i++) {
          const value = number(band, token, i) / largest;
          ctx.globalAlpha = Math.min(1, Math.abs(value)) ** 0.7;
          ctx.fillStyle = band === "error" ? palette.coral : value < 0 ? palette.sun : palette.water;
          ctx.fillRect(i * cell, top + LABEL + token * rowHeight, Math.max(1, cell - 0.5), rowHeight - (rowHeight > 3 ? 0.5 : 0));
        }
      }
    });
    ctx.globalAlpha = 1;
  };
  const name = which.value === "k" ? "keys" : "values";
  const label = `${name} of block ${block}, layer ${layer.value}, head ${head.value}: ${tokens} tokens of ${reply.head_dim} numbers.`;
  return html`<${Panel} title="Keys and values" about=${`block ${block}: ${tokens} tokens of ${reply.head_dim} numbers, in ${reply.dtype}`}>
    <div class="pick-row">
      <${Choice} label="" value=${which.value} options=${[["k", "keys"], ["v", "values"]]} onChoose=${(/** @type {any} */ value) => (which.value = value)} />
      <${Select} label="layer" count=${reply.n_layers} which=${layer} />
      <${Select} label="kv-head" count=${reply.n_kv} which=${head} />
    </div>
    <${Picture} label=${label} draw=${draw} inputs=${[reply, which.value]} height=${BANDS.length * bandHeight} asTable=${asTable}
      twin=${{
        columns: ["position in the block", "token", ...Array.from({ length: Math.min(8, reply.head_dim) }, (_, i) => `[${i}]`), "largest error, 8 bits", "4 bits"],
        rows: () =>
          own.map((/** @type {number[]} */ row, /** @type {number} */ token) => [
            token, quoted(reply.texts?.[token] ?? ""), ...row.slice(0, 8),
            ...["int8", "int4"].map((format) => Math.max(...row.map((x, i) => Math.abs(/** @type {any} */ (coded)[format].numbers[token][i] - x))).toPrecision(3)),
          ]),
      }}
    />
    <${Why} lead=${`8 bits keep these ${name} to ${percent(coded.int8.rms_error_frac)}, 4 bits to ${percent(coded.int4.rms_error_frac)}.`}>
      The error is the root of its mean square over that of the numbers:
      ${" "}<${Num} of="error of 8 bits" value=${percent(coded.int8.rms_error_frac)} kind="C" from="GET /v1/kv/blocks: int8.rms_error_frac" /> and
      ${" "}<${Num} of="error of 4 bits" value=${percent(coded.int4.rms_error_frac)} kind="C" from="GET /v1/kv/blocks: int4.rms_error_frac" />. Teal is positive, amber negative.
    <//>
  <//>`;
}

/** @param {{label: string, count: number, which: {value: number}}} props */
function Select({ label, count, which }) {
  return html`<label class="dim">${label} <select value=${which.value} onChange=${(/** @type {any} */ event) => (which.value = Number(event.target.value))}>
    ${Array.from({ length: count }, (_, index) => html`<option value=${index}>${index}</option>`)}
  </select></label>`;
}
