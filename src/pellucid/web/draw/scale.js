// @ts-check
// Scales of charts: from values to pixels, and values at which an axis has its lines.

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
