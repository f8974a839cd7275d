// @ts-check
// Who runs and who waits at the server now: place in the queue, the cause, and a way to end a request.

import { html, useEffect } from "../html.js";
import { count } from "../parts/format.js";
import { Badge } from "../parts/numbers.js";
import { Empty, Panel, RequestName, Why } from "../parts/panel.js";
import { causeOf } from "./run.js";

const MOST = 14; // lines shown at once
const PERIOD_MS = 700;

/** @param {{session: Session, state: ServeState}} props */
export function Queue({ session, state }) {
  const isLive = session.source.isLive;
  useEffect(() => {
    if (!isLive) return undefined;
    state.look();
    const timer = setInterval(() => state.look(), PERIOD_MS);
    return () => clearInterval(timer);
  }, [isLive]);
  const lines = state.queue.value.map((line) => ({ line, waits: causeOf(line) }));
  lines.sort((a, b) => Number(a.waits === null) - Number(b.waits === null) || (a.waits?.position ?? 0) - (b.waits?.position ?? 0));
  const waiting = lines.filter((each) => each.waits !== null);
  return html`<${Panel} title="Who waits, and why" about=${isLive ? `at the server now: ${count(waiting.length)} wait, ${count(lines.length - waiting.length)} run` : "a recorded run has no queue"}>
    ${lines.length === 0
      ? html`<${Empty}><p>Nobody is under way. While requests wait, each has its place in the queue here, and what it waits for.</p><//>`
      : html`<div class="wide-table"><table class="queue">
          <thead><tr><th scope="col">request</th><th scope="col">queue</th><th scope="col">cause</th><th scope="col" class="number">tokens</th><th><span class="spoken">end it</span></th></tr></thead>
          <tbody>
            ${lines.slice(0, MOST).map(({ line, waits }) => {
              const name = Object.keys(line.completions ?? {})[0];
              const request = session.store.requests.get(name);
              return html`<tr key=${line.id} class=${waits ? "waits" : ""}>
                <td>${request ? html`<${RequestName} request=${request} onClick=${() => (session.selection.req.value = request.req)} />` : html`<code class="id">${String(line.id).slice(-8)}</code>`}</td>
                <td>${waits ? html`<b>${waits.position ?? "–"}</b><${Badge} of="place in the queue" kind="C" from="/v1/requests: queue_position" />` : "runs"}</td>
                <td class="cause">${waits ? waits.cause.replaceAll("_", " ") : ""}</td>
                <td class="number">${count(line.prompt_tokens)} + ${count(line.output_tokens)}</td>
                <td><button class="quiet" aria-label=${`cancel ${request?.name ?? line.id}`} onClick=${() => state.cancel(line.id)}>cancel</button></td>
              </tr>`;
            })}
          </tbody>
        </table></div>
        ${lines.length > MOST && html`<p class="small faint">and ${count(lines.length - MOST)} more</p>`}`}
    ${waiting.length > 0 &&
    html`<${Why} trouble lead=${`${count(waiting.length)} ${waiting.length === 1 ? "request waits" : "requests wait"}.`}>The first: ${/** @type {any} */ (waiting[0].waits).cause.replaceAll("_", " ")}.<//>`}
  <//>`;
}
