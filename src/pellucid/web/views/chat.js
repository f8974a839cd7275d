// @ts-check
// Chat: conversations kept in the browser; any word of an answer opens how it was chosen, what it read, and what it cost.

import { Inside } from "../chat/inside.js";
import { List } from "../chat/list.js";
import { placeOf, tokenAt } from "../chat/places.js";
import { chatState } from "../chat/state.js";
import { Composer, Thread } from "../chat/thread.js";
import { html, useEffect } from "../html.js";
import { focusOn, NeedsServer, press, useKeys, Why } from "../parts/panel.js";

/** What to begin with, for somebody who has no question yet. */
const EXAMPLES = ["What is the capital of France?", "Explain in two sentences what a KV cache is.", "Write a short Python function that reverses a list, with an example."];

/** @param {{session: Session}} props */
export function View({ session }) {
  const chat = chatState(session);
  useEffect(() => void chat.start(), []);
  const branch = chat.branch.value;
  const answer = () => chat.branch.value.findLast(({ role }) => role === "assistant");
  // Keys go from token to token of the answer that is looked at, as in Generate.
  const move = (/** @type {number} */ by) => {
    const { message: id, at } = chat.inside.value;
    const message = chat.messages.value.get(id) ?? answer();
    if (!message) return;
    const found = id ? tokenAt(session, message, at) : null;
    const place = found ? placeOf(session, message, found.request, found.pos + by) : 0;
    if (place >= 0 && place < message.text.length) chat.inside.value = { what: "token", message: message.id, at: place };
  };
  /** @param {(answer: Message) => void} run */
  const ofAnswer = (run) => () => {
    const last = answer();
    if (last) run(last);
  };
  useKeys("Chat", [
    focusOn("/", "write a message", "say"),
    press("n", "a new conversation", "#new-chat"),
    { keys: [","], says: "into the answer: the token before", run: () => move(-1) },
    { keys: ["."], says: "into the answer: the next token", run: () => move(1) },
    { keys: ["w"], says: "why the last answer took so long", run: ofAnswer(({ id }) => (chat.inside.value = { what: "slow", message: id, at: 0 })) },
    { keys: ["s"], says: "stop the answer", run: ofAnswer(({ id }) => chat.answers.stop(id)) },
    { keys: ["a"], says: "answer again", run: ofAnswer((last) => last.status !== "writing" && chat.again(last)) },
    { keys: ["Escape"], says: "back to the conversation", run: () => (chat.inside.value = { what: "conversation", message: "", at: 0 }) },
  ]);
  return html`
    <${List} chat=${chat} />
    <section class="talk" aria-labelledby="talk-title">
      <h2 id="talk-title"><input class="title" aria-label="title of the conversation" value=${chat.open.value?.title ?? ""} placeholder="New conversation"
        onChange=${(/** @type {any} */ { target }) => chat.set({ title: target.value.trim() || "Untitled" })} /></h2>
      ${chat.problem.value && html`<${Why} trouble lead="This browser could not do it.">${chat.problem.value}<//>`}
      ${branch.length === 0 &&
      html`<div class="empty begin"><p>Ask something. Answers are this engine's own, and nothing of them is hidden: a click on a word shows what else the model could have said.</p>
        <div class="examples">${EXAMPLES.map((text) => html`<button class="chip" disabled=${!chat.open.value || !session.source.isLive} onClick=${() => chat.send(text, [])}>${text}</button>`)}</div></div>`}
      <${Thread} chat=${chat} session=${session} />
      ${session.source.isLive ? html`<${Composer} chat=${chat} />` : html`<${NeedsServer} session=${session} what="chatting" />`}
    </section>
    <aside class=${`column inside ${chat.inside.value.what}`} aria-label="inside">
      <${Inside} chat=${chat} session=${session} />
    </aside>
  `;
}
