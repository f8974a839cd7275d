// @ts-check
// Serve: a load on this engine, static against continuous batching, and who waits, and why.

import { useAsTable } from "../draw/picture.js";
import { html, useEffect } from "../html.js";
import { InCache } from "../parts/in_cache.js";
import { Badge, count, Num, percent } from "../parts/numbers.js";
import { Choice, Empty, Legend, NeedsServer, Panel, press, Refused, RequestName, Slider, submits, TableButton, tableKey, useKeys, Why } from "../parts/panel.js";
import { Replay } from "../parts/replay.js";
import { causeOf, Figures, Lanes, queueAt, serveState } from "../serve/load.js";

/** @param {{session: Session}} props */
export function View({ session }) {
  const state = serveState(session);
  const asTable = useAsTable();
  const version = state.version.value;
  const loads = /** @type {Load[]} */ ([state.loads.static, state.loads.continuous].filter(Boolean));
  const longest = Math.max(0, ...loads.flatMap((load) => [load.nowUs, ...load.lanes.map((lane) => Math.max(lane.dueUs, lane.endUs))]));
  useKeys("Serve", [
    press("r", "send the load", "#load-run, #replay"),
    press("x", "stop the load", "#load-stop"),
    press("c", "cancel the first request in the list", ".queue button.quiet"),
    tableKey(asTable),
  ]);
  return html`
    <div class="column">
      <${Ask} session=${session} state=${state} />
      <${Panel} title="Requests enter and leave" about="a lane each, in the order of arrival; both over the same time" actions=${loads.length > 0 && html`<${TableButton} asTable=${asTable} />`}>
        ${loads.length === 0 && html`<${Empty}><p>Send the load: each request becomes a lane, from its arrival to its last token.</p><//>`}
        ${loads.map((load) => html`<h3 key=${load.discipline}>${load.discipline}${load.isRunning ? ", running" : ""}</h3>
          <${Lanes} session=${session} load=${load} longest=${longest} version=${version} asTable=${asTable} />`)}
        ${loads.length > 0 &&
        html`<${Legend} items=${[
          { label: "waits for its batch", pattern: "hatched", colour: "var(--ink3)" }, { label: "to the first token: queue and prefill", colour: "var(--o1)" },
          { label: "to the last token: decode", colour: "color-mix(in srgb, var(--o1) 40%, transparent)" }, { label: "cancelled or failed", colour: "var(--coral)" },
        ]} />`}
      <//>
    </div>
    <div class="column">
      <${Queue} session=${session} state=${state} />
      <${InCache} session=${session.later} />
      <${Figures} state=${state} />
      <${Watch} session=${session} />
    </div>
  `;
}

/** What an operator watches, with this session's numbers. @param {{session: Session}} props */
function Watch({ session: { store, cursor } }) {
  const seq = cursor.seq.value;
  const kv = store.hello?.kv;
  if (!kv || store.kv.length === 0) return null;
  const most = Math.max(0, ...Array.from({ length: store.rowAt(store.kv, seq) + 1 - store.kv.first }, (_, row) => store.kv.get("used", store.kv.first + row)));
  let [found, asked] = [0, 0];
  for (const { prefix, added } of store.requestsAt(seq)) {
    if (!added || !prefix || prefix.seq > seq) continue;
    found += prefix.hit_tok;
    asked += added.prompt_tok;
  }
  return html`<${Panel} title="What to watch" about="in this session">
    <ul class="watch">
      <li><b>Memory of keys and values.</b> At most <${Num} of="blocks owned at once" value=${percent(most / kv.n_blocks)} kind="C" from="kv.used, the most, / n_blocks" /> of the pool was owned at
        once. Near 100 % requests wait or are preempted: admit fewer at once, or give the pool more memory.</li>
      <li><b>Its format.</b> Keys and values are ${kv.dtype} here. ${kv.dtype === "bf16" && "With int8 nearly twice as many tokens fit. "}<a href="#compare">Compare</a> shows what a format changes.</li>
      <li><b>What prompts share.</b> ${asked > 0 && html`<${Num} of="prompt tokens found" value=${percent(found / asked)} kind="C" from="req.prefix.hit_tok / prompt_tok, summed" /> of prompt tokens were
        found in blocks of earlier ones. `}Put what is the same first, as a system prompt is. <a href="#cache">Cache</a> shows where prompts part.</li>
    </ul>
  <//>`;
}

/**
 * How many requests, how fast they arrive, how long they are, what they share, and the limits for goodput.
 * @param {{session: Session, state: ServeState}} props
 */
function Ask({ session, state }) {
  const { stop } = state;
  if (session.source.isRecording) {
    const runs = session.recorded.runs("/v1/load", ({ discipline }) => discipline === "static"); // with it goes the same load in continuous batching
    return html`<${Panel} title="The load" about="the same arrivals, lengths and prompts under both disciplines">
      <${Replay} session=${session} runs=${runs} nameOf=${nameOf} state=${state} what="A load" />
    <//>`;
  }
  const run = () => session.source.canRun && state.start();
  return html`<${Panel} title="The load" about="requests like any others; the same arrivals, lengths and prompts under both disciplines">
    <form class="serve-ask" onSubmit=${submits(run)}>
      <div class="sliders">
        <${Slider} label="requests" of=${state.requests} min=${2} max=${120} />
        <${Slider} label="arrivals" of=${state.rate} min=${0.5} max=${60} step=${0.5} unit="/s" />
        <${Slider} label="prompts around" of=${state.promptTok} min=${8} max=${256} step=${8} unit="tokens" />
        <${Slider} label="answers around" of=${state.outputTok} min=${8} max=${128} step=${8} unit="tokens" />
        <${Slider} label="shared prefix" of=${state.prefixTok} max=${256} step=${16} unit="tokens" />
        <${Slider} label="static batches of" of=${state.seats} min=${2} max=${32} />
        <${Slider} label="good: first in" of=${state.firstSlo} min=${0.05} max=${3} step=${0.05} unit="s" />
        <${Slider} label="good: each in" of=${state.betweenSlo} min=${0.005} max=${0.5} step=${0.005} unit="s" />
        <${Slider} label="price an hour" of=${state.price} max=${10} step=${0.25} />
        <${Slider} label="seed" of=${state.seed} max=${99} />
      </div>
      <div class="row">
        <${Choice} label="batching" of=${state.discipline} options=${[["both", "both"], ["static", "static"], ["continuous", "continuous"]]} />
        ${stop.value
          ? html`<button type="button" id="load-stop" onClick=${() => stop.value?.abort()}>Stop</button>`
          : html`<button id="load-run" class="primary" disabled=${!session.source.canRun}>Send the load</button>`}
      </div>
    </form>
    <${NeedsServer} session=${session} what="a load" />
    <${Refused} problem=${state.problem.value} />
  <//>`;
}

/** A recorded load in words, its ranges too: they would break after the hyphen. @param {any} body */
const nameOf = (body) =>
  `${count(body.num_requests)} requests, ${body.rate} a second; prompts of ${body.prompt_tokens} tokens after ${body.prefix_tokens} that all share, answers of ${body.output_tokens}; static batches of ${body.static_batch}`.replaceAll("-", " to ");

const MOST = 14; // lines shown at once
const PERIOD_MS = 700;

/** @param {{session: Session, state: ServeState}} props */
function Queue({ session, state }) {
  const isLive = session.source.isLive;
  useEffect(() => {
    if (!isLive) return undefined;
    state.look();
    const timer = setInterval(() => state.look(), PERIOD_MS);
    return () => clearInterval(timer);
  }, [isLive]);
  const listed = isLive ? state.queue.value : queueAt(session.store, session.cursor.seq.value);
  const lines = listed.map((line) => ({ line, waits: causeOf(line) }));
  lines.sort((a, b) => Number(a.waits === null) - Number(b.waits === null) || (a.waits?.place ?? 0) - (b.waits?.place ?? 0));
  const waiting = lines.filter((each) => each.waits !== null);
  return html`<${Panel} title="Who waits, and why" about=${isLive ? `at the server now: ${count(waiting.length)} wait, ${count(lines.length - waiting.length)} run` : `at this moment of the recording: ${count(waiting.length)} wait, ${count(lines.length - waiting.length)} run`}>
    ${lines.length === 0
      ? html`<${Empty}><p>Nobody is under way. While requests wait, each has its place in the queue here, and what it waits for.</p><//>`
      : html`<div class="wide-table"><table class="queue">
          <thead><tr><th scope="col">request</th><th scope="col">queue</th><th scope="col">cause</th><th scope="col" class="number">tokens</th>${isLive && html`<th><span class="spoken">end it</span></th>`}</tr></thead>
          <tbody>
            ${lines.slice(0, MOST).map(({ line, waits }) => {
              const name = Object.keys(line.completions ?? {})[0];
              const request = session.store.requests.get(name);
              return html`<tr key=${line.id} class=${waits ? "waits" : ""}>
                <td>${request ? html`<${RequestName} request=${request} onClick=${() => (session.selection.req.value = request.req)} />` : html`<code class="id">${String(line.id).slice(-8)}</code>`}</td>
                <td>${waits ? html`<b>${waits.place ?? "–"}</b><${Badge} of="place in the queue" kind="C" from=${isLive ? "/v1/requests: queue_position, from 1" : "req.state: those that wait, in the order of arrival"} />` : "runs"}</td>
                <td class="cause">${waits ? waits.cause.replaceAll("_", " ") : ""}</td>
                <td class="number">${count(line.prompt_tokens)} + ${count(line.output_tokens)}</td>
                ${isLive && html`<td><button class="quiet" aria-label=${`cancel ${request?.name ?? line.id}`} onClick=${() => state.cancel(line.id)}>cancel</button></td>`}
              </tr>`;
            })}
          </tbody>
        </table></div>
        ${lines.length > MOST && html`<p class="small faint">and ${count(lines.length - MOST)} more</p>`}`}
    ${waiting.length > 0 &&
    html`<${Why} trouble lead=${`${count(waiting.length)} ${waiting.length === 1 ? "request waits" : "requests wait"}.`}>The first: ${/** @type {any} */ (waiting[0].waits).cause.replaceAll("_", " ")}.<//>`}
  <//>`;
}
