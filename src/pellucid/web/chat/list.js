// @ts-check
// The list of conversations: a new one, another one, export, import, delete.

import { html, useSignal } from "../html.js";
import { messageOf } from "../state/api.js";
import { offer } from "./files.js";

/** @param {{chat: Chat}} props */
export function List({ chat }) {
  const open = chat.open.value;
  const isSure = useSignal("");
  const search = useSignal("");
  const wanted = search.value.trim().toLowerCase();
  const shown = chat.conversations.value.filter(({ title }) => title.toLowerCase().includes(wanted));
  const remove = () => {
    if (!open) return;
    void chat.remove(open.id);
    document.getElementById("new-chat")?.focus(); // the button that was pressed can do nothing now
  };
  /** @param {string} [id] */
  const save = (id) => chat.tell(chat.exported(id).then((text) => offer(id ? `${(open?.title ?? "chat").replace(/[^\p{L}\p{N}]+/gu, "-")}.json` : "pellucid-chats.json", text)));
  return html`<nav class="chats" aria-label="Conversations">
    <button class="primary" id="new-chat" onClick=${chat.begin}>New conversation</button>
    ${chat.conversations.value.length > 8 &&
    html`<input type="search" aria-label="search conversations" placeholder="search" value=${search.value} onInput=${(/** @type {any} */ { target }) => (search.value = target.value)} />`}
    <ul>
      ${shown.map(
        ({ id, title }) => html`<li key=${id}><button class=${id === open?.id ? "on" : ""} aria-current=${id === open?.id ? "true" : undefined} onClick=${() => chat.choose(id)}>${title || "New conversation"}</button></li>`,
      )}
    </ul>
    <details class="keep">
      <summary>export, import, delete</summary>
      <button class="quiet" disabled=${!open?.title} onClick=${() => save(open?.id)}>export this one</button>
      <button class="quiet" onClick=${() => save()}>export all</button>
      <label class="attach">import a file<input type="file" accept=".json,application/json" class="spoken" onChange=${async (/** @type {any} */ { target }) => {
        try {
          await chat.imported(await target.files[0].text());
        } catch (error) {
          chat.problem.value = `The file was not imported: ${messageOf(error)}`;
        }
        target.value = "";
      }} /></label>
      ${isSure.value === open?.id
        ? html`<button class="danger" onClick=${remove}>delete “${open?.title}” for good</button>`
        : html`<button class="quiet" disabled=${!open?.title} onClick=${() => (isSure.value = open?.id ?? "")}>delete this one</button>`}
      <p class="faint small">Conversations are kept in this browser alone.</p>
    </details>
  </nav>`;
}
