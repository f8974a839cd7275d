// @ts-check
// The timeline: what each request waited for, and what each step of the engine did, on one axis of time.

import { useAsTable } from "../draw/picture.js";
import { html } from "../html.js";
import { Empty, focusOn, Panel, RequestName, TableButton, tableKey, useKeys } from "../parts/panel.js";
import { TokenCells } from "../parts/token_cells.js";
import { HeldUp } from "../timeline/held_up.js";
import { Lanes } from "../timeline/lanes.js";
import { busySpan, MIN_SPAN, moved, timelineState, wholeSpan, within, zoomed } from "../timeline/span.js";
import { Steps } from "../timeline/steps.js";
import { download } from "../timeline/trace.js";

/** @param {{session: Session}} props */
export function View({ session }) {
  const { store, cursor } = session;
  const { chosen, search } = timelineState(session);
  const asTable = useAsTable();
  cursor.seq.value;
  const boundsNow = () => wholeSpan(store);
  const spanNow = () => (chosen.value ? within(chosen.value, boundsNow()) : busySpan(store, cursor.timeUs.peek()));
  const bounds = boundsNow();
  const span = spanNow();
  // Keys may come faster than the page is drawn: they start from what is chosen now, not from what was drawn last.
  const zoom = (/** @type {number} */ by, around = cursor.timeUs.peek()) => (chosen.value = zoomed(spanNow(), by, around, boundsNow()));
  const pan = (/** @type {number} */ by) => (chosen.value = moved(spanNow(), by, boundsNow()));
  const gestures = { zoom, pan, choose: (/** @type {Span} */ span) => (chosen.value = within(span, boundsNow())) };
  const fit = () => (chosen.value = null);
  useKeys("Timeline", [
    { keys: ["+", "="], says: "closer", run: () => zoom(0.5) },
    { keys: ["-"], says: "further away", run: () => zoom(2) },
    { keys: ["["], says: "earlier", run: () => pan(-0.5) },
    { keys: ["]"], says: "later", run: () => pan(0.5) },
    { keys: ["0"], says: "the busy time around the cursor", run: fit },
    { keys: ["a"], says: "all that is kept", run: () => (chosen.value = boundsNow()) },
    focusOn("f", "find requests", "find-request"),
    tableKey(asTable),
    { keys: ["e"], says: "export for Perfetto", run: () => download(store) },
  ]);
  if (store.requests.size === 0) {
    return html`<${Panel} title="Timeline"><${Empty}><p>Each request from its arrival to its end, and what held it up: queue, prompt, tokens, preemptions; below, each step of the engine by what it spent its time on. Generate something, and it appears here.</p><//><//>`;
  }
  const length = span.to - span.from;
  const actions = html`
    <button aria-label="earlier" data-tip="earlier ([)" disabled=${span.from <= bounds.from} onClick=${() => pan(-0.5)}>←</button>
    <button aria-label="later" data-tip="later (])" disabled=${span.to >= bounds.to} onClick=${() => pan(0.5)}>→</button>
    <button aria-label="closer" data-tip="closer (+)" disabled=${length <= MIN_SPAN} onClick=${() => zoom(0.5)}>+</button>
    <button aria-label="further away" data-tip="further away (-)" disabled=${length >= bounds.to - bounds.from} onClick=${() => zoom(2)}>−</button>
    <button class="quiet" data-tip="the busy time around the cursor (0)" aria-pressed=${chosen.value === null} onClick=${fit}>fit</button>
    <${TableButton} asTable=${asTable} />
    <button class="quiet" data-tip="what the page holds, as a file for ui.perfetto.dev (e)" onClick=${() => download(store)}>for Perfetto</button>`;
  return html`
    <div class="column">
      <${Lanes} session=${session} span=${span} gestures=${gestures} search=${search} asTable=${asTable} actions=${actions} />
      <${Steps} session=${session} span=${span} gestures=${gestures} asTable=${asTable} />
      ${session.request.value && html`<${Panel} title=${html`In the cache <${RequestName} request=${session.request.value} />`} about="at the cursor; a click chooses the token in all views">
        <${TokenCells} session=${session} request=${session.request.value} />
      <//>`}
    </div>
    <div class="column"><${HeldUp} session=${session} /></div>
  `;
}
