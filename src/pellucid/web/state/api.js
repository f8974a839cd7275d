// @ts-check
// How the page asks the server: requests and replies, runs whose reply is a stream, texts that run.

import { signal } from "@preact/signals-core";
import { FrameReader, textReader } from "./sse.js";

class ServerError extends Error {
  /**
   * @param {string} message
   * @param {number} status
   */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/**
 * @param {Settings} settings
 */
export function createApi(settings) {
  /**
   * @param {string} path
   * @param {RequestInit} options
   */
  async function call(path, options) {
    const headers = new Headers(options.headers);
    if (settings.key.value) headers.set("authorization", `Bearer ${settings.key.value}`);
    const reply = await fetch(path, { ...options, headers, cache: "no-store" });
    if (!reply.ok) {
      const body = await reply.json().catch(() => null);
      throw new ServerError(body?.error?.message ?? `${path}: status ${reply.status}`, reply.status);
    }
    return reply;
  }

  /**
   * @param {string} path
   * @param {any} body
   * @param {AbortSignal} [signal]
   */
  const send = (path, body, signal) =>
    call(path, { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" }, signal });

  return {
    /**
     * @param {string} path
     * @param {AbortSignal} [signal]
     */
    get: async (path, signal) => (await call(path, { signal })).json(),
    /**
     * @param {string} path
     * @param {any} body
     * @param {AbortSignal} [signal]
     */
    post: async (path, body, signal) => (await send(path, body, signal)).json(),
    /**
     * Asks for something whose reply is a stream of JSON objects, and hands them on to the end.
     * @param {string} path
     * @param {any} body
     * @param {{onStart?: (req: string) => void, onData?: (data: any) => void, signal?: AbortSignal}} how
     *   `onStart` is told the engine's name of the request before the first object
     */
    async stream(path, body, { onStart, onData, signal }) {
      const reply = await send(path, body, signal);
      onStart?.(`${reply.headers.get("x-request-id")}/0`);
      const reader = textReader(/** @type {ReadableStream<Uint8Array>} */ (reply.body));
      const frames = new FrameReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        for (const frame of frames.push(value)) {
          if (frame.data === "[DONE]") continue;
          const data = JSON.parse(frame.data);
          if (data.error) throw new ServerError(data.error.message ?? "it failed", data.error.code ?? 500);
          if (typeof data.ev === "string" && data.ev.endsWith(".failed")) throw new ServerError(data.msg, 500);
          onData?.(data);
        }
      }
    },
  };
}

/** @param {Session} session */
export function createStreamed(session) {
  /** What went wrong last; "" if nothing did. */
  const problem = signal("");
  const stop = signal(/** @type {AbortController | null} */ (null));
  /** Counts what has come: what the events change, they change in place. */
  const version = signal(0);
  let told = 0;
  const tell = () => {
    told ||= requestAnimationFrame(() => {
      told = 0;
      version.value += 1;
    });
  };
  return {
    problem,
    stop,
    version,
    /**
     * Runs `work` unless something runs.
     * @param {(stream: (path: string, body: any, onData: (event: any) => void) => Promise<void>) => Promise<void>} work
     */
    async run(work) {
      if (stop.value) return;
      const own = new AbortController();
      stop.value = own;
      problem.value = "";
      try {
        await work((path, body, onData) =>
          session.api.stream(path, body, {
            signal: own.signal,
            onData(event) {
              onData(event);
              tell();
            },
          }),
        );
      } catch (error) {
        if (!own.signal.aborted) problem.value = error instanceof Error ? error.message : String(error);
      } finally {
        stop.value = null;
        version.value += 1;
      }
    },
  };
}

/**
 * @param {Api} api
 * @param {Store} store
 * @param {Cursor} cursor
 * @param {{req: import("@preact/signals-core").Signal<string>, pos: import("@preact/signals-core").Signal<number>}} selection
 */
export function createRuns(api, store, cursor, selection) {
  /** Requests of this page that are under way. */
  const active = signal(/** @type {string[]} */ ([]));
  /** What went wrong last; "" if nothing did. */
  const problem = signal("");
  /** @type {Map<string, AbortController>} */
  const stops = new Map();
  /** @type {Promise<string> | null} */
  let model = null;
  /** Texts of tokens, by id. @type {Map<number, string>} */
  const texts = new Map();
  /** Ids that were asked for. @type {Set<number>} */
  const asked = new Set();
  const textsVersion = signal(0);

  return {
    active,
    problem,
    /** The name by which the server's model is called. */
    model() {
      model ??= api.get("/v1/models").then((reply) => reply.data[0].id);
      model.catch(() => (model = null));
      return model;
    },
    /**
     * Starts a generation and follows it to its end; what happens is in the events.
     * @param {string} path of an OpenAI route: /v1/completions or /v1/chat/completions
     * @param {any} body without model and stream
     * @returns {Promise<string>} the engine's name of the request, when the reply has ended
     */
    async start(path, body) {
      problem.value = "";
      const stop = new AbortController();
      let req = "";
      try {
        cursor.goLive();
        await api.stream(path, { model: await this.model(), stream: true, ...body }, {
          signal: stop.signal,
          onStart(name) {
            req = name;
            stops.set(req, stop);
            active.value = [...active.value, req];
            selection.req.value = req;
            selection.pos.value = -1;
          },
        });
      } catch (error) {
        if (!stop.signal.aborted) {
          problem.value = error instanceof Error ? error.message : String(error);
          throw error;
        }
      } finally {
        stops.delete(req);
        active.value = active.value.filter((each) => each !== req);
      }
      return req;
    },
    /** @param {string} req */
    stop(req) {
      stops.get(req)?.abort();
    },
    /**
     * The text of a token; "" while the server is asked for it.
     * @param {number} id
     */
    textOf(id) {
      textsVersion.value;
      return texts.get(id) ?? store.textOf(id);
    },
    /**
     * Asks the server for the texts of tokens that nothing has shown yet.
     * @param {number[]} ids
     */
    async learnTexts(ids) {
      const unknown = [...new Set(ids)].filter((id) => !texts.has(id) && !store.textOf(id) && !asked.has(id));
      if (unknown.length === 0) return;
      for (const id of unknown) asked.add(id);
      const reply = await api.post("/detokenize", { tokens: unknown }).catch(() => null);
      if (!reply?.token_strs) return;
      unknown.forEach((id, index) => texts.set(id, reply.token_strs[index]));
      textsVersion.value += 1;
    },
  };
}
