// @ts-check
// Compare: the same work done two ways by this engine, side by side: with and without the cache, formats of it, one and many.

import { Ask } from "../compare/ask.js";
import { Curves } from "../compare/curves.js";
import { Figures } from "../compare/figures.js";
import { Loops } from "../compare/loops.js";
import { compareState, KINDS } from "../compare/state.js";
import { useAsTable } from "../draw/picture.js";
import { html } from "../html.js";
import { useKeys } from "../parts/keys.js";

/** @param {{session: import("../state/session.js").Session}} props */
export function View({ session }) {
  const state = compareState(session);
  const asTable = useAsTable();
  state.version.value;
  useKeys("Compare", [
    { keys: ["r"], says: "run", run: () => document.getElementById("compare-run")?.click() },
    { keys: ["k"], says: "the next kind of comparison", run: () => nextKind(state) },
    { keys: ["/"], says: "to the prompt", run: () => document.getElementById("compare-prompt")?.focus() },
    { keys: [","], says: "a token back", run: () => state.move(-1) },
    { keys: ["."], says: "a token on", run: () => state.move(1) },
    { keys: ["Escape"], says: "the end, or what runs", run: () => (state.at.value = -1) },
    { keys: ["t"], says: "tables instead of pictures", run: () => (asTable.value = !asTable.value) },
  ]);
  return html`
    <${Ask} session=${session} state=${state} />
    <${Loops} state=${state} />
    <${Figures} state=${state} />
    <${Curves} state=${state} asTable=${asTable} />
  `;
}

/** @param {import("../compare/state.js").CompareState} state */
function nextKind(state) {
  const index = KINDS.findIndex(([kind]) => kind === state.kind.value);
  state.kind.value = KINDS[(index + 1) % KINDS.length][0];
  state.at.value = -1;
}
