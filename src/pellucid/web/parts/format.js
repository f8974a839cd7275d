// @ts-check
// Numbers as people read them: three digits that count, the unit apart.

const GROUPED = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** @param {number} value */
export const count = (value) => GROUPED.format(Math.round(value));

/**
 * Three significant digits, no exponent.
 * @param {number} value
 */
export function digits(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1000) return count(value);
  return String(Number(value.toPrecision(size >= 100 ? 4 : 3)));
}

/**
 * @param {number} us microseconds
 * @returns {[string, string]} number and unit
 */
export function duration(us) {
  if (us < 1000) return [digits(us), "µs"];
  if (us < 1e6) return [digits(us / 1e3), "ms"];
  if (us < 120e6) return [digits(us / 1e6), "s"];
  return [digits(us / 60e6), "min"];
}

/**
 * @param {number} value
 * @returns {[string, string]} number and unit, binary
 */
export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let index = 0;
  while (Math.abs(value) >= 1024 && index < units.length - 1) {
    value /= 1024;
    index += 1;
  }
  return [digits(value), units[index]];
}

/**
 * @param {number} value operations or others
 * @returns {[string, string]} number and a prefix: k, M, G, T
 */
function scaled(value) {
  const units = ["", "k", "M", "G", "T", "P"];
  let index = 0;
  while (Math.abs(value) >= 1000 && index < units.length - 1) {
    value /= 1000;
    index += 1;
  }
  return [digits(value), units[index]];
}

/**
 * A share as percent: 97.1, 0.03, "< 0.01".
 * @param {number} share
 */
export function percent(share) {
  const value = share * 100;
  if (value === 0 || value > 99.9999) return `${Math.round(value)} %`;
  if (value < 0.01) return "< 0.01 %";
  return `${value >= 99.95 && value < 100 ? "> 99.9" : value.toFixed(value < 1 ? 2 : 1)} %`;
}

/**
 * A duration in a sentence.
 * @param {number} us
 */
export const inTime = (us) => duration(us).join(" ");

/**
 * Bytes in a sentence.
 * @param {number} value
 */
export const inBytes = (value) => bytes(value).join(" ");

/**
 * Operations or bytes with a prefix, in a sentence: 1.2 G.
 * @param {number} value
 */
export const inPrefix = (value) => scaled(value).join(" ");
