// @ts-check
// What held a request up: its ledger as a bar that adds up, and each change of its state with the reason.

import { hueVariable } from "../draw/hues.js";
import { html } from "../html.js";
import { Badge, count, Fact, Facts, inTime, percent, several } from "../parts/numbers.js";
import { Empty, Panel, RequestName, Why } from "../parts/panel.js";
import { ENDED } from "../state/store.js";
import { arrivalOf, phasesOf, REASONS } from "./life.js";

/** @type {[string, string, "solid" | "hatched" | "ticks" | "outlined", string | null, string][]} field, name, look; colour: null is the request's */
const PARTS = [
  ["tokenize_us", "tokenize", "solid", "var(--ink3)", "turning the prompt into tokens"],
  ["queue_us", "queue", "hatched", null, "until the step that admitted it"],
  ["prefill_us", "prefill", "solid", null, "forwards that computed its prompt"],
  ["decode_us", "decode", "ticks", null, "forwards that computed its newest token"],
  ["stall_us", "stall", "hatched", "var(--coral)", "delays by prompts of other requests"],
  ["preempt_us", "preempted", "outlined", "var(--coral)", "without its blocks, and computing again what it lost"],
  ["draft_us", "drafting", "hatched", "var(--water)", "making drafts for its steps"],
  ["sample_us", "sampling", "hatched", "var(--ink2)", "choosing tokens in its steps"],
  ["send_us", "emit", "hatched", "var(--ink3)", "booking tokens and making text"],
  ["other_us", "other", "solid", "var(--line2)", "scheduling, and the time between steps"],
];

/** The parts of a ledger and their sum. @param {any} ledger */
function partsOf(ledger) {
  const parts = PARTS.map(([field, name, pattern, colour, meaning]) => ({ field, name, pattern, colour, meaning, us: /** @type {number} */ (ledger[field] ?? 0) }));
  return { parts, sum: parts.reduce((sum, { us }) => sum + us, 0) };
}

/** @param {{session: Session}} props */
export function HeldUp({ session }) {
  const { store, cursor, selection } = session;
  const seq = cursor.seq.value;
  const now = cursor.timeUs.peek();
  const request = session.request.value;
  if (!request) return html`<${Panel} title="What held it up"><${Empty}><p>Choose a lane to see what its request waited for.</p><//><//>`;
  const states = request.states.filter((state) => state.seq <= seq);
  const start = arrivalOf(store, request);
  const ledger = request.ledger && request.ledger.seq <= seq ? request.ledger : null;
  const name = html`<${RequestName} request=${request} />`;
  const others = (/** @type {string[] | undefined} */ names) =>
    names?.map((req) => html` <${RequestName} request=${store.requests.get(req)} onClick=${() => (selection.req.value = req)} />`);
  return html`<${Panel} title=${html`What held ${name} up`} about=${request.added && several(request.added.prompt_tok, "prompt token")}>
    ${ledger ? html`<${Ledger} request=${request} ledger=${ledger} others=${others} />` : html`<${SoFar} store=${store} request=${request} seq=${seq} now=${now} />`}
    <h3>What happened to it</h3>
    <ol class="changes">
      ${states.map(
        (state) => html`<li key=${state.seq}>
          <button class="quiet mono" data-tip="go to this moment" onClick=${() => cursor.seek(state.seq)}>+${inTime(Math.max(0, state.t_us - start))}</button>
          <span><b>${state.to}</b> ${ENDED.has(state.to) ? state.finish ?? "" : REASONS[state.reason] ?? state.reason}${state.need_blocks
            ? html`, ${state.from === state.to || state.to === "preempted" ? "lacks" : "got"} ${several(state.need_blocks, "block")}`
            : ""}${state.free_blocks !== undefined && !ENDED.has(state.to) ? html`, ${count(state.free_blocks)} free` : ""}${state.blocked_by?.length
            ? html`; ${state.reason === "preempted" ? "taken by" : "held by"}${others(state.blocked_by)}`
            : ""}</span>
        </li>`,
      )}
    </ol>
  <//>`;
}

/** The ledger of a request that ended. @param {any} props */
function Ledger({ request, ledger, others }) {
  const { parts, sum } = partsOf(ledger);
  const colourOf = (/** @type {string | null} */ colour) => colour ?? hueVariable(request);
  const shares = parts.filter(({ us }) => us > 0);
  const waits = parts.filter(({ field }) => field === "queue_us" || field === "stall_us" || field === "preempt_us").sort((a, b) => b.us - a.us);
  const waited = waits.reduce((total, { us }) => total + us, 0);
  const [worst] = waits;
  const by = worst.field === "queue_us" ? ledger.blocked_by : worst.field === "stall_us" ? ledger.stalled_by : [];
  const preemptedBy = [...new Set(request.preempts.map((/** @type {any} */ each) => each.cause_req))];
  return html`
    <div class="ledger-bar" role="img" aria-label=${shares.map(({ name, us }) => `${name} ${percent(us / ledger.total_us)}`).join(", ")}>
      ${shares.map(({ name, pattern, colour, us }) => html`<i class=${pattern} data-tip=${`${name}: ${inTime(us)}`} style=${{ width: `${(us / sum) * 100}%`, "--c": colourOf(colour) }}></i>`)}
    </div>
    <table class="ledger">
      <thead><tr><th scope="col">where the time went</th><th scope="col" class="number">µs</th><th scope="col" class="number">share</th></tr></thead>
      <tbody>
        ${shares.map(
          ({ name, pattern, colour, meaning, us }) => html`<tr>
            <td><i class=${pattern} style=${{ "--c": colourOf(colour) }}></i> ${name} <small>${meaning}</small></td>
            <td class="number">${count(us)}</td><td class="number">${percent(us / ledger.total_us)}</td>
          </tr>`,
        )}
      </tbody>
      <tfoot>
        <tr>
          <td>sum of the parts ${sum === ledger.total_us ? "= the request's whole time, exactly" : html`<b>but the whole is ${count(ledger.total_us)}</b>`}
            <${Badge} of="the ledger" kind="M" from="req.ledger: its parts, and total_us" note="Each moment from the call to the end is booked under exactly one part." /></td>
          <td class="number ledger-sum">${count(sum)}</td><td class="number">${percent(sum / ledger.total_us)}</td>
        </tr>
      </tfoot>
    </table>
    ${waited > 0.05 * ledger.total_us
      ? html`<${Why} trouble=${true} lead=${`${request.name} waited ${percent(waited / ledger.total_us)} of its ${inTime(ledger.total_us)}.`}>
          ${worst.name === "queue" ? "Most of it in the queue" : worst.name === "stall" ? "Most of it while prompts of others were computed" : `Most of it preempted, ${count(ledger.lost_tok)} positions lost`}: ${inTime(worst.us)}.
          ${by?.length > 0 && html` It waited for${by.map((/** @type {[string, number]} */ [req, us]) => html`${others([req])} (${inTime(us)})`)}.`}
          ${worst.field === "preempt_us" && preemptedBy.length > 0 && html` Its blocks went to${others(preemptedBy)}.`}
        <//>`
      : html`<${Why} lead=${`Little held ${request.name} up.`}>
          Of ${inTime(ledger.total_us)}, ${percent(waited / ledger.total_us)} was waiting; ${percent((ledger.prefill_us + ledger.decode_us) / ledger.total_us)} was its own prompt and tokens.
        <//>`}
  `;
}

/** A request that has not ended at this moment. @param {any} props */
function SoFar({ store, request, seq, now }) {
  const phases = phasesOf(store, request, seq, now);
  const current = phases.at(-1);
  const sums = new Map();
  for (const { state, from, to } of phases) sums.set(state, (sums.get(state) ?? 0) + to - from);
  const state = store.stateAt(request, seq);
  const isHeld = current && ["waiting", "preempted", "swapped"].includes(current.state);
  return html`<${Facts}>
      ${[...sums].map(([name, us]) => html`<${Fact} key=${name} label=${name} value=${inTime(us)} kind="M" from="req.state: t_us of one state to that of the next" />`)}
    <//>
    ${current && !ENDED.has(state?.to ?? "")
      ? html`<${Why} trouble=${isHeld} lead=${`${request.name} is ${isHeld ? "held up" : "running"}:`}>
          ${current.state} for ${inTime(current.to - current.from)}, ${REASONS[state?.reason ?? ""] ?? state?.reason}${state?.need_blocks ? `; blocks: ${count(state.need_blocks)}, free ${count(state.free_blocks ?? 0)}` : ""}. Its ledger comes when it ends.
        <//>`
      : html`<p class="dim small">No ledger of this request is kept.</p>`}`;
}
