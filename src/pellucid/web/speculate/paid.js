// @ts-check
// Whether drafts paid: the measured speed-up beside the formula's, and sliders for its letters.

import * as formulas from "../formulas.js";
import { html } from "../html.js";
import { count, digits, inTime } from "../parts/format.js";
import { Fact, Facts, Num } from "../parts/numbers.js";
import { Slider } from "../parts/controls.js";
import { Panel, Why } from "../parts/panel.js";
import { acceptance, timesOfBoth, timesOfSteps } from "./run.js";

const MAX_K = 12;
const GUESS = { a: 0.8, k: 4, c: 0.05, v: 1.2 };

/** @typedef {"a" | "k" | "c" | "v"} Letter */
/** @type {[Letter, string, number, number, number][]} letter, in words, bounds, step */
const SLIDERS = [
  ["a", "a: a draft is right", 0, 0.99, 0.01],
  ["k", "k: drafts a round", 1, MAX_K, 1],
  ["c", "c: cost of a draft", 0, 1, 0.01],
  ["v", "v: cost of verifying", 0.5, 4, 0.05],
];

/** @param {{session: Session, state: SpeculateState}} props */
export function Paid({ session, state }) {
  const { store, cursor } = session;
  const { moved } = state;
  const seq = cursor.seq.value;
  const both = state.shown.value === "both" ? state.latest : null;
  const measured = both ? timesOfBoth(both.run) : timesOfSteps(store, seq);
  const all = acceptance(both?.rounds ?? store.requestsAt(seq).flatMap(({ drafts }) => drafts.filter((/** @type {any} */ each) => each.seq <= seq)));
  /** @type {Record<Letter, number>} */
  const found = measured && all.judged > 0 ? { a: all.right / all.judged, k: measured.k, c: measured.c, v: measured.v } : GUESS;
  const inputs = { ...found, ...moved.value };
  const gain = formulas.draftSpeedup.of({ ...inputs, k: Math.max(1, Math.round(inputs.k)) });
  const byK = Array.from({ length: MAX_K }, (_, index) => formulas.draftSpeedup.of({ ...inputs, k: index + 1 }));
  const best = byK.indexOf(Math.max(...byK));
  const most = Math.max(1, ...byK);
  const isMoved = Object.keys(moved.value).length > 0;
  const about = both ? "by the run with and without" : measured ? `${count(measured.steps)} steps of the serving engine with drafts` : "no step with drafts was measured yet";
  return html`<${Panel} title="Did it pay" about=${about}
    actions=${isMoved && html`<button class="quiet" onClick=${() => (moved.value = {})}>${measured ? "as measured" : "reset"}</button>`}>
    ${measured &&
    html`<${Facts}>
      <${Fact} label="measured" value=${measured.speedup} unit="times as fast" kind="M"
        from=${both ? "t_us without / t_us with, of cmp.end" : "Σ plain_us·(1 + n_right / requests) / (Σ step_us + Σ draft_us) of draft.step"}
        note=${both ? "Both ran, one after the other." : "plain_us is how long recent steps of this engine without drafts took: the same tokens would have taken that many of them."} />
      ${measured.wonUs !== undefined &&
      html`<${Fact} label="won, as the engine books it" value=${inTime(measured.wonUs)} kind="E" from="Σ draft.step.won_us"
        note="The engine decides by smoothed times of steps, of which one slow step changes little; negative: drafts cost more than they saved." />`}
    <//>`}
    <div class="sliders">
      ${SLIDERS.map(
        ([letter, label, min, max, step]) => html`<${Slider} key=${letter} label=${label} min=${min} max=${max} step=${step} value=${Math.max(min, Math.min(max, inputs[letter]))}
          shown=${digits(letter === "k" ? Math.round(inputs.k) : inputs[letter])} onInput=${(/** @type {number} */ value) => (moved.value = { ...moved.value, [letter]: value })} />`,
      )}
    </div>
    <p class="formula-line">by the formula <${Num} of="speed-up by the formula" value=${gain} unit="times as fast" kind="E" formula=${formulas.draftSpeedup}
      inputs=${{ a: inputs.a, k: Math.max(1, Math.round(inputs.k)), c: inputs.c, v: inputs.v }} note="E is the number of tokens a round: (1 − aᵏ⁺¹) / (1 − a)." /></p>
    <table class="positions">
      <caption>Speed-up by k, with the other three as they stand</caption>
      <thead class="spoken"><tr><th scope="col">k</th><th scope="col">bar</th><th scope="col">times</th></tr></thead>
      <tbody>
        ${byK.map((value, index) => html`<tr class=${index === best ? "best" : ""}><td>${index + 1}</td><td class="meter"><i style=${{ width: `${(100 * value) / most}%` }}></i></td><td class="number">${digits(value)}</td></tr>`)}
      </tbody>
    </table>
    ${measured
      ? html`<${Why} trouble=${measured.speedup < 1} lead=${measured.speedup < 1 ? `Drafts cost ${inTime(measured.spent - measured.withoutUs)} here.` : `Drafts saved ${inTime(measured.withoutUs - measured.spent)} here.`}>
          A step with drafts took ${digits(measured.v)} times as long as one without, and brought ${digits(1 + measured.right / measured.rounds)} tokens a request. ${best + 1}${best === 0 ? " draft" : " drafts"} a round would be best by the formula; it takes v as the same for each k, which a longer round exceeds.
        <//>`
      : html`<${Why} lead="Drafts pay if they are often right and verifying is nearly free.">With these values a round brings ${digits(formulas.expectedTokens.of({ ...inputs, k: Math.round(inputs.k) }))} tokens.<//>`}
  <//>`;
}
