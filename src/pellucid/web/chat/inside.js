// @ts-check
// What no other chat has, beside the conversation: how much of it the cache held as it grew, why an answer took as long as it did, and how each word was chosen.

import { Took, focusOf } from "../generate/text.js";
import { Attention, Choice, useAttention } from "../generate/token.js";
import { html } from "../html.js";
import { Badge, count, percent } from "../parts/numbers.js";
import { Empty, Panel, submits, Why } from "../parts/panel.js";
import { HeldUp } from "../timeline/held_up.js";
import { generateState } from "../views/generate.js";
import { tokenAt } from "./places.js";

/** @param {{chat: Chat, session: Session}} props */
export function Inside({ chat, session }) {
  const { what, message, at } = chat.inside.value;
  const answer = chat.messages.value.get(message);
  if (!answer || what === "conversation") return html`<${Growth} chat=${chat} /><${Settings} chat=${chat} session=${session} />`;
  const close = html`<button class="quiet" onClick=${() => (chat.inside.value = { what: "conversation", message: "", at: 0 })}>close</button>`;
  session.cursor.seq.value; // events of this answer may come
  const found = tokenAt(session, answer, what === "slow" ? answer.text.length : at);
  if (!found) {
    return html`<${Panel} title=${what === "slow" ? "Why so long" : "This word"} actions=${close}>
      <${Empty}><p>${answer.parts?.length ? "The server keeps no events of this answer any more: they were too many, or it has been restarted since. Answer it again to see inside." : "The engine has not begun this answer."}</p><//>
    <//>`;
  }
  return html`<div class="inside-links">
      <span class="faint">the same in</span>
      ${["generate", "timeline", "cache"].map((view) => html`<a href=${`#${view}`}>${view[0].toUpperCase()}${view.slice(1)}</a>`)}
      <span class="spacer"></span>${close}
    </div>
    ${what === "slow" ? html`<${Slow} session=${session} request=${found.request} />` : html`<${Word} session=${session} />`}`;
}

/** @param {{session: Session, request: EngineRequest}} props */
function Slow({ session, request }) {
  if (session.selection.req.peek() !== request.req) queueMicrotask(() => (session.selection.req.value = request.req));
  return html`<${HeldUp} session=${session} />`;
}

/** How a word was chosen, what it cost, and what it read. @param {{session: Session}} props */
function Word({ session }) {
  const state = generateState(session);
  const focus = focusOf(session, session.cursor.seq.value);
  const attention = useAttention(session, state, focus);
  return html`<${Choice} session=${session} state=${state} focus=${focus} />
    <${Attention} session=${session} state=${state} focus=${focus} attention=${attention} />
    ${focus && focus.count > 0 && html`<${Panel} title="What it cost" about="the whole answer"><${Took} session=${session} focus=${focus} /><//>`}`;
}

/** The cached share of each prompt as the conversation grows. @param {{chat: Chat}} props */
function Growth({ chat }) {
  const answers = chat.branch.value.filter(({ role, usage }) => role === "assistant" && usage);
  if (answers.length === 0) {
    return html`<${Panel} title="This conversation" about="what the cache holds of it">
      <${Empty}><p>Each turn sends the whole conversation again. Here you see how much of it the engine has in its cache, and so does not compute again. A click on any word of an answer shows how it was chosen.</p><//>
    <//>`;
  }
  const longest = Math.max(...answers.map(({ usage }) => (usage?.prompt ?? 0) + (usage?.output ?? 0)));
  const sum = (/** @type {"prompt" | "cached" | "output"} */ field) => answers.reduce((total, { usage }) => total + (usage?.[field] ?? 0), 0);
  const [prompt, cached] = [sum("prompt"), sum("cached")];
  const name = (/** @type {number} */ index) => `turn ${index + 1}`;
  return html`<${Panel} title="This conversation" about="what each turn sent, and what the cache held of it">
    <ol class="growth">
      ${answers.map(({ id, usage }, index) => {
        const { prompt: sent, cached: found, output } = /** @type {NonNullable<Message["usage"]>} */ (usage);
        const part = (/** @type {number} */ tokens) => ({ width: `${(tokens / longest) * 100}%` });
        const parts = `${count(found)} from the cache, ${count(sent - found)} computed, ${count(output)} written`;
        return html`<li key=${id}>
          <span>${name(index)}</span>
          <span class="growth-bar" role="img" aria-label=${parts} data-tip=${parts}><i class="found" style=${part(found)}></i><i class="computed" style=${part(sent - found)}></i><i class="made" style=${part(output)}></i></span>
          <span class="number">${percent(sent ? found / sent : 0)}</span>
        </li>`;
      })}
    </ol>
    <ul class="legend"><li><i class="found"></i>from the cache</li><li><i class="computed"></i>computed</li><li><i class="made"></i>written</li></ul>
    <${Why} lead=${`${count(cached)} of ${count(prompt)} prompt tokens came from the cache.`}>
      ${answers.length === 1
        ? "The next turn sends all of this again, and finds it."
        : `Without it ${answers.length} turns would have computed ${count(prompt)} tokens before they could answer; they computed ${count(prompt - cached)}.`}
      <${Badge} of="prompt tokens from the cache" kind="C" from="usage.prompt_tokens_details.cached_tokens of each reply" note="The cache keeps whole blocks: the last tokens of a turn are computed again." />
    <//>
  <//>`;
}

/** @type {[keyof ChatParams, string, number, number, number][]} field, name, least, most, step */
const PARAMS = [
  ["temperature", "temperature", 0, 2, 0.05],
  ["top_p", "top-p", 0.01, 1, 0.01],
  ["top_k", "top-k", 0, 1000, 1],
  ["min_p", "min-p", 0, 1, 0.01],
  ["max_tokens", "most tokens", 1, 1_000_000, 1],
  ["seed", "seed", 0, 2 ** 31 - 1, 1],
];

/** How this conversation is answered. @param {{chat: Chat, session: Session}} props */
function Settings({ chat, session }) {
  const open = chat.open.value;
  if (!open) return null;
  const { hello } = session.store;
  session.cursor.version.value;
  const set = (/** @type {keyof ChatParams} */ field) => (/** @type {any} */ { target }) => {
    const { [field]: _, ...others } = open.params;
    if (target.reportValidity()) chat.set({ params: target.value === "" ? others : { ...others, [field]: Number(target.value) } });
  };
  const toolsProblem = problemOf(open.tools);
  return html`<${Panel} title="How it answers" about=${hello?.model.name}>
    <form class="settings" onSubmit=${submits(() => {})}>
      <label class="wide">system prompt <textarea rows="2" value=${open.system} onChange=${(/** @type {any} */ { target }) => chat.set({ system: target.value })}></textarea></label>
      <label class="wide">model <input type="text" value=${open.model} placeholder="the server's own" onChange=${(/** @type {any} */ { target }) => chat.set({ model: target.value.trim() })} /></label>
      ${PARAMS.map(
        ([field, name, min, max, step]) => html`<label>${name} <input type="number" min=${min} max=${max} step=${step} value=${open.params[field] ?? ""}
          placeholder=${field === "seed" ? "a new one" : field === "max_tokens" ? "all there are" : "the model's"} onChange=${set(field)} /></label>`,
      )}
      <details class="wide"><summary>tools</summary>
        <label>as in a chat completion, JSON <textarea rows="4" spellcheck=${false} value=${open.tools} onChange=${(/** @type {any} */ { target }) => chat.set({ tools: target.value })}></textarea></label>
        ${toolsProblem ? html`<p class="why trouble">${toolsProblem}</p>` : html`<p class="faint small">Nothing runs here: you write what a called tool returned.</p>`}
      </details>
      <details class="wide"><summary>API key</summary>
        <label>for servers that have keys <input type="password" autocomplete="off" value=${session.settings.key.value} onChange=${(/** @type {any} */ { target }) => {
          session.settings.key.value = target.value;
          session.source.follow();
        }} /></label>
        <p class="faint small">Kept for this tab only and sent in a header.</p>
      </details>
    </form>
  <//>`;
}

/** What is wrong with a list of tools; "" if nothing. @param {string} tools */
function problemOf(tools) {
  if (!tools.trim()) return "";
  try {
    return Array.isArray(JSON.parse(tools)) ? "" : "tools: must be a list";
  } catch (error) {
    return `tools: ${/** @type {Error} */ (error).message}`;
  }
}
