// @ts-check
// Writes answers: asks the server, keeps what comes, and goes on after a reload or a restart of the server. The same seed gives the same answer, so an answer
// that broke off goes on as it would have.

import { effect, signal } from "../html.js";
import { messageOf } from "../state/api.js";
import { PACE_MS } from "../state/source.js";
import { asMessages } from "./tree.js";

const KEEP_MS = 500; // between two times that an answer is kept while it is written
const MAX_SHARE = 4; // drawing an answer takes at most a part of the time that this many times itself leaves: long answers are drawn less often

/**
 * @param {Session} session
 * @param {{shelf: ReturnType<typeof import("./shelf.js").createShelf>, show(message: Message): void, tell(work: Promise<any>): void}} chat `show`: draws a message anew
 */
export function createAnswers(session, { shelf, show, tell }) {
  /** What is said of answers that are written here, by message: their place in the queue, the prompt's progress. */
  const progress = signal(/** @type {Record<string, any>} */ ({}));
  /** Of answers that are written here, by message. @type {Map<string, {stop: AbortController, writer: Writer}>} */
  const writing = new Map();
  /** Answers that another tab writes: they go on here if it is closed. @type {Set<string>} */
  const waiting = new Set();

  /** @param {string} id @param {any} value undefined: nothing */
  const setProgress = (id, value) => {
    const { [id]: _, ...others } = progress.value;
    progress.value = value === undefined ? others : { ...others, [id]: value };
  };

  /** Ends once the server can be asked again. @param {AbortSignal} signal */
  const serverIsBack = (signal) =>
    new Promise((done) => {
      const end = () => setTimeout(done, 0);
      signal.addEventListener("abort", end);
      const timer = setTimeout(() => {
        const stop = effect(() => {
          if (session.source.status.value !== "open" && session.source.status.value !== "refused") return;
          setTimeout(() => stop(), 0);
          end();
        });
      }, 1000);
      signal.addEventListener("abort", () => clearTimeout(timer));
    });

  /** An answer is from now on one that is written here. @param {Message} message */
  function begin(message) {
    const own = { stop: new AbortController(), writer: new Writer(message, show, (now) => tell(shelf.keepMessage(now))) };
    writing.set(message.id, own);
    setProgress(message.id, {});
    return own;
  }

  /**
   * Writes an answer to its end, in as many calls as it takes.
   * @param {Conversation} conversation
   * @param {ReturnType<typeof begin>} own
   * @param {Message[]} before
   */
  async function write(conversation, { stop: { signal }, writer }, before) {
    const { id } = writer.message;
    try {
      while (writer.message.status === "writing") {
        try {
          await call(conversation, writer, before, signal);
        } catch (error) {
          const { status } = /** @type {any} */ (error);
          if (signal.aborted) writer.end({ status: "stopped" });
          else if (status !== undefined && status !== 503) writer.end({ status: "failed", problem: messageOf(error) });
          else {
            setProgress(id, { isLost: true });
            await serverIsBack(signal);
            if (signal.aborted) writer.end({ status: "stopped" });
          }
        }
      }
    } finally {
      writing.delete(id);
      setProgress(id, undefined);
    }
  }

  /**
   * One call of the server: the whole answer, or the rest of it.
   * @param {Conversation} conversation
   * @param {Writer} writer
   * @param {Message[]} before
   * @param {AbortSignal} signal
   */
  async function call({ system, params, tools }, writer, before, signal) {
    const { text, seed, reasoning, calls, goneOn = 0 } = writer.message;
    const isRest = text !== "" && !reasoning && !calls?.length;
    if (!isRest) writer.restart();
    const messages = asMessages(before, system);
    const { max_tokens, ...sampling } = params;
    const made = writer.message.usage?.output ?? 0;
    const body = {
      ...sampling, seed, messages: isRest ? [...messages, { role: "assistant", content: text }] : messages,
      ...(isRest ? { continue_final_message: true, add_generation_prompt: false } : {}),
      ...(max_tokens ? { max_tokens: Math.max(1, max_tokens - (isRest ? made - goneOn : 0)) } : {}),
      ...(tools.trim() ? { tools: JSON.parse(tools) } : {}),
      model: writer.message.model || (await session.runs.model()),
      stream: true, stream_options: { include_usage: true, continuous_usage_stats: true }, return_progress: true,
    };
    writer.begin(isRest ? made : 0);
    session.cursor.goLive();
    await session.api.stream("/v1/chat/completions", body, {
      signal,
      onStart: (req) => writer.part(req, session.store.hello?.boot_id ?? ""),
      onData(data) {
        if (data.prompt_progress) setProgress(writer.message.id, data.prompt_progress);
        writer.take(data);
      },
    });
    if (writer.finish) writer.end({ status: "whole", finish: writer.finish });
    else throw new Error("the stream ended before the answer did");
  }

  return {
    progress,
    /** A message as it is now, if this tab writes it: what was kept of it is older. @param {Message} message */
    newest: (message) => writing.get(message.id)?.writer.message ?? message,
    /** @param {Conversation} conversation @param {Message} message @param {Message[]} before */
    write(conversation, message, before) {
      const own = begin(message);
      void alone(message.id, () => write(conversation, own, before));
    },
    /** Goes on with an answer, once no other tab writes it. @param {Conversation} conversation @param {Message} message @param {Message[]} before */
    async resume(conversation, { id }, before) {
      if (writing.has(id) || waiting.has(id)) return;
      waiting.add(id);
      await alone(id, async () => {
        waiting.delete(id);
        const now = await shelf.message(id);
        if (now?.status === "writing") await write(conversation, begin(now), before);
      });
    },
    /** @param {string} id */
    stop: (id) => writing.get(id)?.stop.abort(),
  };
}

/** Browsers have locks for pages of this machine and of https. */
export const hasLocks = Boolean(navigator.locks);

/**
 * Does something for a message when no other tab does; without locks each tab does it.
 * @param {string} id
 * @param {() => Promise<void>} work
 */
const alone = (id, work) => (hasLocks ? navigator.locks.request(`pellucid.answer.${id}`, work) : work());

/** An answer as it grows: drawn at the page's pace, kept more seldom. */
class Writer {
  /** @param {Message} message @param {(message: Message) => void} show @param {(message: Message) => void} keep */
  constructor(message, show, keep) {
    this.message = message;
    this.show = show;
    this.keep = keep;
    this.finish = "";
    this.madeBefore = 0;
    this.timer = /** @type {any} */ (0);
    this.cost = 0; // milliseconds that drawing it took
    this.kept = performance.now();
  }

  /** Begins anew. */
  restart() {
    this.set({ text: "", reasoning: undefined, calls: undefined, parts: [] });
  }

  /** A call begins. @param {number} made tokens of the answer so far */
  begin(made) {
    this.finish = "";
    this.madeBefore = made;
  }

  /** @param {Partial<Message>} fields */
  set(fields) {
    this.message = { ...this.message, ...fields };
    if (this.timer) return;
    this.timer = setTimeout(() => this.draw(), Math.max(PACE_MS, MAX_SHARE * this.cost));
  }

  draw() {
    this.timer = 0;
    const begun = performance.now();
    this.show(this.message);
    setTimeout(() => (this.cost = performance.now() - begun), 0);
    if (begun - this.kept < KEEP_MS) return;
    this.kept = begun;
    this.keep(this.message);
  }

  /** The text from here on is of a request. @param {string} req @param {string} boot */
  part(req, boot) {
    this.set({ parts: [...(this.message.parts ?? []), { req, boot, from: this.message.text.length }] });
  }

  /** @param {any} data an object of the stream */
  take({ choices, usage }) {
    const [choice] = choices ?? [];
    const delta = choice?.delta ?? {};
    /** @type {Partial<Message>} */
    const fields = {};
    if (delta.content) fields.text = this.message.text + delta.content;
    if (delta.reasoning_content) fields.reasoning = (this.message.reasoning ?? "") + delta.reasoning_content;
    if (delta.tool_calls) fields.calls = withCalls(this.message.calls ?? [], delta.tool_calls);
    if (usage) {
      const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
      fields.usage = { prompt: usage.prompt_tokens, cached, output: this.madeBefore + usage.completion_tokens };
      // What was found and what was not is that of the first call: later ones find what the first one computed.
      if (this.madeBefore && this.message.usage) fields.usage = { ...this.message.usage, output: fields.usage.output };
    }
    if (choice?.finish_reason) this.finish = choice.finish_reason;
    if (Object.keys(fields).length) this.set(fields);
  }

  /** @param {Partial<Message>} fields */
  end(fields) {
    clearTimeout(this.timer);
    this.timer = 0;
    this.message = { ...this.message, ...fields };
    this.show(this.message);
    this.keep(this.message);
  }
}

/**
 * The calls of tools with what a delta adds.
 * @param {ToolCall[]} calls
 * @param {any[]} added
 */
function withCalls(calls, added) {
  const now = calls.map((call) => ({ ...call }));
  for (const { index, id, function: { name = "", arguments: given = "" } = {} } of added) {
    now[index] ??= { id: "", name: "", arguments: "" };
    if (id) now[index].id = id;
    now[index].name += name;
    now[index].arguments += given;
  }
  return now;
}
