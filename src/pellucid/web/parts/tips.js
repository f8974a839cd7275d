// @ts-check
// What the thing under the pointer, or under the keyboard's focus, is: one small sheet for all views. Elements say it by `data-tip`, pictures for their cells.

import { html, signal, useLayoutEffect, useRef } from "../html.js";

const GAP = 8; // pixels between a thing and what is said of it

/** @type {{value: Tip | null}} */
const shown = signal(/** @type {Tip | null} */ (null));
/** Where the element of the shown one stood. */
let place = { left: 0, top: 0 };

/**
 * Says what a thing is, until the next call.
 * @param {Tip | null} tip null: nothing is looked at
 */
export function say(tip) {
  const { value } = shown;
  if (tip?.text !== value?.text || tip?.x !== value?.x || tip?.top !== value?.top) shown.value = tip;
  if (tip) place = tip.of.getBoundingClientRect();
}

/** Hides what is said of a thing that a scroll has moved. The event may come late. */
function onScroll() {
  const now = shown.value?.of.getBoundingClientRect();
  if (now && (now.left !== place.left || now.top !== place.top)) say(null);
}

/** @param {EventTarget | null} target @returns {HTMLElement | null} the element that says what it is */
const speaker = (target) => (target instanceof Element ? target.closest("[data-tip]") : null);

/** @param {HTMLElement} element @param {number} [x] of the pointer */
function sayOf(element, x) {
  const { left, width, top, bottom } = element.getClientRects()[0] ?? element.getBoundingClientRect();
  say({ of: element, text: element.dataset.tip ?? "", x: x === undefined || width < 200 ? left + width / 2 : x, top, bottom });
}

/**
 * The element that the keyboard is at: that of a list may be one of its options.
 * @param {EventTarget | null} target
 */
function focused(target) {
  if (!(target instanceof Element) || !target.matches(":focus-visible")) return null;
  const active = target.getAttribute("aria-activedescendant");
  return speaker((active && document.getElementById(active)) || target);
}

/** Follows pointer and focus over the whole page. @returns {() => void} ends it */
function follow() {
  const stop = new AbortController();
  const { signal: ended } = stop;
  const fromFocus = () => {
    const element = focused(document.activeElement);
    if (element) sayOf(element);
    return element !== null;
  };
  document.addEventListener("pointerover", (event) => {
    const element = event.pointerType === "touch" ? null : speaker(event.target);
    if (element) sayOf(element, event.clientX);
    else if (!(event.target instanceof HTMLCanvasElement)) say(null); // a picture says it for its cells
  }, { signal: ended });
  document.addEventListener("focusin", () => fromFocus() || say(null), { signal: ended });
  document.addEventListener("focusout", () => say(null), { signal: ended });
  document.addEventListener("scroll", onScroll, { signal: ended, capture: true, passive: true });
  for (const name of ["pointerdown", "wheel"]) document.addEventListener(name, () => say(null), { signal: ended, capture: true, passive: true });
  document.addEventListener("keydown", ({ key }) => key === "Escape" && say(null), { signal: ended, capture: true });
  addEventListener("hashchange", () => say(null), { signal: ended });
  // An arrow key moves the active option after its own handlers have run.
  document.addEventListener("keyup", ({ key }) => key !== "Escape" && fromFocus(), { signal: ended });
  return () => stop.abort();
}

/** The sheet; once in a page. It is for the eye: what it says is the accessible name of the thing, or spoken by its picture. */
export function Tips() {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const tip = shown.value;
  useLayoutEffect(follow, []);
  useLayoutEffect(() => {
    if (!box.current || !tip) return;
    const { width, height } = box.current.getBoundingClientRect();
    const isAbove = tip.top - GAP - height >= 0;
    const left = Math.max(GAP, Math.min(innerWidth - GAP - width, tip.x - width / 2));
    box.current.style.left = `${left}px`;
    box.current.style.top = `${isAbove ? tip.top - GAP - height : tip.bottom + GAP}px`;
  }, [tip]);
  return tip && html`<p class="tip" ref=${box} aria-hidden="true">${tip.text}</p>`;
}
