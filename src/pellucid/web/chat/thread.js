// @ts-check
// The messages of a conversation: answers as Markdown with reasoning, calls of tools, branches and what can be done with them; and the field to write in.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useSignal } from "../html.js";
import { count, inBytes, plural, several } from "../parts/numbers.js";
import { submits, Why } from "../parts/panel.js";
import { CopyButton, readText } from "./files.js";
import { Markdown } from "./markdown.js";
import { markToken, offsetAt } from "./places.js";

/** How answers ended that did not end by themselves. @type {Record<string, string>} */
const ENDS = { length: "It reached the number of tokens asked for, or the end of the model's context.", content_filter: "A filter ended it." };

/** @param {{chat: Chat, session: Session}} props */
export function Thread({ chat, session }) {
  const branch = chat.branch.value;
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const isAtEnd = useRef(true);
  const last = branch.at(-1);
  useEffect(() => {
    const follow = () => (isAtEnd.current = innerHeight + scrollY >= document.documentElement.scrollHeight - 160);
    addEventListener("scroll", follow, { passive: true });
    return () => removeEventListener("scroll", follow);
  }, []);
  // A reader who has scrolled up stays there.
  useLayoutEffect(() => {
    if (isAtEnd.current) scrollTo(0, document.documentElement.scrollHeight);
  }, [last]);
  useLayoutEffect(() => {
    isAtEnd.current = true;
    scrollTo(0, document.documentElement.scrollHeight);
  }, [chat.open.value?.id]);
  return html`<ol class="thread" ref=${box} aria-label="messages">
    ${branch.map((message) => html`<${Turn} key=${message.id} chat=${chat} session=${session} message=${message} />`)}
  </ol>`;
}

/** A message; drawn again only if it, its branches or what is looked at changed. @param {{chat: Chat, session: Session, message: Message}} props */
function Turn({ chat, session, message }) {
  const others = chat.alternatives(message);
  const progress = chat.answers.progress.value[message.id];
  const { what, message: looked, at } = chat.inside.value;
  const inside = looked === message.id ? `${what} ${at}` : "";
  return useMemo(
    () =>
      message.role === "assistant"
        ? html`<${Answer} chat=${chat} session=${session} message=${message} others=${others} progress=${progress} />`
        : html`<${Said} chat=${chat} message=${message} others=${others} />`,
    [message, others.length, progress, inside, session.route.now.value.view],
  );
}

/** The message that a button brought, and which button: the same one in the message's turn has the focus then. */
const brought = { id: "", by: 0 };

/** Goes between the branches at a message. @param {{chat: Chat, message: Message, others: Message[]}} props */
function Branches({ chat, message, others }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  useLayoutEffect(() => {
    if (!box.current || brought.id !== message.id) return;
    brought.id = "";
    const [before, next] = box.current.querySelectorAll("button");
    (before.disabled || (brought.by > 0 && !next.disabled) ? next : before).focus();
  }, []);
  if (others.length < 2) return null;
  const index = others.findIndex(({ id }) => id === message.id);
  const to = (/** @type {number} */ by) => () => {
    Object.assign(brought, { id: others[index + by].id, by });
    chat.showBranch(brought.id);
  };
  return html`<span class="branches" ref=${box}>
    <button class="quiet" aria-label="the branch before" disabled=${index === 0} onClick=${to(-1)}>‹</button>
    <span>${index + 1} of ${others.length}</span>
    <button class="quiet" aria-label="the next branch" disabled=${index === others.length - 1} onClick=${to(1)}>›</button>
  </span>`;
}

/** What a person or a tool said. @param {{chat: Chat, message: Message, others: Message[]}} props */
function Said({ chat, message, others }) {
  const edited = useSignal(/** @type {string | null} */ (null));
  const edit = useRef(/** @type {HTMLButtonElement | null} */ (null));
  const wasEdited = useRef(false);
  useLayoutEffect(() => {
    if (wasEdited.current) edit.current?.focus();
    wasEdited.current = edited.value !== null;
  }, [edited.value === null]);
  if (edited.value !== null) {
    return html`<li class="turn user">
      <form class="edit" onSubmit=${submits(() => {
        chat.send(edited.value ?? "", message.files ?? [], message.parent);
        document.getElementById("say")?.focus(); // the turn that was edited is no longer shown
        edited.value = null;
      })}>
        <textarea
          aria-label="edited message" rows="3" value=${edited.value} ref=${(/** @type {any} */ area) => area && area !== document.activeElement && area.focus()}
          onInput=${(/** @type {any} */ { target }) => (edited.value = target.value)}
          onKeyDown=${(/** @type {any} */ event) => {
            if (event.key === "Escape") edited.value = null;
          }}
        ></textarea>
        <div class="actions"><button class="primary">Send as a new branch</button><button type="button" onClick=${() => (edited.value = null)}>Cancel</button></div>
      </form>
    </li>`;
  }
  const who = message.role === "tool" ? "result of a tool" : "you";
  return html`<li class=${`turn ${message.role}`}>
    <p class="spoken">${who}:</p>
    ${message.files?.map((file) => html`<details class="file"><summary>${file.name} <small>${inBytes(new Blob([file.text]).size)}</small></summary><pre tabindex="0" aria-label=${file.name}>${file.text}</pre></details>`)}
    <div class="said">${message.text}</div>
    <div class="actions">
      ${message.role === "user" && html`<button class="quiet" ref=${edit} onClick=${() => (edited.value = message.text)}>edit</button>`}
      <${CopyButton} text=${message.text} />
      <${Branches} chat=${chat} message=${message} others=${others} />
    </div>
  </li>`;
}

/** @param {{chat: Chat, session: Session, message: Message, others: Message[], progress: any}} props */
function Answer({ chat, session, message, others, progress }) {
  const { text, reasoning, calls, usage } = message;
  const isOpen = message.status === "writing";
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const { what, message: looked, at } = chat.inside.value;
  const isLooked = looked === message.id && what === "token";
  useEffect(() => {
    if (isLooked && box.current) return markToken(box.current, session, message, at);
    return undefined;
  }, [isLooked, at, text]);
  /** @param {any} event */
  const look = (event) => {
    if (event.target.closest("button, a, summary") || !getSelection()?.isCollapsed) return;
    const place = offsetAt(event.clientX, event.clientY);
    if (place >= 0) chat.inside.value = { what: "token", message: message.id, at: place };
  };
  return html`<li class="turn assistant">
    <p class="spoken">answer:</p>
    ${reasoning &&
    html`<details class="reasoning"><summary>${isOpen && !text ? "thinking …" : "how it thought"}</summary><div class="said">${reasoning}</div></details>`}
    <div
      class="answer-text" ref=${box} role="group" tabindex="0" aria-busy=${isOpen} aria-label="answer; Enter looks into it, word by word"
      onClick=${look}
      onKeyDown=${(/** @type {KeyboardEvent} */ event) => {
        if (event.key !== "Enter" || event.target !== event.currentTarget) return;
        chat.inside.value = { what: "token", message: message.id, at: 0 };
      }}
    ><${Markdown} text=${text} isOpen=${isOpen} />${isOpen && html`<i class="caret" aria-hidden="true"></i>`}</div>
    ${calls?.map((call) => html`<${Call} call=${call} />`)}
    ${isOpen && html`<${Progress} progress=${progress} hasText=${text !== "" || !!reasoning} />`}
    ${message.status === "failed" && html`<${Why} trouble lead="The answer failed.">${message.problem}<//>`}
    ${message.status === "whole" && ENDS[message.finish ?? ""] && html`<p class="dim small">${ENDS[message.finish ?? ""]}</p>`}
    ${message.finish === "tool_calls" && chat.open.value?.leaf === message.id && html`<${Results} chat=${chat} message=${message} />`}
    <div class="actions">
      ${isOpen
        ? html`<button onClick=${() => chat.answers.stop(message.id)}>Stop</button>`
        : html`${(message.status !== "whole" || message.finish === "length") && html`<button class="quiet" onClick=${() => chat.goOn(message)}>go on</button>`}
            <button class="quiet" onClick=${() => chat.again(message)}>again</button><${CopyButton} text=${text} />
            <button class="quiet" aria-pressed=${looked === message.id && what === "slow"} onClick=${() => (chat.inside.value = { what: "slow", message: message.id, at: 0 })}>why so long?</button>`}
      <${Branches} chat=${chat} message=${message} others=${others} />
      ${usage && html`<span class="tokens-said">${several(usage.output, "token")} · ${count(usage.cached)} of ${count(usage.prompt)} prompt ${plural(usage.prompt, "token")} from the cache</span>`}
    </div>
  </li>`;
}

/** What an answer waits for. @param {{progress: any, hasText: boolean}} props */
function Progress({ progress, hasText }) {
  if (!progress) return html`<p class="dim small" role="status">Another tab writes this answer.</p>`;
  if (progress.isLost) return html`<p class="dim small" role="status">The server does not answer. The answer goes on when it is back.</p>`;
  if (hasText) return null;
  if (typeof progress.queue_position === "number") return html`<p class="dim small" role="status">In the queue, place ${count(progress.queue_position + 1)}.</p>`;
  if (!progress.total) return html`<p class="dim small" role="status">Asking …</p>`;
  return html`<p class="dim small" role="status">Reading the prompt: ${count(progress.processed)} of ${several(progress.total, "token")}, ${count(progress.cache)} from the cache.</p>`;
}

/** @param {{call: ToolCall}} props */
function Call({ call }) {
  let shown = call.arguments;
  try {
    shown = JSON.stringify(JSON.parse(call.arguments), null, 2);
  } catch {
    // while it is written it is no JSON yet
  }
  return html`<details class="call" open><summary>calls <b class="mono">${call.name}</b></summary><pre tabindex="0" aria-label=${`arguments of ${call.name}`}>${shown}</pre></details>`;
}

/** Fields for what called tools returned: nothing here runs them. @param {{chat: Chat, message: Message}} props */
function Results({ chat, message }) {
  const calls = message.calls ?? [];
  const results = useSignal(calls.map(() => ""));
  return html`<form class="edit" onSubmit=${submits(() => chat.giveResults(message, results.value))}>
    ${calls.map(
      ({ name }, index) => html`<label>what <b class="mono">${name}</b> returned
        <textarea rows="2" value=${results.value[index]} onInput=${(/** @type {any} */ { target }) => (results.value = results.value.with(index, target.value))}></textarea></label>`,
    )}
    <div class="actions"><button class="primary">Give ${calls.length === 1 ? "it" : "them"} to the model</button></div>
  </form>`;
}

/** The field to write in: Enter sends, Shift+Enter begins a line. @param {{chat: Chat}} props */
export function Composer({ chat }) {
  const open = chat.open.value;
  const text = useSignal(open?.draft ?? "");
  const files = useSignal(/** @type {TextFile[]} */ ([]));
  const problem = useSignal("");
  const writing = chat.branch.value.at(-1);
  const isWriting = writing?.status === "writing";
  useLayoutEffect(() => {
    text.value = open?.draft ?? "";
    files.value = [];
    return () => open && chat.keepDraft(open.id, text.value);
  }, [open?.id]);
  const send = () => {
    if (!open || isWriting || (!text.value.trim() && !files.value.length)) return;
    chat.send(text.value, files.value);
    text.value = "";
    files.value = [];
    chat.set({ draft: "" });
  };
  /** @param {Iterable<File>} given */
  const attach = async (given) => {
    problem.value = "";
    for (const file of given) {
      await readText(file).then((read) => (files.value = [...files.value, read]), (error) => (problem.value = error.message));
    }
  };
  return html`<form
    class="composer"
    onSubmit=${submits(send)}
    onDragOver=${(/** @type {DragEvent} */ event) => event.preventDefault()}
    onDrop=${(/** @type {DragEvent} */ event) => {
      event.preventDefault();
      attach(event.dataTransfer?.files ?? []);
    }}
  >
    ${files.value.length > 0 &&
    html`<ul class="attached">${files.value.map(
      (file, index) => html`<li class="chip">${file.name} <button type="button" class="quiet" aria-label=${`without ${file.name}`} onClick=${() => (files.value = files.value.toSpliced(index, 1))}>×</button></li>`,
    )}</ul>`}
    ${problem.value && html`<p class="why trouble" role="alert">${problem.value}</p>`}
    <label class="spoken" for="say">message</label>
    <textarea
      id="say" rows="1" placeholder="Write a message" value=${text.value}
      onInput=${(/** @type {any} */ { target }) => (text.value = target.value)}
      onBlur=${() => text.value !== (open?.draft ?? "") && chat.set({ draft: text.value })}
      onKeyDown=${(/** @type {any} */ event) => {
        if (event.key === "Escape") event.target.blur();
        if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
        event.preventDefault();
        send();
      }}
    ></textarea>
    <div class="actions">
      <label class="attach">attach text<input type="file" multiple class="spoken" onChange=${(/** @type {any} */ { target }) => {
        attach([...target.files]);
        target.value = "";
      }} /></label>
      <span class="spacer"></span>
      ${isWriting
        ? html`<button type="button" onClick=${() => writing && chat.answers.stop(writing.id)}>Stop</button>`
        : html`<button class="primary" id="send">Send</button>`}
    </div>
  </form>`;
}
