// @ts-check
// The chat's state and what can be done with it: conversations, messages and their branches; answers are written by answering.js.

import { batch, computed, signal } from "../html.js";
import { messageOf } from "../state/api.js";
import { createAnswers, hasLocks } from "./answering.js";
import { createShelf, reconciled } from "./shelf.js";
import { asFile, branchTo, children, fromFile, newConversation, newestEnd, newId, newSeed, titleOf } from "./tree.js";

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
  const followers = computed(() => children(messages.value));
  const branch = computed(() => branchTo(messages.value, open.value?.leaf ?? ""));
  const shelf = createShelf(({ conversation, message }) => (message ? show(message) : tell(reload(conversation))));
  /** The conversation that is open once it has been read, and what has changed of it since the read began. */
  let opening = { id: "", changed: new Map() };
  /** @type {Promise<void> | null} */
  let started = null;
  let turn = Promise.resolve();
  /** What goes wrong is said, not thrown. @param {Promise<any>} work */
  const tell = (work) => work.catch((error) => (problem.value = messageOf(error)));

  /** @param {Conversation[]} all */
  const sorted = (all) => all.sort((a, b) => b.changed - a.changed);

  /** Draws a message anew, if its conversation is open. @param {Message} message */
  function show(message) {
    if (message.conversation === openId.value) messages.value = new Map(messages.value).set(message.id, message);
    else if (message.conversation === opening.id) opening.changed.set(message.id, message);
  }

  const answers = createAnswers(session, { shelf, show, tell });

  /** Reads of the shelf run one after the other: no answer comes after a later one. @param {() => Promise<void>} read */
  function inTurn(read) {
    const done = turn.then(read);
    turn = done.catch(() => {});
    return done;
  }

  /** Reads again what another tab has changed. @param {string} changed id of a conversation */
  async function reload(changed) {
    await inTurn(async () => {
      const before = conversations.value;
      const read = await shelf.conversations();
      const unkept = before.filter(({ id, title }) => !title && !read.some((each) => each.id === id));
      conversations.value = sorted(reconciled([...unkept, ...read], before, conversations.value));
      if (changed === openId.value) await reloadMessages();
    });
    if (!open.value && !opening.id) await openAny();
  }

  async function reloadMessages() {
    const id = openId.value;
    const before = [...messages.value.values()];
    const read = await shelf.messages(id);
    if (openId.value !== id) return;
    messages.value = byId(reconciled(read.map(answers.newest), before, [...messages.value.values()]));
    if (hasLocks) goOnWithAnswers(); // without locks it is not known whether the other tab still writes them
  }

  /** @param {Message[]} list */
  const byId = (list) => new Map(list.map((message) => [message.id, message]));

  /** Opens a conversation once it has been read. @param {string} id */
  async function choose(id) {
    const own = (opening = { id, changed: new Map() });
    if (id === openId.value || !conversations.value.find((each) => each.id === id)?.leaf) return opened(id, []); // nothing is to be read
    return inTurn(async () => {
      if (opening !== own) return;
      try {
        const read = await shelf.messages(id);
        if (opening === own) opened(id, read);
      } finally {
        if (opening === own) opening = { id: "", changed: new Map() };
      }
    });
  }

  /** @param {string} id @param {Message[]} read */
  function opened(id, read) {
    batch(() => {
      inside.value = { what: "conversation", message: "", at: 0 };
      if (id !== openId.value) messages.value = new Map([...byId(read.map(answers.newest)), ...opening.changed]);
      openId.value = id;
    });
    opening = { id: "", changed: new Map() };
    goOnWithAnswers();
  }

  /** The newest conversation, or an empty one. */
  const openAny = () => (conversations.value.length ? choose(conversations.value[0].id) : begin());

  /** An empty conversation with the settings of the open one. */
  function begin() {
    const empty = conversations.value.find(({ leaf, title }) => !leaf && !title);
    const made = empty ?? newConversation(open.value ?? undefined);
    if (!empty) conversations.value = [made, ...conversations.value];
    return choose(made.id);
  }

  /** Answers that nobody writes any more go on. */
  function goOnWithAnswers() {
    const now = open.value;
    if (!now) return;
    for (const message of messages.value.values()) if (message.status === "writing") tell(answers.resume(now, message, branchTo(messages.value, message.parent)));
  }

  /** Changes a conversation. @param {Partial<Conversation>} fields @param {Message[]} added to it, if it is the open one @param {Conversation | null} of */
  function change(fields, added = [], of = open.value) {
    if (!of) return;
    const changed = { ...of, ...fields };
    conversations.value = sorted(conversations.value.map((each) => (each.id === of.id ? changed : each)));
    if (added.length) messages.value = new Map([...messages.value, ...byId(added)]);
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

  async function start() {
    await tell(reload(""));
    if (!open.value) begin(); // the shelf cannot be read
    isReady.value = true;
  }

  const chat = {
    conversations, open, messages, branch, problem, isReady, inside, answers,
    /** Reads the shelf, once. */
    start: () => (started ??= start()),
    /** @param {string} id */
    choose: (id) => void tell(choose(id)),
    begin: () => void tell(begin()),
    /** @param {Partial<Conversation>} fields */
    set: (fields) => change(fields),
    /** Keeps what somebody has begun to write, in a conversation that need not be open any more. @param {string} id @param {string} draft */
    keepDraft(id, draft) {
      const of = conversations.value.find((each) => each.id === id);
      if (of && of.draft !== draft) change({ draft }, [], of);
    },
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
    /** The messages that stand at the same place in other branches, the oldest first, the message itself among them. @param {Message} of @returns {Message[]} */
    alternatives: (of) => followers.value.get(of.parent) ?? [of],
    /** Shows the newest branch through a message. @param {string} id */
    showBranch: (id) => change({ leaf: newestEnd(messages.value, id) }),
    /** @param {string} id */
    async remove(id) {
      for (const each of id === openId.value ? messages.value.values() : []) answers.stop(each.id);
      conversations.value = conversations.value.filter((each) => each.id !== id);
      const removed = tell(shelf.remove(id));
      if (!open.value) await tell(openAny());
      await removed;
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
      const kept = all.map(([conversation]) => conversation);
      conversations.value = sorted(reconciled(conversations.value, [], kept)); // another tab's news may have brought some of them
      if (all.length) chat.choose(all[0][0].id);
    },
    /** @param {Promise<any>} work */
    tell,
  };
  return chat;
}
