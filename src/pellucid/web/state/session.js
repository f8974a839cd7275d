// @ts-check
// The state of the page in one object, which every view is given. Nothing else holds state that views share.

import { computed, signal } from "@preact/signals-core";
import { createApi } from "./api.js";
import { createCursor } from "./cursor.js";
import { createRoute } from "./route.js";
import { createSettings } from "./settings.js";
import { createRuns } from "./runs.js";
import { createSource } from "./source.js";
import { Store } from "./store.js";

export function createSession() {
  const store = new Store();
  const settings = createSettings();
  const cursor = createCursor(store);
  const source = createSource(store, cursor, settings);
  /** What is looked at, the same in every view. */
  const selection = {
    /** The engine's name of a request; "": none was chosen. */
    req: signal(""),
    /** The position of a token of it; -1: none. */
    pos: signal(-1),
    /** A block of the pool; -1: none. */
    block: signal(-1),
  };
  const api = createApi(settings);
  return {
    store,
    cursor,
    source,
    settings,
    selection,
    api,
    runs: createRuns(api, store, cursor, selection),
    route: createRoute(),
    /** The request that is looked at: the chosen one, else the newest. */
    request: computed(() => {
      const seq = cursor.seq.value;
      const chosen = store.requests.get(selection.req.value);
      if (chosen && chosen.seq <= seq) return chosen;
      return store.requestsAt(seq).at(-1) ?? null;
    }),
    /** A sentence for people who do not see the screen; set it at most every two seconds. */
    spoken: signal(""),
    /** What a view wants to find again when it is shown the next time, by the view's name. @type {Record<string, any>} */
    views: {},
  };
}

