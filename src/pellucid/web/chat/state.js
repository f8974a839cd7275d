// @ts-check
// The chat's state and what can be done with it: conversations, messages and their branches; answers are written by answering.js.

import { computed, signal } from "../html.js";
import { messageOf } from "../state/api.js";
import { createAnswers } from "./answering.js";
import { createShelf } from "./shelf.js";
import { alternatives, asFile, branchTo, fromFile, newConversation, newestEnd, newId, newSeed, titleOf } from "./tree.js";

/** What Chat remembers while other views are shown. @param {Session} session */
export function chatState(session) {
  return /** @type {ReturnType<typeof createChat>} */ (session.views.chat ??= createChat(session));
}

/** @param {Session} session */
function createChat(session) {
  /** The newest change first. @type {import("@preact/signals-core").Signal<Conversation[]>} */
  const conversations = signal([]);
  const openId = signal("");
  /** Of the open conversation, by id. @type {import("@preact/signals-core").Signal<Map<string, Message>>} */
  const messages = signal(new Map());
  const problem = signal("");
  const isReady = signal(false);
  /** What is looked at beside the conversation: nothing, why an answer took as long as it did, or a token. @type {import("@preact/signals-core").Signal<Inside>} */
  const inside = signal(/** @type {Inside} */ ({ what: "conversation", message: "", at: 0 }));
  const open = computed(() => conversations.value.find(({ id }) => id === openId.value) ?? null);
  const branch = computed(() => branchTo(messages.value, open.value?.leaf ?? ""));
  const shelf = createShelf(({ conversation, message }) => {
    if (message) {
      if (conversation === openId.value) show(message);
    } else tell(reload(conversation));
  });
  /** What goes wrong is said, not thrown. @param {Promise<any>} work */
  const tell = (work) => work.catch((error) => (problem.value = messageOf(error)));

  /** @param {Conversation[]} all */
  const sorted = (all) => all.sort((a, b) => b.changed - a.changed);

  /** @param {Message} message of the open conversation */
  function show(message) {
    messages.value = new Map(messages.value).set(message.id, message);
  }

  const answers = createAnswers(session, {
    shelf,
    show(message) {
      if (message.conversation === openId.value) show(message);
    },
    tell,
  });

  /** Reads again what another tab has changed. @param {string} changed id of a conversation */
  async function reload(changed) {
    const kept = await shelf.conversations();
    const isNew = (/** @type {Conversation} */ { id, title }) => !title && !kept.some((each) => each.id === id);
    conversations.value = sorted([...conversations.value.filter(isNew), ...kept]);
    if (!open.value) await choose(conversations.value[0]?.id ?? "");
    else if (changed === openId.value) {
      const found = byId(await shelf.messages(changed));
      for (const [id, message] of messages.value) if (answers.isWriting(id)) found.set(id, message);
      messages.value = found;
    }
  }

  /** @param {Message[]} list */
  const byId = (list) => new Map(list.map((message) => [message.id, message]));

  /** Opens a conversation; answers that nobody writes any more go on. @param {string} id "": none */
  async function choose(id) {
    openId.value = id;
    inside.value = { what: "conversation", message: "", at: 0 };
    messages.value = new Map();
    if (!id) return;
    const found = await shelf.messages(id);
    if (openId.value !== id) return;
    messages.value = byId(found);
    for (const message of found) if (message.status === "writing") answers.resume(/** @type {Conversation} */ (open.value), message, branchTo(messages.value, message.parent));
  }

  /** Changes the open conversation. @param {Partial<Conversation>} fields @param {Message[]} added */
  function change(fields, added = []) {
    const now = open.value;
    if (!now) return;
    const changed = { ...now, ...fields };
    conversations.value = sorted(conversations.value.map((each) => (each.id === now.id ? changed : each)));
    if (added.length) messages.value = new Map([...messages.value, ...added.map((message) => /** @type {[string, Message]} */ ([message.id, message]))]);
    tell(shelf.keep(changed, added));
  }

  /** A message of the open conversation, later than all others. @param {Pick<Message, "parent" | "role"> & Partial<Message>} fields @returns {Message} */
  const message = (fields) => ({
    id: newId(), conversation: openId.value, text: "", status: "whole",
    at: Math.max(Date.now(), ...[...messages.value.values()].map(({ at }) => at + 1)), ...fields,
  });

  /** Asks for an answer to the branch that ends with `parent`. @param {string} parent @param {Message[]} before messages that are new as well */
  function ask(parent, before = []) {
    const { params, model } = /** @type {Conversation} */ (open.value);
    const at = Math.max(Date.now(), ...[...messages.value.values(), ...before].map((each) => each.at + 1));
    const made = message({ parent, role: "assistant", status: "writing", at, seed: params.seed ?? newSeed(), model });
    change({ leaf: made.id, changed: Date.now() }, [...before, made]);
    answers.write(/** @type {Conversation} */ (open.value), made, branchTo(messages.value, parent));
  }

  const chat = {
    conversations, open, messages, branch, problem, isReady, inside, answers,
    /** Reads the shelf, once. */
    async start() {
      if (isReady.value) return;
      await tell(reload(""));
      isReady.value = true;
      if (!open.value) chat.begin();
    },
    /** @param {string} id */
    choose: (id) => tell(choose(id)),
    /** An empty conversation with the settings of the open one. */
    begin() {
      const empty = conversations.value.find(({ leaf, title }) => !leaf && !title);
      const made = empty ?? newConversation(open.value ?? undefined);
      if (!empty) conversations.value = [made, ...conversations.value];
      tell(choose(made.id));
    },
    /** @param {Partial<Conversation>} fields */
    set: (fields) => change(fields),
    /** Sends what somebody wrote. @param {string} text @param {TextFile[]} files @param {string} [parent] another place than the end: an edit */
    send(text, files, parent = open.value?.leaf ?? "") {
      if (!open.value?.title) change({ title: titleOf(text || files[0]?.name || "") });
      const made = message({ parent, role: "user", text, ...(files.length ? { files } : {}) });
      ask(made.id, [made]);
    },
    /** Gives the model what its calls returned. @param {Message} answer @param {string[]} results in the order of its calls */
    giveResults(answer, results) {
      /** @type {Message[]} */
      const made = [];
      for (const [index, text] of results.entries()) {
        const parent = made.at(-1)?.id ?? answer.id;
        made.push(message({ parent, role: "tool", text, callId: answer.calls?.[index].id, at: Date.now() + index }));
      }
      ask(/** @type {Message} */ (made.at(-1)).id, made);
    },
    /** Another answer to the same question. @param {Message} answer */
    again: (answer) => ask(answer.parent),
    /** Goes on with an answer that was stopped, failed or reached its number of tokens. @param {Message} answer */
    goOn(answer) {
      const writing = { ...answer, status: /** @type {const} */ ("writing"), problem: undefined, goneOn: answer.usage?.output };
      show(writing);
      answers.write(/** @type {Conversation} */ (open.value), writing, branchTo(messages.value, answer.parent));
    },
    /** @param {Message} of @returns {Message[]} */
    alternatives: (of) => alternatives(messages.value, of),
    /** Shows the newest branch through a message. @param {string} id */
    showBranch: (id) => change({ leaf: newestEnd(messages.value, id) }),
    /** @param {string} id */
    async remove(id) {
      for (const each of id === openId.value ? messages.value.values() : []) answers.stop(each.id);
      conversations.value = conversations.value.filter((each) => each.id !== id);
      await tell(shelf.remove(id));
      if (id === openId.value) chat.choose(conversations.value[0]?.id ?? "");
      if (conversations.value.length === 0) chat.begin();
    },
    /** A file with one conversation, or with all. @param {string} [id] */
    async exported(id) {
      const all = conversations.value.filter((each) => (id ? each.id === id : each.title));
      return asFile(await Promise.all(all.map(async (each) => /** @type {[Conversation, Message[]]} */ ([each, await shelf.messages(each.id)]))));
    },
    /** Adds the conversations of a file. @param {string} text */
    async imported(text) {
      problem.value = "";
      const all = fromFile(text);
      for (const [conversation, its] of all) await shelf.keep(conversation, its);
      conversations.value = sorted([...all.map(([conversation]) => conversation), ...conversations.value]);
      if (all.length) chat.choose(all[0][0].id);
    },
    /** @param {Promise<any>} work */
    tell,
  };
  return chat;
}
