// @ts-check
// Where the events come from: a server's stream or a recorded trace. Fills the store, ten times a second at most.

import { signal } from "@preact/signals-core";
import { fileUrl } from "./files.js";
import { Store } from "./store.js";

/** Between two moments that the page shows: texts and pictures change together, and a frame has time for all of them. */
export const PACE_MS = 100;

/**
 * @param {Store} store
 * @param {Cursor} cursor
 * @param {Settings} settings
 */
export function createSource(store, cursor, settings) {
  const url = fileUrl("state/worker.js");
  const worker = new Worker(/** @type {any} */ (trusted(url)), { type: "module" });
  const status = signal(/** @type {StreamStatus} */ ("connecting"));
  const message = signal("");
  /** "live", or the name of the trace. */
  const name = signal("live");
  /** The server's run before it was restarted: whether there is one, and whether it is shown, as a recording. */
  const before = signal(/** @type {"none" | "kept" | "shown"} */ ("none"));
  const hidden = new Store(); // that run or, while it is shown, the server's own now

  /** @type {any[]} */
  let waiting = [];
  let timer = /** @type {any} */ (0);
  let frame = 0;
  let last = -PACE_MS;
  let reading = 0; // of events: what still comes of an earlier one is not shown

  /** Takes in what has come; all that is shown moves on to the newest event. */
  function drain() {
    clearTimeout(timer);
    cancelAnimationFrame(frame);
    timer = frame = 0;
    last = performance.now();
    const events = waiting;
    waiting = [];
    if (before.value === "shown") {
      hidden.ingest(events);
      return;
    }
    const boot = store.hello?.boot_id;
    const restart = boot === undefined ? -1 : events.findIndex(({ ev, boot_id }) => ev === "hello" && boot_id !== boot);
    if (restart >= 0) {
      store.ingest(events.splice(0, restart));
      hidden.clear();
      store.exchange(hidden);
      before.value = "kept";
    }
    store.ingest(events);
    cursor.version.value += 1;
  }

  worker.onmessage = ({ data }) => {
    if (data.reading !== reading) return;
    if (data.kind === "events") {
      waiting = waiting.length ? waiting.concat(data.events) : data.events;
      if (document.hidden) drain();
      else if (!timer && !frame) timer = setTimeout(() => (frame = requestAnimationFrame(drain)), Math.max(0, last + PACE_MS - performance.now()));
    } else {
      status.value = data.status;
      message.value = data.message;
      if (data.status === "ended" && waiting.length) drain();
    }
  };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden && waiting.length) drain();
  });

  /** @param {any} from what is read from now on */
  function read(from) {
    reading += 1;
    status.value = "connecting";
    waiting = [];
    store.clear();
    hidden.clear();
    before.value = "none";
    cursor.goLive();
    cursor.version.value += 1;
    worker.postMessage({ ...from, reading });
  }

  const isLive = () => name.value === "live" && before.value !== "shown";

  return {
    status,
    message,
    /** Of what is shown. */
    get name() {
      return before.value === "shown" ? "the run before the restart" : name.value;
    },
    before,
    /** Whether the events shown come from a server, so that it can be asked to run something. */
    get isLive() {
      return isLive();
    },
    /** Whether the page shows a recorded trace: there is no server, or none is asked. */
    get isRecording() {
      return name.value !== "live";
    },
    /** Whether a server can be asked now. */
    get canRun() {
      return isLive() && status.value === "open";
    },
    /** Shows the run before the restart, or again what the server does now. */
    turn() {
      if (before.value === "none") return;
      drain(); // what has come belongs to the server's run
      store.exchange(hidden);
      before.value = before.value === "kept" ? "shown" : "kept";
      cursor.goLive();
      cursor.version.value += 1;
    },
    /** Follows the server that the page came from, from the first event that it still has. */
    follow() {
      name.value = "live";
      read({ kind: "live", url: new URL("/v1/events", location.href).href, key: settings.key.value });
    },
    /**
     * Reads a recorded trace.
     * @param {string} path relative to the page's files
     */
    open(path) {
      name.value = path.split("/").at(-1) ?? path;
      read({ kind: "trace", url: fileUrl(path), name: name.value });
    },
  };
}

/**
 * The address of a worker, as Trusted Types want it.
 * @param {string} url
 */
function trusted(url) {
  const types = /** @type {any} */ (globalThis).trustedTypes;
  if (!types) return url;
  const policy = types.createPolicy("pellucid", {
    createScriptURL: (/** @type {string} */ given) => {
      if (given !== url) throw new TypeError(`${given}: not the worker of this page`);
      return given;
    },
  });
  return policy.createScriptURL(url);
}
