// @ts-check
// Grades predictions and checks from the numbers of the learner's own run. No answer is stored anywhere.

/**
 * A question whose answer a run gives.
 * @typedef {object} Question
 * @property {any} ask
 * @property {[string, string][]} [options] key and text; without them the answer is a number
 * @property {string} [unit]
 * @property {(result: any) => number | string} answer from the run's numbers
 * @property {number} [within] share by which a number may differ and still count; 0 if left out
 * @property {(result: any) => any} explain why it is so, with the numbers in it
 */

/**
 * @param {Question} question
 * @param {any} result of the run
 * @param {string} given by the learner
 * @returns {{isRight: boolean, answer: number | string}}
 */
export function grade(question, result, given) {
  const answer = question.answer(result);
  if (question.options) return { isRight: given === answer, answer };
  const number = readNumber(given);
  const isRight = Number.isFinite(number) && Math.abs(number - Number(answer)) <= Math.abs(Number(answer)) * (question.within ?? 0) + 1e-9;
  return { isRight, answer };
}

/**
 * A number as people write it: 1,368 or 1 368 or 1.5e3.
 * @param {string} text
 */
export function readNumber(text) {
  const plain = text.trim().replace(/[\s_\u00a0\u2009,]/g, "");
  return plain === "" ? NaN : Number(plain);
}
