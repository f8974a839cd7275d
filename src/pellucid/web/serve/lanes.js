// @ts-check
// Requests of a load as lanes over time: hatched while they wait for a batch, solid to the first token, pale to the last.

import { hatch, hue } from "../draw/hues.js";
import { Picture } from "../draw/picture.js";
import { linear, roundTicks } from "../draw/scale.js";
import { html, useSignal } from "../html.js";
import { digits, inTime } from "../parts/format.js";

const [LEFT, RIGHT, BELOW] = [4, 12, 20];

/**
 * @param {{session: Session, load: Load, longest: number, version: number,
 *   asTable: {value: boolean}}} props `longest`: microseconds of the axis, the same for both disciplines
 */
export function Lanes({ session, load, longest, version, asTable }) {
  const width = useSignal(300);
  const { lanes } = load;
  const pitch = Math.max(4, Math.min(14, Math.floor(360 / lanes.length)));
  const height = lanes.length * pitch + BELOW;
  const numberOf = (/** @type {Lane} */ lane) => session.store.requests.get(lane.req)?.number ?? lane.index;
  const ticks = roundTicks(Math.max(1, longest) / 1e6, 10, 4);
  const chosen = session.selection.req.value;

  /** @param {Surface} surface */
  const draw = ({ ctx, width: wide, palette }) => {
    width.value = wide;
    const x = linear(0, Math.max(1, longest), LEFT, wide - RIGHT);
    ctx.font = `11px ${palette.ui}`;
    for (const tick of ticks) {
      const px = x(tick * 1e6);
      if (px > wide - RIGHT + 1) continue;
      ctx.fillStyle = palette.line;
      ctx.fillRect(px, 0, 1, height - BELOW);
      ctx.fillStyle = palette.ink3;
      ctx.textAlign = tick === 0 ? "left" : "center";
      ctx.fillText(tick === 0 ? "0" : `${digits(tick)} s`, Math.min(px, wide - 16), height - 5);
    }
    const tall = Math.max(3, pitch - 3);
    lanes.forEach((lane, row) => {
      const y = row * pitch + 1;
      const colour = hue(palette, numberOf(lane));
      const now = load.isRunning ? load.nowUs : lane.endUs;
      const sent = lane.sentUs >= 0 ? lane.sentUs : Math.max(lane.dueUs, load.nowUs);
      if (sent > lane.dueUs && lane.dueUs <= load.nowUs) hatch(ctx, x(lane.dueUs), y, x(sent) - x(lane.dueUs), tall, palette.ink3, 4);
      if (lane.sentUs < 0) return;
      const end = lane.endUs >= 0 ? lane.endUs : now;
      const first = lane.firstUs >= 0 ? lane.firstUs : end;
      ctx.fillStyle = colour;
      ctx.fillRect(x(lane.sentUs), y, Math.max(1, x(first) - x(lane.sentUs)), tall);
      ctx.globalAlpha = 0.4;
      ctx.fillRect(x(first), y, Math.max(0, x(end) - x(first)), tall);
      ctx.globalAlpha = 1;
      if (lane.state === "failed") {
        ctx.fillStyle = palette.coral;
        ctx.fillRect(x(end) - 2, y - 1, 4, tall + 2);
      }
      if (lane.req !== "" && lane.req === chosen) {
        ctx.strokeStyle = palette.ink;
        ctx.lineWidth = 1.5;
        ctx.strokeRect(x(lane.sentUs) - 1, y - 1, x(end) - x(lane.sentUs) + 2, tall + 2);
      }
    });
  };
  /** @param {Lane} lane */
  const describe = (lane) => {
    if (lane.state === "planned") return `request ${lane.index + 1}: arrives at ${inTime(lane.dueUs)}`;
    const waited = lane.sentUs - lane.dueUs;
    return `request ${lane.index + 1}: waited ${inTime(Math.max(0, waited))} for its batch, first token after ${lane.firstUs >= 0 ? inTime(lane.firstUs - lane.dueUs) : "–"}, ${lane.state} after ${lane.endUs >= 0 ? inTime(lane.endUs - lane.dueUs) : "–"}, ${lane.tokens} tokens`;
  };
  return html`<${Picture}
    label=${`${load.discipline} batching: ${lanes.filter((lane) => lane.state === "done").length} of ${lanes.length} requests have ended.`}
    draw=${draw}
    inputs=${[load, version, longest, chosen]}
    height=${height}
    asTable=${asTable}
    cells=${{
      count: lanes.length,
      columns: 1,
      describe: (/** @type {number} */ index) => describe(lanes[index]),
      rect: (/** @type {number} */ index) => ({ x: LEFT, y: index * pitch, width: width.value - LEFT - RIGHT, height: pitch - 1 }),
      hit: (/** @type {number} */ _, /** @type {number} */ y) => (y < lanes.length * pitch ? Math.floor(y / pitch) : -1),
      choose: (/** @type {number} */ index) => lanes[index].req && (session.selection.req.value = lanes[index].req),
    }}
    twin=${{
      columns: ["request", "arrived", "waited for its batch", "first token after", "ended after", "tokens", "from the cache", "state"],
      rows: () =>
        lanes.map((lane) => [
          lane.index + 1, inTime(lane.dueUs), lane.sentUs >= 0 ? inTime(Math.max(0, lane.sentUs - lane.dueUs)) : "", lane.firstUs >= 0 ? inTime(lane.firstUs - lane.dueUs) : "",
          lane.endUs >= 0 ? inTime(lane.endUs - lane.dueUs) : "", lane.tokens, lane.cachedTok, lane.state,
        ]),
    }}
  />`;
}
