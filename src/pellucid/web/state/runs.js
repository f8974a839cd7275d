// @ts-check
// Generations that this page starts on the server, and the texts of tokens that it learns on the way.

import { signal } from "@preact/signals-core";

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
