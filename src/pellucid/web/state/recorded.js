// @ts-check
// What an engine answered once, in place of a server that answers: a page that shows a recording replays comparisons and loads, and has attention and estimates.

import { signal } from "@preact/signals-core";
import { fileUrl } from "./files.js";

const FILE = "traces/answers.json.gz";
const LONGEST_MS = 6000; // of a replay; a longer run plays faster

/** @returns {RecordedAnswers} */
export function createRecorded() {
  /** @type {import("@preact/signals-core").Signal<Answers | null>} */
  const answers = signal(null);
  /** @type {Promise<Answers> | null} */
  let loading = null;

  const load = () => {
    loading ??= read().then((found) => (answers.value = found));
    loading.catch(() => (loading = null)); // who asks next tries again
    return loading;
  };

  /** @type {Api} */
  const api = {
    async get(path) {
      const { plan, looks } = await load();
      const { pathname, searchParams } = new URL(path, "http://recorded");
      if (pathname === "/v1/estimate") return (await import("../plan/planner.js")).estimateOf(plan, searchParams);
      if (pathname.startsWith("/v1/attn/")) return lookAt(looks, decodeURI(pathname.slice("/v1/attn/".length)), searchParams);
      throw new Error(`A recording has no answer to ${pathname}.`);
    },
    async post(path, body) {
      const { texts } = await load();
      if (path === "/detokenize") return { token_strs: body.tokens.map((/** @type {number} */ id) => texts[id] ?? "") };
      throw new Error(`A recording has no answer to ${path}.`);
    },
    async stream(path, body, { onData, signal: stop }) {
      const { runs } = await load();
      const run = closest(runs.filter((each) => each.path === path), body);
      if (!run) throw new Error(`A recording has no answer to ${path}.`);
      const whole = run.events.at(-1)?.[0] ?? 0;
      const speed = matchMedia("(prefers-reduced-motion: reduce)").matches ? Infinity : Math.max(1, whole / LONGEST_MS);
      const begun = performance.now();
      for (const [at, event] of run.events) {
        const wait = begun + at / speed - performance.now();
        if (wait > 4) await new Promise((done) => setTimeout(done, wait));
        stop?.throwIfAborted();
        onData?.(event);
      }
    },
  };
  return {
    answers,
    load,
    api,
    runs: (path, isWanted = () => true) => answers.value?.runs.filter((run) => run.path === path && isWanted(run.body)) ?? [],
  };
}

/** @returns {Promise<Answers>} */
async function read() {
  const reply = await fetch(fileUrl(FILE));
  if (!reply.ok || !reply.body) throw new Error(`${FILE}: status ${reply.status}`);
  return new Response(reply.body.pipeThrough(new DecompressionStream("gzip"))).json();
}

/**
 * The run that was asked for with most of the same words, of those that did the same.
 * @param {RecordedRun[]} runs
 * @param {any} body
 */
function closest(runs, body) {
  const same = (/** @type {RecordedRun} */ run) => Object.keys(run.body).filter((name) => run.body[name] === body[name]).length;
  const alike = runs.filter((run) => run.body.kind === body.kind && run.body.discipline === body.discipline);
  return alike.sort((a, b) => same(b) - same(a))[0];
}

/**
 * What /v1/attn would reply.
 * @param {Record<string, RecordedLooks>} looks
 * @param {string} place request and position
 * @param {URLSearchParams} query
 */
function lookAt(looks, place, query) {
  const slash = place.lastIndexOf("/");
  const [req, from] = [place.slice(0, slash), Number(place.slice(slash + 1))];
  const of = looks[req];
  if (!of) throw new Error("This recording has no attention: it is computed again when somebody looks, by an engine.");
  const found = of.views[String(query)]?.[from - of.first];
  if (!found && query.size > 1) throw new Error("This recording has the mean of each layer and of each head: choose the mean of one of both.");
  if (!found) throw new Error("This recording has what new tokens read. This token is the prompt's.");
  const [sink, ...pairs] = found;
  const top = Array.from({ length: pairs.length / 2 }, (_, index) => [pairs[2 * index], -1, of.texts[pairs[2 * index]], pairs[2 * index + 1] / 1000]);
  return {
    n_layers: of.layers, n_heads: of.heads, text: of.texts[from], sink: sink / 1000, top, output_error_frac: of.error, recomputed: { dur_us: of.us },
  };
}
