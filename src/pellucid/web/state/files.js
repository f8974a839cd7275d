// @ts-check
// Where the page's own files are: beside its modules or, in a page that is one file, in it.

/** @param {string} path below the page's folder @returns {string} an address */
export const fileUrl = (path) => /** @type {any} */ (globalThis).pellucidFiles?.[path] ?? new URL(`../${path}`, import.meta.url).href;
