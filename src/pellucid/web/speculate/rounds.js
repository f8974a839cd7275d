// @ts-check
// What drafts did: the same text without and with them, rounds as rows beside what the model chose, acceptance by position.

import { html, useEffect } from "../html.js";
import { Choice } from "../parts/controls.js";
import { Badge, count, counted, digits, FigureTable, inTime, measured, percent } from "../parts/numbers.js";
import { Empty, Legend, Panel, RequestName, Why } from "../parts/panel.js";
import { visible } from "../parts/token_text.js";
import { acceptance } from "./run.js";

/** @type {Record<string, string>} */
const NAMES = { plain: "without drafts", drafted: "with drafts" };

/** @param {{state: SpeculateState}} props */
export function Both({ state }) {
  const run = state.latest?.run;
  if (!run) return null;
  const { end } = run;
  /** @type {Figure[]} */
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

const SHOWN = 24;

/** @param {{session: Session, state: SpeculateState, rounds: any[]}} props */
export function Rounds({ session, state, rounds }) {
  const { cursor, runs, source, store } = session;
  const request = session.request.value;
  const isBoth = state.shown.value === "both" && state.latest !== null;
  const shown = rounds.slice(-SHOWN).reverse();
  const ids = shown.flatMap(({ draft, chosen }) => (chosen === undefined ? draft : [...draft, chosen]));
  useEffect(() => {
    if (source.isLive) void runs.learnTexts(ids);
  }, [ids.join()]);
  const textOf = (/** @type {number} */ id) => visible(runs.textOf(id) || `#${id}`);
  const name = request && html`<${RequestName} request=${request} />`;
  const actions = state.latest && html`<${Choice} label="of" of=${state.shown} options=${[["both", "with and without"], ["engine", name ?? "the engine"]]} />`;
  if (rounds.length === 0) {
    const why = isBoth
      ? "Nothing was drafted: the text does not repeat itself. Try the draft model."
      : store.hello?.speculation === "off"
        ? "The serving engine makes no drafts: start it with --speculation ngram or draft, or run with and without here."
        : "A text that repeats itself gets drafts by prompt lookup.";
    return html`<${Panel} title="Rounds" actions=${actions}><${Empty}><p>${isBoth ? "" : html`No drafts of ${name ?? "a request"} so far. `}${why}</p><//><//>`;
  }
  const { right, drafted, leviathan, withLeviathan, rightThere } = acceptance(rounds);
  return html`<${Panel} title=${isBoth ? "Rounds" : html`Rounds of ${name}`} about=${`${count(rounds.length)} rounds, the newest first`} actions=${actions}>
    <div class="rounds-box" tabindex="0" role="region" aria-label="rounds">
      <table class="draft-rounds">
        <thead><tr><th scope="col">step</th><th scope="col">drafts${withLeviathan > 0 ? ", with the model's probability" : ""}</th><th scope="col">the model's own</th><th scope="col" class="number">right</th>${withLeviathan > 0 && html`<th scope="col" class="number">Leviathan</th>`}</tr></thead>
        <tbody>
          ${shown.map(
            (round) => html`<tr key=${round.seq}>
              <td>${isBoth ? count(round.step) : html`<button class="quiet mono" title="go there" onClick=${() => cursor.seek(round.seq)}>${count(round.step)}</button>`}</td>
              <td><span class="chips">${round.draft.map((/** @type {number} */ id, /** @type {number} */ index) => {
                const state = index < round.n_right ? "right" : index === round.n_right ? "wrong" : "unread";
                const p = round.p_target?.[index];
                const q = round.p_draft?.[index];
                return html`<span class=${`draft-chip ${state}`} title=${p === undefined ? state : `p by the model ${percent(p)}, by the drafter ${percent(q)}`}><span class="mono">${textOf(id)}</span>${p !== undefined &&
                html`<small>${percent(p)}</small>`}<span class="spoken"> ${state}</span></span>`;
              })}</span></td>
              <td class="mono">${round.chosen === undefined ? html`<span class="faint">one more</span>` : textOf(round.chosen)}</td>
              <td class="number">${round.n_right} of ${round.draft.length}</td>
              ${withLeviathan > 0 && html`<td class="number">${round.leviathan_tok === undefined ? "–" : digits(round.leviathan_tok)}</td>`}
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
    ${rounds.length > shown.length && html`<p class="small dim">The newest ${shown.length} of ${count(rounds.length)}: move the cursor back for others.</p>`}
    <${Legend}
      items=${[
        { label: "right: the model chose it as well", colour: "var(--water2)" },
        { label: "wrong: the model's own choice stands", pattern: "outlined", colour: "var(--coral)" },
        { label: "after a wrong one: dropped", pattern: "outlined", colour: "var(--line2)" },
      ]}
    />
    <${Why} lead="The text is the same with and without drafts, bit for bit.">
      A draft is kept only if it equals the token that the model draws itself at that position, with the same noise. Of ${count(drafted)} drafts ${count(right)} were
      equal<${Badge} of="drafts that were right" kind="C" from="draft.n_right, summed" />: so many tokens needed no pass of their own.
      ${withLeviathan > 0 && html` Leviathan's rule, which keeps the distribution but not the text, would have kept ${digits(leviathan)} where this one kept ${count(rightThere)}<${Badge}
        of="Leviathan's rule" kind="E" from="draft.leviathan_tok, summed" note="Expected drafts that the rule accepts: the sum over drafts of the product of the overlaps up to there." />.`}
    <//>
  <//>`;
}

/** @param {{rounds: any[]}} props */
export function ByPosition({ rounds }) {
  const { positions, judged, right } = acceptance(rounds);
  if (positions.length === 0) return null;
  return html`<${Panel} title="Acceptance by position" about="of drafts whose forerunners were right">
    <table class="positions">
      <thead><tr><th scope="col">draft</th><th scope="col">right</th><th scope="col" class="number">share</th><th scope="col" class="number">of</th></tr></thead>
      <tbody>
        ${positions.map(
          (each, index) => html`<tr><td>${index + 1}</td><td class="meter"><i style=${{ width: `${(100 * each.right) / each.judged}%` }}></i></td>
            <td class="number">${percent(each.right / each.judged)}</td><td class="number">${count(each.judged)}</td></tr>`,
        )}
      </tbody>
    </table>
    <${Why} lead=${`${percent(right / judged)} of the judged drafts were right`}>
      (${count(right)} of ${count(judged)})<${Badge} of="a" kind="C" from="draft.n_right, and one wrong draft in each round that ended early" />. This is a of the formula, which takes it as the same at each position.
    <//>
  <//>`;
}
