// @ts-check
// What drafts did: the same text without and with them, rounds as rows beside what the model chose, acceptance by position, and whether drafts paid: the
// measured speed-up beside the formula's, with a slider for each of its letters.

import { isNoise, newRun, spreadOf, take, timeSentence } from "../compare/loops.js";
import * as formulas from "../formulas.js";
import { html, signal, useEffect } from "../html.js";
import { Badge, count, counted, digits, Fact, Facts, FigureTable, inTime, measured, Num, percent, plural, several } from "../parts/numbers.js";
import { Choice, Empty, Legend, Panel, RequestName, Slider, Why } from "../parts/panel.js";
import { visible } from "../parts/token_text.js";
import { createStreamed } from "../state/api.js";

/** @type {[string, string][]} what it is, the text */
export const EXAMPLES = [
  ["a story", "Once upon a time"],
  ["a text that repeats itself", "Copy this: one two three four five six seven eight nine ten. one two"],
];

/** @param {Session} session */
export function speculateState(session) {
  return /** @type {ReturnType<typeof create>} */ (session.views.speculate ??= create(session));
}

/** @param {Session} session */
function create(session) {
  const prompt = signal(EXAMPLES[0][1]);
  const drafter = signal("draft");
  const k = signal(4);
  const tokens = signal(48);
  /** Whose rounds are shown: "both", of the latest run with and without, or "engine", of the chosen request. */
  const shown = signal("engine");
  const streamed = createStreamed(session);
  /** @type {{run: Comparison, rounds: any[]} | null} */
  let latest = null;
  return {
    prompt, drafter, k, tokens, shown, ...streamed,
    /** Values of the formula's letters that the reader set in place of those measured. */
    moved: signal(/** @type {Record<string, number>} */ ({})),
    /** What the shown run was asked, in a recording. */
    asked: /** @type {any} */ (null),
    /** Plays a recorded run. @param {any} body */
    play(body) {
      if (streamed.stop.value) return;
      this.asked = body;
      prompt.value = body.prompt;
      drafter.value = body.drafter;
      k.value = body.num_drafts;
      tokens.value = body.max_tokens;
      void this.start();
    },
    /** The latest run, with the rounds of its drafts. */
    get latest() {
      streamed.version.value;
      return latest;
    },
    start: () =>
      streamed.run((stream) => {
        const body = {
          kind: "drafts", prompt: prompt.value, max_tokens: tokens.value, temperature: 0, drafter: drafter.value, num_drafts: k.value,
        };
        let step = 0;
        return stream("/v1/compare", body, (event) => {
          if (event.ev === "cmp.begin") {
            latest = { run: newRun(event), rounds: [] };
            shown.value = "both";
          }
          if (!latest) return;
          take(latest.run, event);
          step += 1;
          for (const [draft, n_right, chosen] of event.rounds ?? []) latest.rounds.push({ seq: step, step, draft, n_right, chosen: chosen ?? undefined });
          if (event.ev === "cmp.end") latest.run.isRunning = false;
        });
      }),
  };
}

/**
 * The rounds that are shown, as events draft tell them.
 * @param {Session} session
 * @param {SpeculateState} state
 */
export function roundsOf({ cursor, request }, { shown, latest }) {
  const seq = cursor.seq.value;
  if (shown.value === "both" && latest) return latest.rounds;
  return request.value?.drafts.filter((each) => each.seq <= seq) ?? [];
}

/**
 * Acceptance of some rounds. A draft is judged if all drafts before it were right.
 * @param {any[]} rounds events draft
 */
export function acceptance(rounds) {
  /** @type {{judged: number, right: number}[]} */
  const positions = [];
  const sum = { drafted: 0, judged: 0, right: 0, leviathan: 0, withLeviathan: 0, rightThere: 0 };
  for (const { draft, n_right, leviathan_tok } of rounds) {
    sum.drafted += draft.length;
    for (let i = 0; i < Math.min(draft.length, n_right + 1); i++) {
      positions[i] ??= { judged: 0, right: 0 };
      positions[i].judged += 1;
      sum.judged += 1;
      if (i < n_right) {
        positions[i].right += 1;
        sum.right += 1;
      }
    }
    if (leviathan_tok === undefined) continue;
    sum.leviathan += leviathan_tok;
    sum.rightThere += n_right;
    sum.withLeviathan += 1;
  }
  return { positions, ...sum };
}

/** By a run with and without drafts: both were measured. @param {Comparison} run @returns {DraftTimes | null} */
function timesOfBoth({ end, arms }) {
  if (!end?.arms.drafted.drafted) return null;
  const { plain, drafted } = end.arms;
  const plainUs = plain.t_us / arms[0].tokens.length;
  return {
    steps: arms[1].tokens.length, rounds: drafted.rounds, right: drafted.right, spent: drafted.t_us, withoutUs: plain.t_us,
    speedup: plain.t_us / drafted.t_us, isNoise: isNoise(...arms), k: drafted.drafted / drafted.rounds, c: drafted.draft_us / drafted.drafted / plainUs,
    v: (drafted.t_us - drafted.draft_us) / arms[1].tokens.length / plainUs,
  };
}

/**
 * By the steps with drafts of the serving engine up to a moment, those without a counterfactual left out.
 * @param {Store} store
 * @param {number} seq
 * @returns {DraftTimes | null}
 */
function timesOfSteps({ draftSteps, steps }, seq) {
  const sum = { steps: 0, rounds: 0, drafts: 0, right: 0, draftUs: 0, stepUs: 0, plainUs: 0, wonUs: 0, withoutUs: 0, perDraft: 0 };
  const end = draftSteps.find("seq", seq + 1);
  for (let row = draftSteps.first; row < end; row++) {
    const plain = draftSteps.get("plain_us", row);
    const step = steps.find("step", draftSteps.get("step", row));
    if (Number.isNaN(plain) || (step < steps.end && steps.get("seq", step) > seq)) continue;
    const requests = draftSteps.get("n_req", row);
    const decoding = step < steps.end && steps.get("step", step) === draftSteps.get("step", row) ? steps.get("batch_size", step) : requests;
    sum.withoutUs += plain * (1 + draftSteps.get("n_right", row) / decoding);
    sum.steps += 1;
    sum.rounds += requests;
    sum.drafts += draftSteps.get("n_draft", row);
    sum.right += draftSteps.get("n_right", row);
    sum.draftUs += draftSteps.get("draft_us", row);
    sum.stepUs += draftSteps.get("step_us", row);
    sum.plainUs += plain;
    sum.wonUs += draftSteps.get("won_us", row);
    sum.perDraft += draftSteps.get("n_draft", row) / requests;
  }
  if (sum.steps === 0 || sum.drafts === 0) return null;
  const spent = sum.stepUs + sum.draftUs;
  return {
    ...sum, spent, speedup: sum.withoutUs / spent, k: sum.drafts / sum.rounds, c: sum.draftUs / sum.perDraft / (sum.plainUs / sum.steps),
    v: sum.stepUs / sum.plainUs,
  };
}

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
    ["time", (arm) => inTime(arm.t_us), measured("cmp.run.t_us, the median, that of drafting included")],
    ["times of its runs", spreadOf, measured("cmp.run.t_us, the least and the most: the ways run in turn")],
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
      columns=${run.arms.map(({ name, number, tokens }) => ({ name: NAMES[name], hue: `var(--o${number + 1})`, of: { ...end.arms[name], runsUs: end.arms[name].runs_us, passes: tokens.length } }))} />
      <${Why} trouble=${end.first_diff !== null} lead=${end.first_diff === null ? html`All ${count(end.same_tok)} tokens are the same.<${Badge} of="same tokens" kind="C" from="cmp.end.same_tok" />` : `The texts part at token ${end.first_diff + 1}.`}>
        Drafts changed the number of passes and the time: ${timeSentence(run, 1, 0)}<${Badge} of="speed-up" kind="M" from="t_us without / t_us with" />
      <//>`}
  <//>`;
}

const SHOWN = 24;

/** @param {{session: Session, state: SpeculateState, rounds: any[]}} props */
export function Rounds({ session, state, rounds }) {
  const { cursor, runs, store } = session;
  const request = session.request.value;
  const isBoth = state.shown.value === "both" && state.latest !== null;
  const shown = rounds.slice(-SHOWN).reverse();
  const ids = shown.flatMap(({ draft, chosen }) => (chosen === undefined ? draft : [...draft, chosen]));
  useEffect(() => {
    void runs.learnTexts(ids);
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
  return html`<${Panel} title=${isBoth ? "Rounds" : html`Rounds of ${name}`} about=${`${several(rounds.length, "round")}, the newest first`} actions=${actions}>
    <div class="rounds-box" tabindex="0" role="region" aria-label="rounds">
      <table class="draft-rounds">
        <thead><tr><th scope="col">step</th><th scope="col">drafts${withLeviathan > 0 ? ", with the model's probability" : ""}</th><th scope="col">the model's own</th><th scope="col" class="number">right</th>${withLeviathan > 0 && html`<th scope="col" class="number">Leviathan</th>`}</tr></thead>
        <tbody>
          ${shown.map(
            (round) => html`<tr key=${round.seq}>
              <td>${isBoth ? count(round.step) : html`<button class="quiet mono" data-tip="go to this moment" onClick=${() => cursor.seek(round.seq)}>${count(round.step)}</button>`}</td>
              <td><span class="chips">${round.draft.map((/** @type {number} */ id, /** @type {number} */ index) => {
                const state = index < round.n_right ? "right" : index === round.n_right ? "wrong" : "unread";
                const p = round.p_target?.[index];
                const q = round.p_draft?.[index];
                return html`<span class=${`draft-chip ${state}`} data-tip=${p === undefined ? state : `p by the model ${percent(p)}, by the drafter ${percent(q)}`}><span class="mono">${textOf(id)}</span>${p !== undefined &&
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
      A draft is kept only if it equals the token that the model draws itself at that position, with the same noise. Of ${several(drafted, "draft")} ${count(right)} were
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
  const shares = positions.map((each) => each.right / each.judged);
  const brings = formulas.tokensByPosition.of({ a: shares });
  return html`<${Panel} title="Acceptance by position" about="of drafts whose forerunners were right">
    <table class="positions">
      <thead><tr><th scope="col">draft</th><th scope="col">right</th><th scope="col" class="number">share</th><th scope="col" class="number">of</th></tr></thead>
      <tbody>
        ${positions.map(
          (each, index) => html`<tr><td>${index + 1}</td><td class="meter"><i style=${{ width: `${100 * shares[index]}%` }}></i></td>
            <td class="number">${percent(shares[index])}</td><td class="number">${count(each.judged)}</td></tr>`,
        )}
      </tbody>
    </table>
    <${Why} lead=${`${percent(right / judged)} of the judged drafts were right`}>
      (${count(right)} of ${count(judged)})<${Badge} of="a" kind="C" from="draft.n_right, and one wrong draft in each round that ended early" />. This is a of the formula, which takes it as the same at each position.
      With the share of each position, a round of ${several(shares.length, "draft")} brings <${Num} of="tokens a round" value=${brings} unit=${plural(digits(brings), "token")} kind="E"
        formula=${formulas.tokensByPosition} inputs=${{ a: shares }} />.
    <//>
  <//>`;
}

const MAX_K = 12;
const GUESS = { a: 0.8, k: 4, c: 0.05, v: 1.2 };

/** @type {[DraftLetter, string, number, number, number][]} letter, in words, bounds, step */
const SLIDERS = [
  ["a", "a: a draft is right", 0, 0.99, 0.01],
  ["k", "k: drafts a round", 1, MAX_K, 1],
  ["c", "c: cost of a draft", 0, 1, 0.01],
  ["v", "v: cost to verify", 0.5, 4, 0.05],
];

/** @param {{session: Session, state: SpeculateState}} props */
export function Paid({ session, state }) {
  const { store, cursor } = session;
  const { moved } = state;
  const seq = cursor.seq.value;
  const both = state.shown.value === "both" ? state.latest : null;
  const times = both ? timesOfBoth(both.run) : timesOfSteps(store, seq);
  const all = acceptance(both?.rounds ?? store.requestsAt(seq).flatMap(({ drafts }) => drafts.filter((/** @type {any} */ each) => each.seq <= seq)));
  /** @type {Record<DraftLetter, number>} */
  const found = times && all.judged > 0 ? { a: all.right / all.judged, k: times.k, c: times.c, v: times.v } : GUESS;
  const inputs = { ...found, ...moved.value };
  const gain = formulas.draftSpeedup.of({ ...inputs, k: Math.max(1, Math.round(inputs.k)) });
  const byK = Array.from({ length: MAX_K }, (_, index) => formulas.draftSpeedup.of({ ...inputs, k: index + 1 }));
  const best = byK.indexOf(Math.max(...byK));
  const most = Math.max(1, ...byK);
  const brought = times ? digits(1 + times.right / times.rounds) : "";
  const isMoved = Object.keys(moved.value).length > 0;
  const about = both ? "by the run with and without" : times ? `${several(times.steps, "step")} of the serving engine with drafts` : "no step with drafts was measured yet";
  return html`<${Panel} title="Did it pay" about=${about}
    actions=${isMoved && html`<button class="quiet" onClick=${() => (moved.value = {})}>${times ? "as measured" : "reset"}</button>`}>
    ${times &&
    html`<${Facts}>
      <${Fact} label="measured" value=${times.speedup} unit="times as fast" kind="M"
        from=${both ? "t_us without / t_us with, of cmp.end" : "Σ plain_us·(1 + n_right / requests) / (Σ step_us + Σ draft_us) of draft.step"}
        note=${both ? "The medians of runs in turn." : "plain_us is how long recent steps of this engine without drafts took: the same tokens would have taken that many of them."} />
      ${times.wonUs !== undefined &&
      html`<${Fact} label="won, as the engine books it" value=${inTime(times.wonUs)} kind="E" from="Σ draft.step.won_us"
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
    ${times
      ? html`<${Why} trouble=${times.speedup < 1} lead=${times.isNoise ? "Drafts made no difference beyond that of runs." : times.speedup < 1 ? `Drafts cost ${inTime(times.spent - times.withoutUs)} here.` : `Drafts saved ${inTime(times.withoutUs - times.spent)} here.`}>
          A step with drafts took ${digits(times.v)} times as long as one without, and brought ${brought} ${plural(brought, "token")} a request. ${several(best + 1, "draft")} a round would be best by the formula; it takes v as the same for each k, which a longer round exceeds.
        <//>`
      : html`<${Why} lead="Drafts pay if they are often right and verifying is nearly free.">With these values a round brings ${digits(formulas.expectedTokens.of({ ...inputs, k: Math.round(inputs.k) }))} tokens.<//>`}
  <//>`;
}
