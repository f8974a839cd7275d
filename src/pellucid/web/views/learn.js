// @ts-check
// Learn: eight steps, a challenge, the corrected numbers and a record, each step run on the engine or shown from a recorded run.

import { html, useMemo, useSignal } from "../html.js";
import { attention } from "../lesson/attention.js";
import { choosing } from "../lesson/choosing.js";
import { Corrections, Questions } from "../lesson/corrections.js";
import { grade, StepFrame } from "../lesson/frame.js";
import { keysValues, memory } from "../lesson/cache_steps.js";
import { oneToken, withWithout } from "../lesson/passes.js";
import { batching, challenge, speculation } from "../lesson/serving_steps.js";
import { Panel, useKeys } from "../parts/panel.js";
import { fileUrl } from "../state/files.js";

export const STEPS = [oneToken, choosing, attention, keysValues, withWithout, memory, speculation, batching, challenge];
const NUMBERED = STEPS.length - 1; // the challenge has no number
const MORE = /** @type {[string, string][]} */ ([["numbers", "The numbers, put right"], ["questions", "Questions"], ["record", "Your record"]]);

/** @param {{session: Session}} props */
export function View({ session }) {
  const { route, settings } = session;
  session.source.status.value;
  const recorded = useRecorded();
  const all = settings.lessons.value;
  const open = route.now.value.params.step ?? firstOpen(all);
  const step = STEPS.find((each) => each.id === open);
  const order = [...STEPS.map((each) => each.id), ...MORE.map(([id]) => id)];
  const go = (/** @type {string} */ id) => route.go("learn", { step: id });
  const next = () => go(order[Math.min(order.length - 1, order.indexOf(open) + 1)]);
  useKeys(
    "Learn",
    [
      { keys: ["n"], says: "next step", run: next },
      { keys: ["p"], says: "the step before", run: () => go(order[Math.max(0, order.indexOf(open) - 1)]) },
    ],
    [open],
  );
  /** @param {Progress} change */
  const change = (change) => {
    const { value: now } = settings.lessons;
    settings.lessons.value = { ...now, [open]: { ...now[open], ...change } };
  };
  return html`
    <nav class="steps" aria-label="Steps">
      <p class="about">Interactive · about 20 minutes · no background needed. Guess, see, understand: each step is an experiment on ${session.source.isLive ? "this engine" : "a recorded engine"}.</p>
      <ol>
        ${STEPS.map((each, index) => {
          const state = all[each.id]?.checked !== undefined ? "done" : all[each.id]?.predicted !== undefined ? "begun" : "";
          return html`<li>
            <a href=${`#learn?step=${each.id}`} class=${`${each.id === open ? "on" : ""} ${state}`} aria-current=${each.id === open ? "step" : undefined}>
              <b>${index < NUMBERED ? index + 1 : "★"}</b>${each.title}${state === "done" && html`<span class="spoken"> done</span>`}
            </a>
          </li>`;
        })}
        ${MORE.map(([id, title]) => html`<li><a href=${`#learn?step=${id}`} class=${id === open ? "on" : ""}><b>·</b>${title}</a></li>`)}
      </ol>
    </nav>
    <div class="column">
      ${step &&
      html`<${StepFrame}
        key=${step.id}
        session=${session}
        step=${step}
        number=${STEPS.indexOf(step) < NUMBERED ? `step ${STEPS.indexOf(step) + 1} of ${NUMBERED}` : "challenge"}
        progress=${all[step.id] ?? {}}
        recorded=${recorded.read.value[step.id]}
        whenRead=${recorded.whenRead}
        onChange=${change}
        onNext=${next}
      />`}
      ${open === "numbers" && html`<${Panel} title="The numbers, put right"><${Corrections} /><//>`}
      ${open === "questions" && html`<${Panel} title="Questions"><${Questions} session=${session} /><//>`}
      ${open === "record" && html`<${Record} steps=${STEPS} all=${all} onForget=${() => (settings.lessons.value = {})} />`}
    </div>
  `;
}

/** @param {Record<string, Progress>} all */
function firstOpen(all) {
  return STEPS.find((step) => all[step.id]?.checked === undefined)?.id ?? "record";
}

/** The numbers of recorded runs, for where no engine can run: by step, {} as long as none are read or if there are none. */
function useRecorded() {
  const read = useSignal(/** @type {Record<string, any>} */ ({}));
  const whenRead = useMemo(async () => {
    const reply = await fetch(fileUrl("traces/lessons.json")).catch(() => null);
    if (reply?.ok) read.value = await reply.json().catch(() => ({}));
    return read.value;
  }, []);
  return { read, whenRead };
}

/** What was predicted, run and answered: it stays in this browser and can be printed. @param {{steps: Lesson[], all: Record<string, Progress>, onForget: () => void}} props */
function Record({ steps, all, onForget }) {
  const done = steps.filter((step) => all[step.id]?.checked !== undefined);
  const mark = (/** @type {Question} */ question, /** @type {Progress} */ progress, /** @type {string | undefined} */ given) =>
    progress?.result && given !== undefined ? (grade(question, progress.result, given).isRight ? "right" : "corrected") : "–";
  return html`<${Panel} title="Your record" about=${`${done.length} of ${steps.length} steps; kept in this browser only`} actions=${html`<button onClick=${() => print()}>Print</button>
    <button class="quiet" onClick=${onForget}>forget it</button>`}>
    <table class="record corrections">
      <thead><tr><th>step</th><th>your run</th><th>guess and answer</th></tr></thead>
      <tbody>
        ${steps.map((step) => {
          const progress = all[step.id] ?? {};
          const { engine, when, isRecorded, result } = progress;
          return html`<tr>
            <td><b>${step.title}</b>${when && html`<br /><small>${engine}, ${when.slice(0, 10)}${isRecorded && ", recorded"}</small>`}</td>
            <td>${result ? step.took(result) : "not yet"}</td>
            <td>${mark(step.predict, progress, progress.predicted)}, ${mark(step.check, progress, progress.checked)}</td>
          </tr>`;
        })}
      </tbody>
    </table>
    ${done.length === steps.length && html`<p class="why"><b>All steps are done.</b> You have seen prefill, decode, the cache, its blocks, batching and speculation in an engine that ran, and what
      your own runs cost.</p>`}
  <//>`;
}
