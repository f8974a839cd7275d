// @ts-check
// The one time cursor that all views follow: at the newest event while live, elsewhere while held or replaying.

import { computed, signal } from "@preact/signals-core";

export const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 4];

/**
 * @param {Store} store
 */
export function createCursor(store) {
  /** Grows with each batch of events. Read it to be called again when something is new. */
  const version = signal(0);
  /** The seq where the reader holds; null: at the newest event. @type {import("@preact/signals-core").Signal<number | null>} */
  const held = signal(null);
  const isPlaying = signal(false);
  const speed = signal(1);

  /** The seq up to which everything is shown. */
  const seq = computed(() => {
    version.value;
    return held.value ?? store.head.seq;
  });

  /** The row of the table of steps; -1 before the first step. */
  const stepRow = computed(() => store.rowAt(store.steps, seq.value));

  /** Microseconds since the engine's start. */
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
    const step = store.rowAt(store.steps, at);
    const token = store.rowAt(store.tokens, at);
    const kv = store.rowAt(store.kv, at);
    return Math.max(
      step < 0 ? 0 : store.steps.get("t_us", step),
      token < 0 ? 0 : store.tokens.get("t_us", token),
      kv < 0 ? 0 : store.kv.get("t_us", kv),
    );
  }

  /**
   * The newest seq at a time.
   * @param {number} us
   */
  function seqAt(us) {
    let found = store.firstSeq;
    for (const table of [store.steps, store.tokens, store.kv]) {
      const row = table.find("t_us", us + 1) - 1;
      if (row >= table.first) found = Math.max(found, table.get("seq", row));
    }
    return found;
  }

  /** @param {number | null} value */
  function hold(value) {
    playedUs.value = null;
    held.value = value === null ? null : Math.max(store.firstSeq, Math.min(value, store.head.seq));
  }

  /**
   * Holds at the end of a step.
   * @param {number} row
   */
  function holdStep(row) {
    const { first, end } = store.steps;
    if (end === first) return;
    const target = Math.max(first, Math.min(row, end - 1));
    // Events that a step causes are booked before the next step begins: show what it led to.
    const next = target + 1 < end ? store.steps.get("seq", target + 1) : store.head.seq + 1;
    const kvRow = store.rowAt(store.kv, next - 1);
    const own = store.steps.get("seq", target);
    hold(kvRow >= 0 && store.kv.get("seq", kvRow) > own ? Math.min(store.kv.get("seq", kvRow), next - 1) : own);
  }

  let lastFrame = 0;
  /** @param {number} now */
  function frame(now) {
    if (!isPlaying.value) return;
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
    /** Whether the newest event is shown. */
    isLive: computed(() => held.value === null),
    timeOf,
    seqAt,
    /**
     * Shows the moment of an event.
     * @param {number} at its seq
     */
    seek(at) {
      isPlaying.value = false;
      hold(at);
    },
    /**
     * Shows the moment at the end of a step, by its row in the table of steps.
     * @param {number} row
     */
    seekStep(row) {
      isPlaying.value = false;
      holdStep(row);
    },
    /**
     * Some steps on or back.
     * @param {number} by
     */
    move(by) {
      isPlaying.value = false;
      const row = stepRow.value;
      if (held.value === null && by > 0) return;
      holdStep(row + by);
    },
    /** Follows the newest event. */
    goLive() {
      isPlaying.value = false;
      hold(null);
    },
    /** Holds where it is, or plays on from there as fast as it happened. */
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
    /** Plays from the beginning of what is kept. */
    replay() {
      hold(store.firstSeq);
      isPlaying.value = true;
      lastFrame = performance.now();
      requestAnimationFrame(frame);
    },
  };
}

