// @ts-check
// What every component imports: `html` for markup, hooks and signals. Text in it becomes text nodes, never markup.

import htm from "htm";
import { h } from "preact";

export const html = htm.bind(h);
export { Fragment, h, render } from "preact";
export { useEffect, useId, useLayoutEffect, useMemo, useRef } from "preact/hooks";
export { batch, computed, effect, signal, untracked, useSignal } from "@preact/signals";
