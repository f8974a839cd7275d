// @ts-check
// Curves over a common axis, on scales from values to pixels.

import { html, useSignal } from "../html.js";
import { hue } from "./hues.js";
import { Picture } from "./picture.js";

/**
 * A few round values from 0 to at least `most`.
 * @param {number} most
 * @param {number} base 10; 1024 for bytes, whose units are powers of it
 * @param {number} wanted how many lines, about
 */
export function roundTicks(most, base = 10, wanted = 3) {
  if (!(most > 0)) return [0, 1];
  const unit = base === 10 ? 1 : base ** Math.floor(Math.log(most) / Math.log(base));
  const raw = most / unit / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = (/** @type {number} */ ([1, 2, 2.5, 5, 10].find((each) => each * power >= raw * 0.999))) * power * unit;
  const ticks = [];
  for (let i = 0; ; i++) {
    ticks.push(i * step);
    if (i * step >= most * 0.999) return ticks;
  }
}

/**
 * The powers of ten between two values.
 * @param {number} low
 * @param {number} high
 */
export function powerTicks(low, high) {
  const ticks = [];
  for (let power = Math.ceil(Math.log10(low)); power <= Math.log10(high) + 1e-9; power++) ticks.push(10 ** power);
  return ticks;
}

/**
 * @param {number} low
 * @param {number} high
 * @param {number} from pixel of `low`
 * @param {number} to pixel of `high`
 * @returns {(value: number) => number}
 */
export const linear = (low, high, from, to) => (value) => from + ((value - low) / (high - low || 1)) * (to - from);

/**
 * @param {number} low
 * @param {number} high
 * @param {number} from
 * @param {number} to
 * @returns {(value: number) => number}
 */
export const logarithmic = (low, high, from, to) => {
  const scale = linear(Math.log(low), Math.log(high), from, to);
  return (value) => scale(Math.log(value));
};

/**
 * The index of the last value that is at most `value`, in values that never fall; -1 if there is none.
 * @param {number[]} values
 * @param {number} value
 */
export function lastAtMost(values, value) {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

const GUTTER = 78; // labels of the vertical axis: up to 1,000 KiB
const ABOVE = 10;
const BELOW = 28;

/**
 * @param {object} props
 * @param {string} props.label a sentence with the numbers in it
 * @param {string} props.across what the horizontal axis counts
 * @param {Line[]} props.lines
 * @param {(value: number) => string} props.format of a value
 * @param {10 | 1024} [props.base] 1024 for bytes
 * @param {number} [props.at] the point of the axis that is looked at; -1: the end
 * @param {(x: number) => void} [props.onChoose]
 * @param {number} [props.height]
 * @param {{value: boolean}} props.asTable
 */
export function Lines({ label, across, lines, format, base = 10, at = -1, onChoose, height = 180, asTable }) {
  const pointed = useSignal(-1);
  const xs = [...new Set(lines.flatMap((line) => line.xs))].sort((a, b) => a - b);
  const last = xs.at(-1) ?? 1;
  const ticks = roundTicks(Math.max(0, ...lines.map((line) => line.ys.reduce((most, y) => Math.max(most, y), 0))), base);
  const width = useSignal(300);
  const right = () => Math.max(GUTTER + 20, width.value - 12);
  const x = () => linear(Math.min(xs[0] ?? 0, last), last, GUTTER, right());
  /** @param {Line} line @param {number} value */
  const valueAt = (line, value) => {
    const index = lastAtMost(line.xs, value);
    return index < 0 || value > (line.xs.at(-1) ?? 0) ? null : line.ys[index];
  };
  /** @param {number} value */
  const describe = (value) =>
    `${across} ${value}: ${lines.map((line) => `${line.name} ${(valueAt(line, value) ?? null) === null ? "–" : format(/** @type {number} */ (valueAt(line, value)))}`).join(", ")}`;
  const looked = pointed.value >= 0 ? xs[pointed.value] : at >= 0 ? at : -1;

  /** @param {Surface} surface */
  const draw = ({ ctx, width: wide, palette }) => {
    width.value = wide;
    const y = linear(0, /** @type {number} */ (ticks.at(-1)), height - BELOW, ABOVE);
    const toX = x();
    ctx.font = `14px ${palette.ui}`;
    ctx.lineWidth = 1;
    ctx.textBaseline = "middle";
    for (const tick of ticks) {
      ctx.strokeStyle = tick === 0 ? palette.line2 : palette.line;
      ctx.beginPath();
      ctx.moveTo(GUTTER, Math.round(y(tick)) + 0.5);
      ctx.lineTo(right(), Math.round(y(tick)) + 0.5);
      ctx.stroke();
      ctx.fillStyle = palette.ink3;
      ctx.textAlign = "right";
      ctx.fillText(tick === 0 ? "0" : format(tick), GUTTER - 8, y(tick));
    }
    ctx.textBaseline = "alphabetic";
    ctx.fillStyle = palette.ink3;
    ctx.textAlign = "left";
    if (xs.length > 0) ctx.fillText(String(xs[0]), GUTTER, height - 6);
    ctx.textAlign = "right";
    ctx.fillText(`${last} ${across}`, right(), height - 6);
    for (const line of lines) {
      ctx.strokeStyle = hue(palette, line.hue);
      ctx.lineWidth = 2;
      ctx.lineJoin = "round";
      ctx.setLineDash(line.dashed ? [3, 4] : []);
      ctx.beginPath();
      line.xs.forEach((value, index) => ctx.lineTo(toX(value), y(line.ys[index])));
      ctx.stroke();
      ctx.setLineDash([]);
      if (line.xs.length === 1) {
        ctx.fillStyle = hue(palette, line.hue);
        ctx.fillRect(toX(line.xs[0]) - 2, y(line.ys[0]) - 2, 4, 4);
      }
    }
    if (looked >= 0) {
      ctx.strokeStyle = palette.ink3;
      ctx.lineWidth = 1;
      const cx = Math.round(toX(looked)) + 0.5;
      ctx.beginPath();
      ctx.moveTo(cx, ABOVE);
      ctx.lineTo(cx, height - BELOW);
      ctx.stroke();
      for (const line of lines) {
        const value = valueAt(line, looked);
        if (value === null) continue;
        ctx.fillStyle = hue(palette, line.hue);
        ctx.strokeStyle = palette.panel;
        ctx.lineWidth = 2;
        ctx.beginPath();
        ctx.arc(toX(looked), y(value), 4.5, 0, 7);
        ctx.fill();
        ctx.stroke();
      }
    }
  };
  const shown = looked >= 0 ? looked : last;
  return html`<figure class="lines">
    <${Picture}
      label=${label}
      draw=${draw}
      inputs=${[lines, looked, last, height, format]}
      height=${height}
      asTable=${asTable}
      onHover=${(/** @type {number} */ index) => (pointed.value = index)}
      cells=${/** @type {Cells} */ ({
        count: xs.length,
        columns: 10,
        describe: (index) => describe(xs[index]),
        rect: (index) => ({ x: x()(xs[index]) - 3, y: ABOVE, width: 6, height: height - ABOVE - BELOW }),
        hit: (px) => {
          if (xs.length === 0) return -1;
          const toX = x();
          let best = 0;
          for (let i = 1; i < xs.length; i++) if (Math.abs(toX(xs[i]) - px) < Math.abs(toX(xs[best]) - px)) best = i;
          return best;
        },
        choose: onChoose ? (index) => onChoose(xs[index]) : undefined,
      })}
      twin=${{
        columns: [across, ...lines.map((line) => line.name)],
        rows: () => xs.map((value) => [value, ...lines.map((line) => (valueAt(line, value) === null ? "" : format(/** @type {number} */ (valueAt(line, value)))))]),
      }}
    />
    <figcaption>
      ${lines.map((line) => {
        const value = valueAt(line, Math.min(shown, line.xs.at(-1) ?? shown));
        return html`<span><i class=${line.dashed ? "dashed" : ""} style=${{ "--c": `var(--o${(line.hue % 6) + 1})` }}></i>${line.name} <b>${value === null ? "–" : format(value)}</b></span>`;
      })}
    </figcaption>
  </figure>`;
}
