// @ts-check
// Generate: the text as it appears, how each token was chosen, what it read, and what would have been with other parameters.

import { Ask } from "../generate/ask.js";
import { Attention, useAttention } from "../generate/attention.js";
import { Blocks } from "../generate/blocks.js";
import { Choice } from "../generate/choice.js";
import { Text } from "../generate/text.js";
import { html } from "../html.js";
import { useKeys } from "../parts/keys.js";
import { focusOf, generateState } from "../generate/state.js";

/** @param {{session: import("../state/session.js").Session}} props */
export function View({ session }) {
  const state = generateState(session);
  const focus = focusOf(session);
  const attention = useAttention(session, state, focus);
  const { selection } = session;
  /** @param {number} by */
  const move = (by) => {
    if (!focus) return;
    const last = focus.promptIds.length + focus.count - 1;
    selection.pos.value = Math.max(0, Math.min(last, focus.pos + by));
  };
  useKeys(
    "Generate",
    [
      { keys: ["/"], says: "to the prompt", run: () => document.getElementById("prompt")?.focus() },
      { keys: ["r"], says: "run", run: () => document.getElementById("run")?.click() },
      { keys: [","], says: "the token before", run: () => move(-1) },
      { keys: ["."], says: "the next token", run: () => move(1) },
      { keys: ["Escape"], says: "follow the newest token", run: () => (selection.pos.value = -1) },
      { keys: ["["], says: "attention: a layer down", run: () => state.moveLayer(-1) },
      { keys: ["]"], says: "attention: a layer up", run: () => state.moveLayer(1) },
      { keys: ["{"], says: "attention: a head down", run: () => state.moveHead(-1) },
      { keys: ["}"], says: "attention: a head up", run: () => state.moveHead(1) },
      { keys: ["i"], says: "token ids", run: () => (state.withIds.value = !state.withIds.value) },
      {
        keys: ["f"],
        says: "fork: continue with the likeliest other token",
        run: () => /** @type {HTMLElement | null} */ (document.querySelector(".candidates button.fork"))?.click(),
      },
    ],
    [focus?.pos, focus?.request.req, focus?.count],
  );
  return html`
    <div class="column">
      <${Ask} session=${session} state=${state} />
      <${Text} session=${session} state=${state} focus=${focus} read=${attention.shares} />
      <${Attention} session=${session} state=${state} focus=${focus} attention=${attention} />
    </div>
    <div class="column">
      <${Choice} session=${session} state=${state} focus=${focus} />
      <${Blocks} session=${session} focus=${focus} />
    </div>
  `;
}
