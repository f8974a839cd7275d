// @ts-check
// Wheel and drag on pictures whose horizontal axis is time.

import { html, signal, useEffect, useRef, useSignal } from "../html.js";
import { scaleOf, timeAt } from "./span.js";

const CLICK = 4; // pixels: a shorter drag is a click
const PER_NOTCH = 0.002; // of a wheel's pixels: how much closer, as a logarithm

/** The time under the pointer: pictures on one axis show it together. @type {{value: number | null}} */
const pointedUs = signal(/** @type {number | null} */ (null));

/** @param {{span: Span, widthOf: () => number}} props */
function Crosshair({ span, widthOf }) {
  const at = pointedUs.value;
  return at !== null && at >= span.from && at <= span.to && html`<i class="crosshair" style=${{ left: `${scaleOf(span, widthOf())(at)}px` }}></i>`;
}

/**
 * Ctrl with the wheel, or a pinch of a touchpad, zooms around the pointer; the wheel with Shift, or sideways, pans, as a drag does. A drag with Shift zooms to the time that it passes.
 * @param {{span: Span, changes: TimeChanges, children: any}} props the pictures fill the box of `children`
 */
export function TimeGestures({ span, changes: { zoom, pan, choose }, children }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const drag = useRef(/** @type {{x: number, span: Span, isLong: boolean, marks: boolean} | null} */ (null));
  const marked = useSignal(/** @type {{left: number, right: number} | null} */ (null));
  const xOf = (/** @type {MouseEvent} */ event) => event.clientX - /** @type {HTMLDivElement} */ (box.current).getBoundingClientRect().left;
  const widthOf = () => /** @type {HTMLDivElement} */ (box.current).clientWidth;

  /** @param {WheelEvent} event */
  const onWheel = (event) => {
    const sideways = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(event.deltaY * PER_NOTCH), timeAt(span, widthOf(), xOf(event)));
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(sideways / widthOf());
    else return; // lanes scroll
    event.preventDefault();
  };
  const latest = useRef(onWheel);
  latest.current = onWheel;
  useEffect(() => {
    const listener = (/** @type {WheelEvent} */ event) => latest.current(event);
    box.current?.addEventListener("wheel", listener, { passive: false }); // a passive one could not keep the browser from zooming
    return () => box.current?.removeEventListener("wheel", listener);
  }, []);

  const onPointerMove = (/** @type {PointerEvent} */ event) => {
    if (event.buttons === 0) drag.current = null; // let go outside of the window
    const from = drag.current;
    pointedUs.value = event.pointerType === "touch" ? null : timeAt(span, widthOf(), xOf(event));
    if (!from) return;
    const x = xOf(event);
    if (!from.isLong && Math.abs(x - from.x) < CLICK) return;
    if (!from.isLong) box.current?.setPointerCapture(event.pointerId);
    from.isLong = true;
    if (from.marks) marked.value = { left: Math.min(x, from.x), right: Math.max(x, from.x) };
    else {
      const by = timeAt(from.span, widthOf(), from.x) - timeAt(from.span, widthOf(), x);
      choose({ from: from.span.from + by, to: from.span.to + by });
    }
  };
  const onPointerUp = () => {
    const passed = marked.value;
    if (passed) choose({ from: timeAt(span, widthOf(), passed.left), to: timeAt(span, widthOf(), passed.right) });
    marked.value = null;
    if (!drag.current?.isLong) drag.current = null; // a long drag's click comes after this, and ends it
  };
  return html`<div
    class="time-gestures"
    ref=${box}
    onPointerDown=${(/** @type {PointerEvent} */ event) => {
      if (event.button === 0) drag.current = { x: xOf(event), span, isLong: false, marks: event.shiftKey };
    }}
    onPointerMove=${onPointerMove}
    onPointerLeave=${() => (pointedUs.value = null)}
    onPointerUp=${onPointerUp}
    onPointerCancel=${onPointerUp}
    onClickCapture=${(/** @type {MouseEvent} */ event) => {
      if (drag.current?.isLong) event.stopPropagation();
      drag.current = null;
    }}
  >
    ${children}
    <${Crosshair} span=${span} widthOf=${widthOf} />
    ${marked.value && html`<i class="marked" style=${{ left: `${marked.value.left}px`, width: `${marked.value.right - marked.value.left}px` }}></i>`}
  </div>`;
}
