// @ts-check
// The prefix tree: the texts that later prompts can find, block by block. It is the engine's present, not the cursor's moment.

import { hueVariable } from "../draw/hues.js";
import { html } from "../html.js";
import { count as counted } from "../parts/format.js";
import { Badge } from "../parts/numbers.js";
import { Empty, Panel, RequestName } from "../parts/panel.js";
import { useReply } from "../parts/reply.js";

const SHOWN = 80; // rows
const MIN_WAIT_MS = 1000; // between two looks

/**
 * @typedef {{block: number, hash: string, parent: number | null, index: number, refs: number, owners: string[], by: string, text: string}} Node
 * @typedef {{nodes: Node[], depth: number}} Run blocks that follow each other without a branch
 */

/**
 * Joins blocks that have one successor each into runs, in the order of a walk through the tree.
 * @param {Node[]} nodes
 * @returns {Run[]}
 */
export function runsOf(nodes) {
  const known = new Set(nodes.map((node) => node.block));
  /** @type {Map<number | null, Node[]>} */
  const children = new Map();
  for (const node of nodes) {
    const parent = node.parent !== null && known.has(node.parent) ? node.parent : null;
    children.set(parent, [...(children.get(parent) ?? []), node]);
  }
  /** @type {Run[]} */
  const runs = [];
  /** @type {[Node, number][]} */
  const open = (children.get(null) ?? []).map((node) => /** @type {[Node, number]} */ ([node, 0])).reverse();
  while (open.length) {
    const [first, depth] = /** @type {[Node, number]} */ (open.pop());
    const run = [first];
    let next = children.get(first.block) ?? [];
    while (next.length === 1) {
      run.push(next[0]);
      next = children.get(next[0].block) ?? [];
    }
    runs.push({ nodes: run, depth });
    for (const node of [...next].reverse()) open.push([node, depth + 1]);
  }
  return runs;
}

/** @param {{session: Session}} props */
export function PrefixTree({ session }) {
  const { store, cursor, api, source, selection } = session;
  cursor.version.value;
  const row = store.kv.end - 1;
  const kept = row < store.kv.first ? 0 : store.kv.get("cached", row);
  const inputs = [kept, store.requests.size, store.hello?.boot_id];
  const { reply, problem } = useReply(api, source.isLive && store.hello ? "/v1/kv/tree" : "", { apart: MIN_WAIT_MS, inputs });
  const about = "what later prompts can find, at this moment";
  if (!reply || reply.nodes.length === 0) {
    const text = problem
      ? `The engine could not tell: ${problem}`
      : source.isLive
        ? "Nothing yet. A block becomes findable when it is full."
        : "A recorded run has the pool, but not the texts of the tree.";
    return html`<${Panel} title="The prefix tree" about=${about}><${Empty}><p>${text}</p><//><//>`;
  }
  const runs = runsOf(reply.nodes);
  return html`<${Panel} title="The prefix tree" about=${about}>
    <ol class="prefix-tree">
      ${runs.slice(0, SHOWN).map(({ nodes, depth }) => {
        const request = store.requests.get(nodes[0].by);
        const refs = Math.max(...nodes.map((node) => node.refs));
        return html`<li key=${nodes[0].block} style=${{ "--depth": Math.min(depth, 8), "--c": request ? hueVariable(request) : "var(--line2)" }} class=${refs > 0 ? "used" : "kept"}>
          <button onClick=${() => (selection.block.value = nodes[0].block)}>
            <span class="mono">${nodes.map((node) => node.text).join("").slice(0, 160).replaceAll("\n", "↵")}</span>
            <small>${counted(nodes.length)} ${nodes.length === 1 ? "block" : "blocks"}${refs > 1 ? ` · shared by ${refs}` : refs === 1 ? " · in use" : " · kept"}</small>
          </button>
          ${request && html`<${RequestName} request=${request} />`}
        </li>`;
      })}
    </ol>
    <p class="small dim">
      ${counted(reply.nodes.length)} blocks in ${counted(runs.length)} runs<${Badge} of="blocks of the tree" kind="C" from="GET /v1/kv/tree" />.
      An indented run continues the text above it; a branch is where two texts part.
      ${runs.length > SHOWN && ` The first ${SHOWN} are shown.`}
    </p>
  <//>`;
}
