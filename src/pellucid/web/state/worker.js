// @ts-check
// The worker that reads events, from the server's stream or from a recorded trace, and posts them in batches.

import { FrameReader, textReader } from "./sse.js";

const POST_MS = 33; // the page draws 60 times a second at best
const MAX_BATCH = 5000; // events posted at once: the page stays responsive while a long trace loads
const RETRY_MS = [300, 1000, 2000, 5000];

/** @type {AbortController | null} */
let current = null;

self.onmessage = (message) => {
  current?.abort();
  current = new AbortController();
  /** @type {WorkerOrder} */
  const order = message.data;
  const work = order.kind === "live" ? follow(order, current.signal) : readTrace(order, current.signal);
  work.catch((error) => {
    if (!(error instanceof DOMException && error.name === "AbortError")) {
      tell(order, "lost", String(error.message ?? error));
    }
  });
};

/**
 * @param {WorkerOrder} order
 * @param {"connecting" | "open" | "ended" | "lost" | "refused"} status
 * @param {string} message
 */
function tell({ reading }, status, message = "") {
  postMessage({ kind: "status", reading, status, message });
}

/**
 * Reads the stream until it is told otherwise; goes on from the last event after each loss.
 * @param {Extract<WorkerOrder, {kind: "live"}>} order
 * @param {AbortSignal} signal
 */
async function follow(order, signal) {
  let lastId = "";
  let bootId = "";
  for (let attempt = 0; !signal.aborted; attempt++) {
    tell(order, "connecting");
    try {
      /** @type {Record<string, string>} */
      const headers = {};
      if (order.key) headers.authorization = `Bearer ${order.key}`;
      if (lastId) headers["last-event-id"] = lastId;
      const query = lastId ? "" : "&history=true";
      const reply = await fetch(`${order.url}?level=text&batch=true${query}`, { headers, signal, cache: "no-store" });
      if (reply.status >= 400 && reply.status < 500) {
        const body = await reply.json().catch(() => null);
        tell(order, "refused", body?.error?.message ?? `status ${reply.status}`);
        return;
      }
      if (!reply.ok || !reply.body) throw new Error(`status ${reply.status}`);
      tell(order, "open");
      attempt = 0;
      const frames = new FrameReader();
      const poster = new Poster(order);
      const reader = textReader(reply.body);
      let isOther = false; // another engine, whose numbers begin anew
      while (!isOther) {
        const { done, value } = await reader.read();
        if (done) break;
        for (const { id, data } of frames.push(value)) {
          const told = JSON.parse(data); // one, or a batch
          for (const { event = told, ...at } of [told].flat()) {
            if (event.ev === "hello") {
              isOther ||= event.boot_id !== (bootId || event.boot_id);
              bootId = event.boot_id;
            }
            if (!isOther) poster.add({ ...event, ...at });
          }
          if (id && !isOther) lastId = id;
        }
      }
      poster.flush();
      if (isOther) {
        await reader.cancel();
        lastId = "";
        continue;
      }
    } catch (error) {
      if (signal.aborted) return;
    }
    tell(order, "lost", "the connection to the server is lost");
    await new Promise((done) => setTimeout(done, RETRY_MS[Math.min(attempt, RETRY_MS.length - 1)]));
  }
}

/**
 * Reads a recording: an event a line, gzipped if it begins as gzip does.
 * @param {Extract<WorkerOrder, {kind: "trace"}>} order
 * @param {AbortSignal} signal
 */
async function readTrace(order, signal) {
  tell(order, "connecting");
  const reply = await fetch(order.url, { signal });
  if (!reply.ok || !reply.body) {
    tell(order, "refused", `${order.name}: status ${reply.status}`);
    return;
  }
  const reader = reply.body.getReader();
  const first = await reader.read();
  const whole = new ReadableStream({
    start: (controller) => (first.value ? controller.enqueue(first.value) : undefined),
    async pull(controller) {
      const { done, value } = await reader.read();
      if (done) controller.close();
      else controller.enqueue(value);
    },
  });
  const isGzip = first.value?.[0] === 0x1f && first.value?.[1] === 0x8b;
  const plain = isGzip ? whole.pipeThrough(/** @type {any} */ (new DecompressionStream("gzip"))) : whole;
  const lines = textReader(plain);
  const poster = new Poster(order);
  let rest = "";
  let number = 0;
  let isCut = false; // as by a kill: what is whole is shown
  for (;;) {
    const { done, value } = await lines.read().catch((/** @type {unknown} */ error) => {
      isCut = number > 0;
      if (isCut) return { done: true, value: "" };
      throw error;
    });
    if (signal.aborted) return;
    const parts = (rest + (value ?? "")).split("\n");
    rest = done ? "" : (parts.pop() ?? "");
    for (const line of parts) {
      number += 1;
      if (!line) continue;
      let event;
      try {
        event = JSON.parse(line);
      } catch {
        event = null;
      }
      isCut ||= event === null && done && line === parts.at(-1) && number > 1;
      if (isCut) break;
      if (typeof event?.ev !== "string") throw new Error(`${order.name}: line ${number} is no event`);
      poster.add(event);
    }
    if (done) break;
  }
  poster.flush();
  tell(order, "ended", isCut ? `It was cut, as by a kill, and has ${number - 1} whole events.` : "");
}

/** Posts events in batches. */
class Poster {
  /** @param {WorkerOrder} order */
  constructor({ reading }) {
    this.reading = reading;
    /** @type {any[]} */
    this.events = [];
    /** @type {any} */
    this.timer = 0;
  }

  /** @param {any} event */
  add(event) {
    this.events.push(event);
    if (this.events.length >= MAX_BATCH) this.flush();
    else if (!this.timer) this.timer = setTimeout(() => this.flush(), POST_MS);
  }

  flush() {
    clearTimeout(this.timer);
    this.timer = 0;
    if (this.events.length) postMessage({ kind: "events", reading: this.reading, events: this.events });
    this.events = [];
  }
}
