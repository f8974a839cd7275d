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

/** What an error says. @param {any} error */
export const messageOf = (error) => error?.message ?? String(error);

/** @param {Settings} settings @returns {Api} */
export function createApi(settings) {
  /** @param {string} path @param {RequestInit} options */
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

  /** @param {string} path @param {any} body @param {AbortSignal} [signal] */
  const send = (path, body, signal) =>
    call(path, { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" }, signal });

  return {
    get: async (path, signal) => (await call(path, { signal })).json(),
    post: async (path, body, signal) => (await send(path, body, signal)).json(),
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

/** @param {Session} session @returns {Streamed} */
export function createStreamed(session) {
  const problem = signal("");
  const stop = signal(/** @type {AbortController | null} */ (null));
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
        if (!own.signal.aborted) problem.value = messageOf(error);
      } finally {
        stop.value = null;
        version.value += 1;
      }
    },
  };
}

/** @param {Api} api @param {Store} store @param {Cursor} cursor @param {Selected} selection @returns {Runs} */
export function createRuns(api, store, cursor, selection) {
  const active = signal(/** @type {string[]} */ ([]));
  const problem = signal("");
  /** @type {Map<string, AbortController>} */
  const stops = new Map();
  /** @type {Promise<string> | null} */
  let model = null;
  /** By token id. @type {Map<number, string>} */
  const texts = new Map();
  /** Questions under way, by the ids of tokens that they ask for. @type {Map<number, Promise<void>>} */
  const asked = new Map();
  const textsVersion = signal(0);
  let boot = "";

  /** Another run of an engine may have another model. */
  function renew() {
    const now = store.hello?.boot_id ?? "";
    if (now === boot) return;
    boot = now;
    model = null;
    texts.clear();
    asked.clear();
  }

  /** @param {number[]} ids of tokens */
  async function learn(ids) {
    const own = boot;
    try {
      const { token_strs } = await api.post("/detokenize", { tokens: ids });
      if (own !== boot) return;
      ids.forEach((id, index) => texts.set(id, token_strs[index]));
      textsVersion.value += 1;
    } catch {
      // who asks next tries again
    } finally {
      if (own === boot) for (const id of ids) asked.delete(id);
    }
  }

  return {
    active,
    problem,
    model() {
      renew();
      model ??= api.get("/v1/models").then((reply) => reply.data[0].id);
      model.catch(() => (model = null));
      return model;
    },
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
          problem.value = messageOf(error);
          throw error;
        }
      } finally {
        stops.delete(req);
        active.value = active.value.filter((each) => each !== req);
      }
      return req;
    },
    stop: (req) => stops.get(req)?.abort(),
    textOf(id) {
      textsVersion.value;
      renew();
      return texts.get(id) ?? store.textOf(id);
    },
    async learnTexts(ids) {
      renew();
      const unknown = [...new Set(ids)].filter((id) => !texts.has(id) && !store.textOf(id));
      const fresh = unknown.filter((id) => !asked.has(id));
      if (fresh.length) {
        const question = learn(fresh);
        for (const id of fresh) asked.set(id, question);
      }
      await Promise.all(unknown.map((id) => asked.get(id)));
    },
  };
}
