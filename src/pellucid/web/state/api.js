// @ts-check
// Calls to the server. Each raises ServerError with the server's own words.

import { FrameReader, textReader } from "./sse.js";

export class ServerError extends Error {
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

