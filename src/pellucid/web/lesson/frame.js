// @ts-check
// The frame of a step: guess, see the run, understand it, check, and the grades; and how a step runs a text. The guess comes before the run and cannot be changed after it.

import { effect, html, useEffect, useRef, useSignal } from "../html.js";
import { median } from "../parts/numbers.js";
import { Panel, submits } from "../parts/panel.js";
import { messageOf } from "../state/api.js";
import { ENDED } from "../state/store.js";

/**
 * @param {{session: Session, step: Lesson, number: string, progress: Progress, recorded: any,
 *   whenRead: Promise<any>, onChange: (change: Progress) => void, onNext: () => void}} props `recorded`: the numbers of a recorded run, once they have been read;
 *   `whenRead`: those of all steps, {} if there are none
 */
export function StepFrame({ session, step, number, progress, recorded, whenRead, onChange, onNext }) {
  const isRunning = useSignal(false);
  const problem = useSignal("");
  const runs = useSignal(0); // since the step was opened
  const isSeen = useSignal(true); // the run, to its end
  const canRun = session.source.canRun;
  const { predicted, checked, result } = progress;
  /** @param {Progress} change */
  const show = (change) => {
    isSeen.value = false;
    runs.value += 1;
    onChange(change);
  };
  const run = async () => {
    isRunning.value = true;
    problem.value = "";
    try {
      const found = await step.run(session);
      show({ result: found, isRecorded: false, when: new Date().toISOString(), engine: session.store.hello?.model.name ?? "" });
    } catch (error) {
      problem.value = messageOf(error);
    }
    isRunning.value = false;
  };
  const replay = (/** @type {any} */ of) => {
    problem.value = "";
    show({ result: of.result, isRecorded: true, when: of.when, engine: of.engine });
  };
  const prefersRecorded = () => step.isAboutMeaning || !session.source.canRun;
  /** @param {string} given */
  const guess = async (given) => {
    onChange({ predicted: given });
    isRunning.value = true;
    const { [step.id]: found } = await whenRead;
    isRunning.value = false;
    if (found && prefersRecorded()) replay(found);
    else if (session.source.canRun) await run();
    else problem.value = "there is no engine here, and no recorded run";
  };
  const isDone = checked !== undefined;
  const end = useRef(/** @type {HTMLElement | null} */ (null));
  const isAsked = useRef(!isDone);
  useEffect(() => {
    if (isDone && isAsked.current) end.current?.scrollIntoView({ block: "nearest" });
  }, [isDone]);
  const isRun = result !== undefined && predicted !== undefined;
  return html`<${Panel} title=${html`<span class="faint">${number}</span> ${step.title}`}>
    <div class="lesson">
      <div class="lesson-text">
        ${step.Opening && html`<${step.Opening} session=${session} />`}
        ${step.scene}
      </div>
      <${Ask} phase="1 guess" question=${step.predict} given=${predicted} result=${result} onGive=${guess} />
      ${predicted !== undefined && html`<div class="phase">
        <h3>2 see</h3>
        <div class="row">
          ${(canRun || !recorded) && html`<button class=${(recorded && prefersRecorded()) || result ? "" : "primary"} disabled=${isRunning.value || !canRun} onClick=${run}>
            ${isRunning.value ? "running…" : result && !progress.isRecorded ? "Run it again" : step.action}
          </button>`}
          ${recorded && (!canRun || problem.value || step.isAboutMeaning) && html`<button onClick=${() => replay(recorded)}>Use the recorded run</button>`}
          ${progress.isRecorded && html`<span class="chip recorded-badge">recorded: ${progress.engine}, ${progress.when?.slice(0, 10)}</span>`}
        </div>
        ${problem.value && html`<p class="why trouble"><b>That did not run:</b> ${problem.value}.</p>`}
        ${result && html`<div class="shown" key=${runs.value}><${step.Show} result=${result} plays=${runs.value > 0} onEnd=${() => (isSeen.value = true)} /></div>`}
        ${isRun && isSeen.value && html`<${Verdict} question=${step.predict} result=${result} given=${predicted} what="Your guess" />`}
      </div>`}
      ${isRun && isSeen.value && html`<div class="phase lesson-text">
        <h3>3 understand</h3>
        ${step.text}
        <ul class="points">${step.points.map((point) => html`<li>${point}</li>`)}</ul>
      </div>
      <${Ask} phase="4 check" question=${step.check} given=${checked} result=${result} onGive=${(/** @type {string} */ given) => onChange({ checked: given })} />`}
      ${isDone && isRun && html`<${Verdict} question=${step.check} result=${result} given=${checked} what="Your answer" />`}
      ${isDone && isRun && html`<p class="go-on" ref=${end}><button class="primary" onClick=${onNext}>Next step</button>
        <a href=${`#${step.goOn[0]}`}>${step.goOn[0][0].toUpperCase()}${step.goOn[0].slice(1)}</a> <span class="dim">${step.goOn[1]}</span></p>`}
    </div>
  <//>`;
}

/** @param {{phase: string, question: Question, given: string | undefined, result: any, onGive: (given: string) => void}} props */
function Ask({ phase, question, given, result, onGive }) {
  return html`<form class="phase" onSubmit=${submits(() => {})}>
    <h3>${phase}</h3>
    <p>${typeof question.ask === "function" ? question.ask(result) : question.ask}</p>
    <div class="row options">
      ${question.options.map(
        ([key, label]) => html`<button type="button" class=${given === key ? "given" : ""} disabled=${given !== undefined} onClick=${() => onGive(key)}>${label}</button>`,
      )}
    </div>
  </form>`;
}

/** @param {{question: Question, result: any, given: string, what: string}} props */
function Verdict({ question, result, given, what }) {
  const { isRight, answer } = grade(question, result, given);
  const label = (/** @type {string} */ key) => question.options.find(([each]) => each === key)?.[1] ?? key;
  return html`<p class=${`why verdict ${isRight ? "right" : ""}`} role="status">
    <b>${isRight ? `Right: ${label(given)}.` : `Not quite. The answer: ${label(answer)}.`}</b>
    ${!isRight && html`<span class="faint"> ${what}: ${label(given)}.</span>`} ${question.explain(result)}
  </p>`;
}

/** Ways of doing the same beside each other: a heading, a picture, figures. @param {{arms: [string, any, [string, string][]][]}} props */
export const Arms = ({ arms }) => html`<div class="arms">
  ${arms.map(
    ([title, picture, figures]) => html`<div>
      <h4>${title}</h4>
      ${picture}
      <dl>${figures.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    </div>`,
  )}
</div>`;

/**
 * Grades a prediction or a check from the numbers of the learner's own run: no answer is stored anywhere.
 * @param {Question} question
 * @param {any} result of the run
 * @param {string} given by the learner
 * @returns {{isRight: boolean, answer: string}}
 */
export function grade(question, result, given) {
  const answer = question.answer(result);
  return { isRight: given === answer, answer };
}

const PATIENCE_MS = 60_000;

/**
 * Waits until the events make something true.
 * @param {Session} session
 * @param {() => boolean} test
 */
export function until(session, test) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => finish(() => reject(new Error("the engine's events did not come"))), PATIENCE_MS);
    /** @type {() => void} */
    let stop = () => {};
    const finish = (/** @type {() => void} */ how) => {
      clearTimeout(timer);
      queueMicrotask(() => stop());
      how();
    };
    let isDone = false;
    stop = effect(() => {
      session.cursor.version.value;
      if (!isDone && test()) {
        isDone = true;
        finish(() => resolve(undefined));
      }
    });
  });
}

/**
 * Runs a text and gathers what the events say of it.
 * @param {Session} session
 * @param {string} path
 * @param {any} body
 * @returns {Promise<RunFact>}
 */
export async function runText(session, path, body) {
  const { store, runs } = session;
  const req = await runs.start(path, body);
  await until(session, () => {
    const request = store.requests.get(req);
    return request !== undefined && request.ledger !== null && ENDED.has(request.states.at(-1)?.to ?? "");
  });
  const request = /** @type {EngineRequest} */ (store.requests.get(req));
  const ids = request.added?.prompt_ids ?? [];
  await runs.learnTexts(ids);
  const tokens = request.tokens.map((row) => /** @type {Token} */ (store.token(row)));
  /** @type {RunFact["steps"]} */
  const steps = [];
  for (let row = store.steps.find("seq", request.seq); row < store.steps.end; row++) {
    const own = store.batch(row).find((each) => each.request === request);
    if (!own) continue;
    const step = store.steps.get("step", row);
    const made = tokens.filter((token) => token.step === step).map(({ text }) => text);
    steps.push({ step, q: own.q_tok, ctx: own.ctx_tok, us: store.steps.get("fwd_us", row), made });
  }
  const gaps = tokens.map((token) => token.itl_us ?? -1).filter((gap) => gap >= 0);
  return {
    req,
    promptTok: request.added.prompt_tok,
    prompt: ids.map((/** @type {number} */ id) => runs.textOf(id)),
    output: tokens.map((token) => token.text),
    ids: [...ids, ...tokens.map((token) => token.id)],
    steps,
    firstUs: tokens.length ? tokens[0].t_us - request.added.arrive_us : 0,
    eachUs: gaps.length ? median(gaps) : 0,
    totalUs: request.ledger?.total_us ?? 0,
  };
}
