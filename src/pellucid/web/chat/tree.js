// @ts-check
// A conversation as the tree that its messages make: each edit and each new answer is a branch. And how it is sent to a server, and kept in a file.

const FORMAT = 1;
const MAX_TITLE = 60;

/** A new name for a conversation or a message. */
export const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");

/** Any seed that a server takes. */
export const newSeed = () => crypto.getRandomValues(new Uint32Array(1))[0] >>> 1;

/**
 * The branch that ends with a message, from the first one on.
 * @param {Map<string, Message>} messages by id
 * @param {string} leaf
 */
export function branchTo(messages, leaf) {
  const branch = [];
  for (let message = messages.get(leaf); message; message = messages.get(message.parent)) branch.push(message);
  return branch.reverse();
}

/**
 * The messages after each message, by its id, the oldest first: more than one are branches.
 * @param {Map<string, Message>} messages
 */
export function children(messages) {
  /** @type {Map<string, Message[]>} */
  const found = new Map();
  for (const message of [...messages.values()].sort((a, b) => a.at - b.at)) {
    const siblings = found.get(message.parent);
    if (siblings) siblings.push(message);
    else found.set(message.parent, [message]);
  }
  return found;
}

/**
 * The end of the newest branch through a message.
 * @param {Map<string, Message>} messages
 * @param {string} id
 */
export function newestEnd(messages, id) {
  /** @type {Map<string, Message>} the newest child by parent */
  const newest = new Map();
  for (const message of messages.values()) {
    const known = newest.get(message.parent);
    if (!known || known.at <= message.at) newest.set(message.parent, message);
  }
  let end = id;
  for (let child = newest.get(end); child; child = newest.get(end)) end = child.id;
  return end;
}

/** What a conversation is called by its first words. @param {string} text */
export function titleOf(text) {
  const line = text.trim().split("\n")[0];
  return line.length <= MAX_TITLE ? line || "Untitled" : `${line.slice(0, MAX_TITLE - 1).trimEnd()}…`;
}

/** A text file within a message: fenced by more backticks than it has. @param {{name: string, text: string}} file */
function fenced({ name, text }) {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${name}:\n${fence}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
}

/**
 * A branch as the messages of a chat completion.
 * @param {Message[]} branch
 * @param {string} system "": none
 */
export function asMessages(branch, system) {
  /** @type {any[]} */
  const sent = system ? [{ role: "system", content: system }] : [];
  for (const { role, text, files, calls, callId } of branch) {
    if (role === "user") sent.push({ role, content: [...(files ?? []).map(fenced), text].filter(Boolean).join("\n\n") });
    else if (role === "tool") sent.push({ role, tool_call_id: callId, content: text });
    else sent.push({ role, content: text, ...(calls?.length ? { tool_calls: calls.map(({ id, name, arguments: given }) => ({ id, type: "function", function: { name, arguments: given } })) } : {}) });
  }
  return sent;
}

/** A file with conversations. @param {[Conversation, Message[]][]} all */
export const asFile = (all) => JSON.stringify({ pellucid_chats: FORMAT, conversations: all.map(([conversation, messages]) => ({ ...conversation, messages: messages.toSorted((a, b) => a.at - b.at) })) }, null, 1);

/**
 * The conversations of a file, under new names.
 * @param {string} text
 * @returns {[Conversation, Message[]][]}
 */
export function fromFile(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("the file is no JSON");
  }
  if (file?.pellucid_chats !== FORMAT) throw new Error(`pellucid_chats: ${JSON.stringify(file?.pellucid_chats)}; must be ${FORMAT}, in a file that Export has written`);
  if (!Array.isArray(file.conversations)) throw new Error("conversations: must be a list");
  return file.conversations.map((/** @type {any} */ given, /** @type {number} */ number) => {
    const where = `conversations[${number}]`;
    if (typeof given?.title !== "string" || !Array.isArray(given.messages)) throw new Error(`${where}: must have a title and messages`);
    const conversation = newConversation(given);
    conversation.title = given.title;
    const names = new Map();
    const messages = given.messages.map((/** @type {any} */ message, /** @type {number} */ index) => {
      const at = `${where}.messages[${index}]`;
      if (!["user", "assistant", "tool"].includes(message?.role)) throw new Error(`${at}.role: ${JSON.stringify(message?.role)}; must be user, assistant or tool`);
      if (typeof message.text !== "string") throw new Error(`${at}.text: must be a string`);
      if (message.parent && !names.has(message.parent)) throw new Error(`${at}.parent: no message before it has this id`);
      names.set(message.id, newId());
      const status = message.status === "writing" ? "stopped" : message.status;
      return { ...message, id: names.get(message.id), conversation: conversation.id, parent: names.get(message.parent) ?? "", at: Number(message.at) || index, status };
    });
    conversation.leaf = names.get(given.leaf) ?? messages.at(-1)?.id ?? "";
    return [conversation, messages];
  });
}

/** @param {Partial<Conversation>} like a conversation whose settings the new one takes over @returns {Conversation} */
export function newConversation({ system = "", model = "", params = {}, tools = "" } = {}) {
  const now = Date.now();
  return { id: newId(), title: "", made: now, changed: now, leaf: "", draft: "", system, model, params, tools };
}
