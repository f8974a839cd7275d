// @ts-check
// The same text without drafts and with them, both really run: that no token differs, and what each took.

import { html } from "../html.js";
import { counted, FigureTable, measured } from "../parts/figures.js";
import { count, digits, inTime, percent } from "../parts/format.js";
import { Badge } from "../parts/numbers.js";
import { Panel, Why } from "../parts/panel.js";

/** @type {Record<string, string>} */
const NAMES = { plain: "without drafts", drafted: "with drafts" };

/** @param {{state: SpeculateState}} props */
export function Both({ state }) {
  const run = state.latest?.run;
  if (!run) return null;
  const { end } = run;
  /** @type {import("../parts/figures.js").Figure[]} */
  const rows = [
    ["new tokens", (arm) => count(arm.n_tok), counted("cmp.end.n_tok")],
    ["passes of the model", (arm) => count(arm.passes), counted("events cmp: one for each step, the prompt's among them")],
    ["tokens a pass", (arm) => digits(arm.n_tok / arm.passes), counted("new tokens / passes")],
    ["drafts, of them right", (arm) => (arm.drafted ? `${count(arm.drafted)}, ${percent(arm.right / arm.drafted)}` : undefined), counted("cmp.end.drafted, right")],
    ["time", (arm) => inTime(arm.t_us), measured("cmp.end.t_us, that of drafting included")],
    ["of it drafting", (arm) => (arm.drafted ? inTime(arm.draft_us) : undefined), measured("cmp.end.draft_us")],
  ];
  return html`<${Panel} title="The same text, without and with" about="on engines of their own over the same weights">
    <div class="loops">
      ${run.arms.map((arm) => html`<div key=${arm.name} class="written" style=${{ "--c": `var(--o${arm.number + 1})` }}>
        <h3>${NAMES[arm.name]}<small>${count(arm.tokens.length)} passes</small></h3>
        <p class="mono text" tabindex="0" role="region" aria-label=${NAMES[arm.name]}>${arm.texts.map((text, index) => html`<span class=${`pass ${index % 2 ? "odd" : ""}`}>${text}</span>`)}</p>
      </div>`)}
    </div>
    <p class="faint small">Each shade is one pass of the model: where drafts were right, a pass wrote several tokens.</p>
    ${end && html`<${FigureTable} rows=${rows}
      columns=${run.arms.map(({ name, number, tokens }) => ({ name: NAMES[name], hue: `var(--o${number + 1})`, of: { ...end.arms[name], passes: tokens.length } }))} />
      <${Why} trouble=${end.first_diff !== null} lead=${end.first_diff === null ? `All ${count(end.same_tok)} tokens are the same.` : `The texts part at token ${end.first_diff + 1}.`}>
        A draft is kept only where the model itself chooses that token<${Badge} of="same tokens" kind="C" from="cmp.end.same_tok" />. So drafts change the number of passes
        and the time, here ${digits(end.arms.plain.t_us / end.arms.drafted.t_us)} times as fast<${Badge} of="speed-up" kind="M" from="t_us without / t_us with" />, and not the text.
      <//>`}
  <//>`;
}
