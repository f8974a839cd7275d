// The tree of a conversation, what of it is sent, and the files that conversations are kept in.
import assert from "node:assert/strict";
import { test } from "node:test";
import { reconciled } from "../../src/pellucid/web/chat/shelf.js";
import { asFile, asMessages, branchTo, children, fromFile, newConversation, newestEnd, titleOf } from "../../src/pellucid/web/chat/tree.js";

const say = (id, parent, role, text, at, more = {}) => ({ id, parent, role, text, at, conversation: "c", status: "whole", ...more });
const tree = () =>
  new Map(
    [
      say("q", "", "user", "one?", 1),
      say("a", "q", "assistant", "first", 2),
      say("b", "q", "assistant", "second", 3),
      say("r", "a", "user", "more?", 4),
      say("s", "r", "assistant", "more", 5),
    ].map((message) => [message.id, message]),
  );

test("a branch goes from its end to the first message", () => {
  assert.deepEqual(branchTo(tree(), "s").map(({ id }) => id), ["q", "a", "r", "s"]);
  assert.deepEqual(branchTo(tree(), "b").map(({ id }) => id), ["q", "b"]);
  assert.deepEqual(branchTo(tree(), "unknown"), []);
});

test("an answer again is an alternative, and its newest end is shown", () => {
  const messages = tree();
  assert.deepEqual(children(messages).get(messages.get("b").parent).map(({ id }) => id), ["a", "b"]);
  assert.equal(newestEnd(messages, "a"), "s");
  assert.equal(newestEnd(messages, "b"), "b");
  assert.equal(newestEnd(messages, "q"), "b", "the newest child, not the one with the longest branch");
});

test("a file is fenced by more backticks than it has, a call goes back with its result", () => {
  const calls = [{ id: "x", name: "clock", arguments: "{}" }];
  const branch = [
    say("q", "", "user", "Read this.", 1, { files: [{ name: "a.md", text: "```js\n1\n```" }] }),
    say("a", "q", "assistant", "", 2, { calls }),
    say("t", "a", "tool", "12:00", 3, { callId: "x" }),
  ];
  assert.deepEqual(asMessages(branch, "Be short."), [
    { role: "system", content: "Be short." },
    { role: "user", content: "a.md:\n````\n```js\n1\n```\n````\n\nRead this." },
    { role: "assistant", content: "", tool_calls: [{ id: "x", type: "function", function: { name: "clock", arguments: "{}" } }] },
    { role: "tool", tool_call_id: "x", content: "12:00" },
  ]);
});

test("a file gives back what was written into it, under new names", () => {
  const conversation = { ...newConversation({ system: "Be short.", params: { seed: 1 } }), title: "One", leaf: "s" };
  const [[read, messages]] = fromFile(asFile([[conversation, [...tree().values()].reverse()]]));
  assert.notEqual(read.id, conversation.id);
  assert.deepEqual([read.title, read.system, read.params], ["One", "Be short.", { seed: 1 }]);
  const branch = branchTo(new Map(messages.map((message) => [message.id, message])), read.leaf);
  assert.deepEqual(branch.map(({ text }) => text), ["one?", "first", "more?", "more"]);
  assert(messages.every((message) => message.conversation === read.id && !tree().has(message.id)));
});

test("a file that is none is refused by the name of what is wrong", () => {
  const file = (value) => JSON.stringify({ pellucid_chats: 1, conversations: [value] });
  assert.throws(() => fromFile("no"), /no JSON/);
  assert.throws(() => fromFile("{}"), /pellucid_chats: undefined; must be 1/);
  assert.throws(() => fromFile(file({ title: "x" })), /conversations\[0\]: must have a title and messages/);
  assert.throws(() => fromFile(file({ title: "x", messages: [{ id: "a", role: "root", text: "" }] })), /messages\[0\]\.role: "root"/);
  const loop = [{ id: "a", parent: "b", role: "user", text: "" }, { id: "b", parent: "a", role: "user", text: "" }];
  assert.throws(() => fromFile(file({ title: "x", messages: loop })), /messages\[0\]\.parent/);
});

test("a title is the first line, cut at a length", () => {
  assert.equal(titleOf("  Hello there\nand more"), "Hello there");
  assert.equal(titleOf("x".repeat(80)).length, 60);
});

test("what this tab has changed since a read began wins over what was read", () => {
  const [a, b, c] = ["a", "b", "c"].map((id) => ({ id, text: "old" }));
  const changed = { id: "b", text: "new" };
  const sent = { id: "d", text: "new" };
  const read = ["a", "b", "c", "e"].map((id) => ({ id, text: "read" }));
  const found = reconciled(read, [a, b, c], [a, changed, sent]);
  assert.deepEqual(Object.fromEntries(found.map(({ id, text }) => [id, text])), { a: "read", b: "new", d: "new", e: "read" });
});
