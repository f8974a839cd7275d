// @ts-check
// A run as a film: it plays token by token, a counter says where it is, and a scrubber goes to any place of it.

import { html, useEffect, useRef, useSignal } from "../html.js";

const EACH_MS = 420;

/**
 * @param {object} props
 * @param {number} props.frames after the first one, which shows what was there before
 * @param {(frame: number) => string} props.says the counter
 * @param {boolean} props.plays whether it begins by itself; else it stands at its end, as for readers who want no motion
 * @param {() => void} props.onEnd its end is seen
 * @param {(frame: number) => number} [props.lasts] milliseconds of a frame
 * @param {(frame: number) => any} props.children the picture of a frame
 */
export function Film({ frames, says, plays, onEnd, lasts = () => EACH_MS, children }) {
  const isStill = !plays || matchMedia("(prefers-reduced-motion: reduce)").matches;
  const frame = useSignal(isStill ? frames : 0);
  const isPlaying = useSignal(!isStill);
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  // A run that somebody asked for must be seen, without a search for it.
  useEffect(() => {
    if (plays) box.current?.scrollIntoView({ block: "nearest", behavior: isStill ? "auto" : "smooth" });
  }, []);
  useEffect(() => {
    if (frame.value >= frames) {
      isPlaying.value = false;
      onEnd();
    }
    if (!isPlaying.value) return undefined;
    const timer = setTimeout(() => (frame.value += 1), lasts(frame.value));
    return () => clearTimeout(timer);
  }, [isPlaying.value, frame.value]);
  const play = () => {
    if (frame.value >= frames) frame.value = 0;
    isPlaying.value = !isPlaying.value;
  };
  const told = says(frame.value);
  return html`<div class="film" ref=${box}>
    <div class="film-bar">
      <button type="button" onClick=${play}>${isPlaying.value ? "Hold" : frame.value < frames ? "Play" : "Play again"}</button>
      <input
        type="range"
        aria-label="place in the run"
        aria-valuetext=${told}
        min="0"
        max=${frames}
        value=${frame.value}
        style=${{ "--at": `${(100 * frame.value) / frames}%` }}
        onInput=${(/** @type {any} */ { target }) => {
          isPlaying.value = false;
          frame.value = Number(target.value);
        }}
      />
      <output>${told}</output>
    </div>
    ${children(frame.value)}
  </div>`;
}
