// @ts-check
// What every component imports: `html` for markup, hooks and signals. Text in it becomes text nodes, never markup.

import htm from "htm";
import { h } from "preact";

export const html = htm.bind(h);
export { Fragment, render } from "preact";
export { useCallback, useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
export { batch, computed, effect, signal, untracked, useComputed, useSignal, useSignalEffect } from "@preact/signals";
