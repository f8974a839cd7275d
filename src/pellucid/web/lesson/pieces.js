// @ts-check
// What a token is, before the word is used: a text that the reader types, in the pieces that the model sees.

import { recordedRun } from "../generate/first_run.js";
import { html, useEffect, useSignal } from "../html.js";
import { count, several } from "../parts/numbers.js";
import { legible } from "../parts/token_text.js";
import { messageOf } from "../state/api.js";

const WAIT_MS = 120; // the text must stand still
const FIRST = "The Eiffel Tower stands in the city of";
const MAX_SHOWN = 60;

/** @param {{session: Session}} props */
export function Pieces({ session }) {
  const { api, source, store } = session;
  const text = useSignal(FIRST);
  /** @type {{value: {id: number | null, text: string}[]}} */
  const pieces = useSignal([]);
  const problem = useSignal("");
  const isLive = source.isLive;
  useEffect(() => {
    const stop = new AbortController();
    const show = (/** @type {{id: number | null, text: string}[]} */ found) => {
      if (!stop.signal.aborted) [pieces.value, problem.value] = [found, ""];
    };
    const ask = isLive
      ? () => api.post("/tokenize", { content: text.value, return_token_strs: true }, stop.signal)
          .then(({ tokens, token_strs: texts }) => show(tokens.map((/** @type {number} */ id, /** @type {number} */ index) => ({ id, text: texts[index] }))))
      : () => recordedRun().then((run) => show((run?.prompt ?? []).map((piece) => ({ id: null, text: piece }))));
    const timer = setTimeout(() => ask().catch((error) => {
      if (!stop.signal.aborted) problem.value = messageOf(error);
    }), WAIT_MS);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [text.value, isLive]);
  const shown = pieces.value.slice(0, MAX_SHOWN);
  const more = pieces.value.length - shown.length;
  return html`<div class="pieces">
    <p>A <b>language model</b> is a program that has read many texts and goes on with any text, piece by piece. An <b>engine</b> is what runs it. These are the pieces that it sees:</p>
    ${isLive && html`<label>Type anything <input type="text" maxlength="400" spellcheck=${false} value=${text.value} onInput=${(/** @type {any} */ { target }) => (text.value = target.value)} /></label>`}
    <p class="piece-list mono">${shown.map((piece, index) => html`<span class="piece" key=${index} style=${{ "--c": `var(--o${(index % 6) + 1})` }}>${legible(piece.text)}${piece.id !== null && html`<sub>${piece.id}</sub>`}</span>`)}${more > 0 && ` and ${count(more)} more`}</p>
    ${problem.value
      ? html`<p class="why trouble"><b>The server could not do it:</b> ${problem.value}</p>`
      : html`<p class="small dim">${several(pieces.value.length, "piece")}: these are <b>tokens</b>. <span class="mono">␣</span> is a space: most words carry theirs in front.${isLive ? ` This model knows ${count(store.hello?.model.vocab ?? 0)} of them; each has a number, and the numbers are all that it sees.` : ""}</p>`}
  </div>`;
}
