// @ts-check
// Which view is shown, from the address: #generate?req=...&pos=...

import { signal } from "@preact/signals-core";

/**
 * @typedef {{view: string, params: Record<string, string>}} Route
 */

/**
 * @param {string} hash
 * @returns {Route}
 */
export function parseHash(hash) {
  const [view, query] = hash.replace(/^#/, "").split("?");
  return { view: view || "generate", params: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

/** @param {Route} route */
export function formatHash({ view, params }) {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== "")).toString();
  return `#${view}${query ? `?${query}` : ""}`;
}

export function createRoute() {
  const route = signal(parseHash(location.hash));
  addEventListener("hashchange", () => {
    route.value = parseHash(location.hash);
  });
  return {
    /** The route now; read-only. */
    now: route,
    /**
     * Shows a view.
     * @param {string} view
     * @param {Record<string, string>} params
     */
    go(view, params = {}) {
      location.hash = formatHash({ view, params });
    },
  };
}
