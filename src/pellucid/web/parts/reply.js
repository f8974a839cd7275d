// @ts-check
// The reply of a route that a component shows: asked for once the path stands still, asked for again when an input changes.

import { useEffect, useRef, useSignal } from "../html.js";

/** @typedef {{reply: any | null, problem: string}} Shown `problem`: what the server said instead; "" if nothing */

/** @type {Shown} */
const NOTHING = { reply: null, problem: "" };

/**
 * @param {Api} api
 * @param {string} path "": nothing is wanted now
 * @param {{wait?: number, apart?: number, inputs?: any[]}} how milliseconds that the path must stand still, and between
 *   two looks; `inputs`: the path is asked for again when one of them changes, always as many
 * @returns {Shown} the latest reply for this path
 */
export function useReply(api, path, { wait = 0, apart = 0, inputs = [] } = {}) {
  const latest = useSignal({ path: "", key: "", ...NOTHING });
  const asked = useRef(-Infinity);
  const key = JSON.stringify([path, ...inputs]);
  useEffect(() => {
    if (!path || (latest.value.key === key && latest.value.reply)) return undefined;
    const stop = new AbortController();
    const timer = setTimeout(() => {
      asked.current = performance.now();
      api.get(path, stop.signal).then(
        (reply) => (latest.value = { path, key, reply, problem: "" }),
        (error) => {
          const { value: before } = latest;
          const reply = before.path === path ? before.reply : null;
          if (!stop.signal.aborted) latest.value = { path, key, reply, problem: error.message };
        },
      );
    }, Math.max(wait, asked.current + apart - performance.now()));
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [key]);
  return path && latest.value.path === path ? latest.value : NOTHING;
}
