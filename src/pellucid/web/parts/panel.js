// @ts-check
// The parts that every view is made of: panels, explanations, legends, names of requests, and replies of the server.

import { hueVariable } from "../draw/hues.js";
import { effect, html, useEffect, useId, useRef, useSignal } from "../html.js";

/**
 * A panel: a quiet heading, what it shows in small, and its contents.
 * @param {{title: any, about?: any, actions?: any, children: any}} props `actions`: buttons at the right of the heading
 */
export function Panel({ title, about, actions, children }) {
  const id = useId();
  return html`<section class="panel" aria-labelledby=${id}>
    <header>
      <h2 id=${id}>${title}</h2>
      ${about && html`<p class="about">${about}</p>`} ${actions && html`<div class="actions">${actions}</div>`}
    </header>
    ${children}
  </section>`;
}

const READ_MS = 250;
let turn = 0;

/** The cursor's seq for texts and figures: while events come, each component follows it four times a second, as fast as one reads. @param {Cursor} cursor */
export function useReadableSeq({ seq, isLive, isPlaying }) {
  const shown = useSignal(seq.peek());
  useEffect(() => {
    let timer = /** @type {any} */ (0);
    let frame = 0;
    let last = performance.now() - (turn = (turn + 0.382 * READ_MS) % READ_MS);
    const show = () => {
      frame = 0;
      last = performance.now();
      shown.value = seq.peek();
    };
    const stop = effect(() => {
      seq.value;
      clearTimeout(timer);
      if (!isLive.value && !isPlaying.value) show();
      else if (performance.now() - last >= READ_MS) frame ||= requestAnimationFrame(show); // the frame after that of pictures
      else timer = setTimeout(show, READ_MS);
    });
    return () => {
      clearTimeout(timer);
      cancelAnimationFrame(frame);
      stop();
    };
  }, []);
  shown.value;
  return seq.peek();
}

/**
 * An explanation: a sentence with the numbers in it, bold where it begins. Amber to look here, coral for trouble.
 * @param {{lead: any, trouble?: boolean, children?: any}} props
 */
export function Why({ lead, trouble = false, children }) {
  return html`<p class=${trouble ? "why trouble" : "why"}><b>${lead}</b> ${children}</p>`;
}

/**
 * A request's name in its hue.
 * @param {{request: {number: number, name: string, req: string} | undefined, onClick?: () => void}} props
 */
export function RequestName({ request, onClick }) {
  if (!request) return html`<span class="request">?</span>`;
  const style = { "--c": hueVariable(request) };
  return onClick
    ? html`<button class="request" style=${style} title=${request.req} onClick=${onClick}>${request.name}</button>`
    : html`<span class="request" style=${style} title=${request.req}>${request.name}</span>`;
}

/**
 * What colours and patterns mean.
 * @param {{items: {label: any, colour?: string, pattern?: "solid" | "hatched" | "ticks" | "outlined" | "line"}[]}} props
 */
export function Legend({ items }) {
  return html`<ul class="legend">
    ${items.map(
      ({ label, colour, pattern = "solid" }) =>
        html`<li><i class=${pattern} style=${colour ? { "--c": colour } : undefined}></i>${label}</li>`,
    )}
  </ul>`;
}

/**
 * What a view says while there is nothing to show yet, and what to do about it.
 * @param {{children: any}} props
 */
export function Empty({ children }) {
  return html`<div class="empty">${children}</div>`;
}

/**
 * What the server said instead of doing what it was asked to.
 * @param {{problem: string, lead?: string}} props `problem`: "": nothing
 */
export const Refused = ({ problem, lead = "The server refused." }) => problem && html`<${Why} trouble lead=${lead}>${problem}<//>`;

/**
 * That something needs an engine, where there is none.
 * @param {{session: Session, what: string}} props
 */
export const NeedsServer = ({ session, what }) =>
  !session.source.isLive && html`<p class="faint small">This is a recorded run: ${what} needs <code>pellucid serve</code>.</p>`;

/** @type {Reply} */
const NOTHING = { reply: null, problem: "" };

/**
 * @param {Api} api
 * @param {string} path "": nothing is wanted now
 * @param {{wait?: number, apart?: number, inputs?: any[]}} how milliseconds that the path must stand still, and between
 *   two looks; `inputs`: the path is asked for again when one of them changes, always as many
 * @returns {Reply} the latest reply for this path
 */
export function useReply(api, path, { wait = 0, apart = 0, inputs = [] } = {}) {
  const latest = useSignal({ path: "", key: "", ...NOTHING });
  const asked = useRef(-Infinity);
  const key = JSON.stringify([path, ...inputs]);
  useEffect(() => {
    if (!path || (latest.value.key === key && latest.value.reply)) return undefined;
    const stop = new AbortController();
    const timer = setTimeout(() => {
      asked.current = performance.now();
      api.get(path, stop.signal).then(
        (reply) => (latest.value = { path, key, reply, problem: "" }),
        (error) => {
          const { value: before } = latest;
          const reply = before.path === path ? before.reply : null;
          if (!stop.signal.aborted) latest.value = { path, key, reply, problem: error.message };
        },
      );
    }, Math.max(wait, asked.current + apart - performance.now()));
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [key]);
  return path && latest.value.path === path ? latest.value : NOTHING;
}
