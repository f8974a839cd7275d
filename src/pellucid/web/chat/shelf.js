// @ts-check
// Where conversations are kept: in a database of this browser, which all its tabs share. Nothing of it is sent anywhere.

const NAME = "pellucid.chat";
const VERSION = 1;

/** @template T @param {IDBRequest<T>} request @returns {Promise<T>} */
const settled = (request) =>
  new Promise((done, fail) => {
    request.onsuccess = () => done(request.result);
    request.onerror = () => fail(request.error ?? new Error("the browser's database failed"));
  });

/** @returns {Promise<IDBDatabase>} */
function open() {
  const request = indexedDB.open(NAME, VERSION);
  request.onupgradeneeded = () => {
    request.result.createObjectStore("conversations", { keyPath: "id" });
    request.result.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
  };
  return settled(request);
}

/**
 * What was read of the shelf, but for what this tab has added, changed or removed since the read began.
 * @template {{id: string}} T
 * @param {T[]} read
 * @param {T[]} before what the tab had when the read began
 * @param {T[]} now what the tab has
 * @returns {T[]} each id once
 */
export function reconciled(read, before, now) {
  const known = new Set(before);
  const changed = now.filter((each) => !known.has(each));
  const here = new Set(now.map(({ id }) => id));
  const touched = new Set([...changed, ...before.filter(({ id }) => !here.has(id))].map(({ id }) => id));
  return [...changed, ...read.filter(({ id }) => !touched.has(id))];
}

/**
 * The shelf of this browser's conversations.
 * @param {(told: {conversation: string, message?: Message}) => void} onChange is told of what other tabs have changed; "": any conversation
 */
export function createShelf(onChange) {
  const database = open();
  database.catch(() => {}); // each use of it says so
  const tabs = new BroadcastChannel(NAME);
  tabs.onmessage = ({ data }) => onChange(data);

  /** @param {"readonly" | "readwrite"} mode @param {(conversations: IDBObjectStore, messages: IDBObjectStore) => void} work */
  async function change(mode, work) {
    const transaction = (await database).transaction(["conversations", "messages"], mode);
    work(transaction.objectStore("conversations"), transaction.objectStore("messages"));
    await new Promise((done, fail) => {
      transaction.oncomplete = done;
      transaction.onerror = transaction.onabort = () => fail(transaction.error ?? new Error("the browser's database is full"));
    });
  }

  return {
    /** @returns {Promise<Conversation[]>} */
    conversations: async () => settled((await database).transaction("conversations").objectStore("conversations").getAll()),
    /** @param {string} conversation @returns {Promise<Message[]>} */
    messages: async (conversation) =>
      settled((await database).transaction("messages").objectStore("messages").index("conversation").getAll(conversation)),
    /** @param {string} id @returns {Promise<Message | undefined>} */
    message: async (id) => settled((await database).transaction("messages").objectStore("messages").get(id)),
    /** Keeps a conversation, and messages of it. @param {Conversation} conversation @param {Message[]} messages */
    async keep(conversation, messages = []) {
      await change("readwrite", (shelf, leaves) => {
        shelf.put(conversation);
        for (const message of messages) leaves.put(message);
      });
      tabs.postMessage({ conversation: conversation.id });
    },
    /** Keeps a message as it is written, unless its conversation was removed; other tabs see it. @param {Message} message */
    async keepMessage(message) {
      await change("readwrite", (shelf, leaves) => {
        shelf.getKey(message.conversation).onsuccess = ({ target }) => {
          if (/** @type {IDBRequest} */ (target).result !== undefined) leaves.put(message);
        };
      });
      tabs.postMessage({ conversation: message.conversation, message });
    },
    /** @param {string} conversation its id */
    async remove(conversation) {
      await change("readwrite", (shelf, leaves) => {
        shelf.delete(conversation);
        leaves.index("conversation").getAllKeys(conversation).onsuccess = ({ target }) => {
          for (const id of /** @type {IDBRequest} */ (target).result) leaves.delete(id);
        };
      });
      tabs.postMessage({ conversation });
    },
  };
}
