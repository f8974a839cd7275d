// @ts-check
// The state of the page in one object, which every view is given: the address, what the reader has chosen, the time cursor, and all other state.

import { batch, computed, effect, signal } from "@preact/signals-core";
import { createApi, createRuns } from "./api.js";
import { createRecorded } from "./recorded.js";
import { createSource, PACE_MS } from "./source.js";
import { Store } from "./store.js";

/** @param {string} hash @returns {Route} */
export function parseHash(hash) {
  const [view, query] = hash.replace(/^#/, "").split("?");
  return { view: view || "generate", params: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

/** @param {Route} route */
export function formatHash({ view, params }) {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== "")).toString();
  return `#${view}${query ? `?${query}` : ""}`;
}

function createRoute() {
  const route = signal(parseHash(location.hash));
  addEventListener("hashchange", () => {
    route.value = parseHash(location.hash);
  });
  return {
    /** Read-only. */
    now: route,
    /** Shows a view. @param {string} view @param {Record<string, string>} params */
    go(view, params = {}) {
      location.hash = formatHash({ view, params });
    },
  };
}

/**
 * A signal that survives a reload.
 * @template T
 * @param {string} name
 * @param {T} initial
 * @param {Storage} storage
 */
function kept(name, initial, storage = localStorage) {
  let first = initial;
  try {
    const text = storage.getItem(`pellucid.${name}`);
    if (text !== null) first = typeof initial === "string" ? /** @type {any} */ (text) : JSON.parse(text);
  } catch {
    // unreadable: as if nothing had been kept
  }
  const made = signal(first);
  effect(() => {
    const value = made.value;
    storage.setItem(`pellucid.${name}`, typeof value === "string" ? value : JSON.stringify(value));
  });
  return made;
}

export function createSettings() {
  const settings = {
    /** "light", "dark", or "" for the machine's own. */
    theme: kept("theme", ""),
    /** Whether single letters are commands. */
    shortcuts: kept("shortcuts", true),
    /** The API key, for servers that have keys. */
    key: kept("key", "", sessionStorage),
    /** Results of lessons by step. @type {import("@preact/signals-core").Signal<Record<string, any>>} */
    lessons: kept("lesson-runs", /** @type {Record<string, any>} */ ({})),
  };
  effect(() => {
    const root = document.documentElement;
    if (settings.theme.value) root.dataset.theme = settings.theme.value;
    else delete root.dataset.theme;
  });
  return settings;
}

export function createSession() {
  const store = new Store();
  const settings = createSettings();
  const cursor = createCursor(store);
  const source = createSource(store, cursor, settings);
  /** @type {Selected} */
  const selection = { req: signal(""), pos: signal(-1), block: signal(-1) };
  const recorded = createRecorded();
  const server = createApi(settings);
  const answering = () => (source.isRecording ? recorded.api : server);
  /** @type {Api} */
  const api = {
    get: (...asked) => answering().get(...asked),
    post: (...asked) => answering().post(...asked),
    stream: (...asked) => answering().stream(...asked),
  };
  effect(() => {
    if (source.isRecording) recorded.load().catch(() => {}); // a view that needs an answer says what is missing
  });
  const rest = {
    store,
    source,
    settings,
    selection,
    api,
    recorded,
    runs: createRuns(api, store, cursor, selection),
    route: createRoute(),
    /** What views want to find again when they are shown the next time, by name. @type {Record<string, any>} */
    views: {},
  };
  const under = (/** @type {Cursor} */ cursor) => ({
    ...rest,
    cursor,
    /** The request that is looked at: the chosen one, else the newest. */
    request: computed(() => {
      const seq = cursor.seq.value;
      const chosen = store.requests.get(selection.req.value);
      if (chosen && chosen.seq <= seq) return chosen;
      return store.requestsAt(seq).at(-1) ?? null;
    }),
  });
  return {
    ...under(cursor),
    /** The same two frames later, when texts and pictures of the other panels are drawn: no frame has the time of all. */
    later: under(createFollower(store, cursor)),
  };
}

/** A cursor that is where another one was two frames ago. @param {Store} store @param {Cursor} cursor @returns {Cursor} */
function createFollower(store, cursor) {
  const seq = signal(cursor.seq.peek());
  const timeUs = signal(cursor.timeUs.peek());
  const isLive = signal(true);
  let frame = 0;
  const follow = () => {
    frame = 0;
    batch(() => {
      seq.value = cursor.seq.value;
      timeUs.value = cursor.timeUs.value;
      isLive.value = cursor.isLive.value;
    });
  };
  effect(() => {
    void [cursor.seq.value, cursor.timeUs.value, cursor.isLive.value];
    frame ||= requestAnimationFrame(() => requestAnimationFrame(follow));
  });
  return { ...cursor, seq, timeUs, isLive, stepRow: computed(() => store.rowAt(store.steps, seq.value)) };
}

export const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 4];

const WATCHED_MS = 6000; // of a recording that plays by itself, at least

/**
 * Plays a recording from its beginning once it is read: its first text, slowly enough to be followed. Not for readers who want no motion, and not
 * after somebody has moved the cursor.
 * @param {Session} session
 */
export function playWhenRead({ source, store, cursor, selection }) {
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  const stop = effect(() => {
    if (source.status.value !== "ended") return;
    queueMicrotask(() => {
      stop();
      if (!cursor.isLive.value || store.steps.length === 0) return;
      const first = store.requestsAt(store.head.seq).find(({ tokens }) => tokens.length > 0);
      if (first) selection.req.value = first.req;
      cursor.seek(first?.seq ?? store.firstSeq);
      const lasts = (store.head.t_us - cursor.timeUs.value) / 1000;
      cursor.speed.value = SPEEDS.findLast((speed) => lasts / speed >= WATCHED_MS) ?? SPEEDS[0];
      cursor.toggle();
    });
  });
}

/** @param {Store} store @returns {Cursor} */
export function createCursor(store) {
  const version = signal(0);
  /** The seq where the reader holds; null: at the newest event. @type {import("@preact/signals-core").Signal<number | null>} */
  const held = signal(null);
  const isPlaying = signal(false);
  const speed = signal(1);

  const seq = computed(() => {
    version.value;
    return held.value ?? store.head.seq;
  });

  const stepRow = computed(() => store.rowAt(store.steps, seq.value));

  const timeUs = computed(() => {
    if (held.value === null) {
      version.value;
      return store.head.t_us;
    }
    return playedUs.value ?? timeOf(seq.value);
  });
  /** Where replaying is between two events. @type {import("@preact/signals-core").Signal<number | null>} */
  const playedUs = signal(null);

  /** @param {number} at */
  function timeOf(at) {
    const row = store.rowAt(store.times, at);
    return row < 0 ? 0 : store.times.get("t_us", row);
  }

  /** The newest seq at a time. @param {number} us */
  function seqAt(us) {
    const { times } = store;
    const next = times.find("t_us", us + 1);
    return next < times.end ? times.get("seq", next) - 1 : store.head.seq;
  }

  /** @param {number | null} value */
  function hold(value) {
    playedUs.value = null;
    held.value = value === null ? null : Math.max(store.firstSeq, Math.min(value, store.head.seq));
  }

  /** Holds at the end of a step: before the first event of the next one. @param {number} row */
  function holdStep(row) {
    const { first, end } = store.steps;
    if (end === first) return;
    const target = Math.max(first, Math.min(row, end - 1));
    if (target + 1 < end) hold(store.steps.get("first_seq", target + 1) - 1);
    else hold(store.stepSeq > store.steps.get("seq", target) ? store.stepSeq - 1 : store.head.seq);
  }

  let lastFrame = 0;
  /** @param {number} now */
  function frame(now) {
    if (!isPlaying.value) return;
    if (now - lastFrame < PACE_MS) {
      requestAnimationFrame(frame);
      return;
    }
    const elapsed = (now - lastFrame) * 1000 * speed.value;
    lastFrame = now;
    const at = (playedUs.value ?? timeOf(seq.value)) + elapsed;
    const reached = seqAt(at);
    if (reached >= store.head.seq || at > store.head.t_us) {
      isPlaying.value = false;
      playedUs.value = null;
      held.value = null;
      return;
    }
    playedUs.value = at;
    held.value = Math.max(reached, held.value ?? reached);
    requestAnimationFrame(frame);
  }

  return {
    seq,
    stepRow,
    timeUs,
    version,
    isPlaying,
    speed,
    isLive: computed(() => held.value === null),
    seek(at) {
      isPlaying.value = false;
      hold(at);
    },
    seekStep(row) {
      isPlaying.value = false;
      holdStep(row);
    },
    move(by) {
      isPlaying.value = false;
      const row = stepRow.value;
      if (held.value === null && by > 0) return;
      holdStep(row + by);
    },
    goLive() {
      isPlaying.value = false;
      hold(null);
    },
    toggle() {
      if (isPlaying.value) {
        isPlaying.value = false;
      } else if (held.value === null) {
        if (store.head.seq >= 0) hold(store.head.seq);
      } else {
        isPlaying.value = true;
        lastFrame = performance.now();
        requestAnimationFrame(frame);
      }
    },
  };
}
