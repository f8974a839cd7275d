// @ts-check
// Something that a view runs on the server and whose reply is a stream of events: one at a time, drawn once a frame, until it ends or is stopped.

import { signal } from "@preact/signals-core";

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
