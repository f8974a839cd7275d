// @ts-check
// The timeline: what each request waited for, and what each step of the engine did, on one axis of time.

import { useAsTable } from "../draw/picture.js";
import { computed, html, useMemo } from "../html.js";
import { InCache } from "../parts/in_cache.js";
import { Empty, focusOn, Panel, TableButton, tableKey, useKeys } from "../parts/panel.js";
import { HeldUp } from "../timeline/held_up.js";
import { Lanes } from "../timeline/lanes.js";
import { MIN_SPAN, moved, spanOf, timelineState, wholeSpan, within, zoomed } from "../timeline/span.js";
import { Steps } from "../timeline/steps.js";
import { download } from "../timeline/trace.js";

/** @param {{session: Session}} props */
export function View({ session }) {
  const { store, cursor, later } = session;
  const { chosen } = timelineState(session);
  const asTable = useAsTable();
  const hasNone = useMemo(() => computed(() => (cursor.seq.value, store.requests.size === 0)), []);
  // Keys may come faster than the page is drawn: they start from what is chosen now, not from what was drawn last.
  const zoom = (/** @type {number} */ by, around = cursor.timeUs.peek()) => (chosen.value = zoomed(spanOf(session), by, around, wholeSpan(store)));
  const pan = (/** @type {number} */ by) => (chosen.value = moved(spanOf(session), by, wholeSpan(store)));
  const gestures = { zoom, pan, choose: (/** @type {Span} */ span) => (chosen.value = within(span, wholeSpan(store))) };
  useKeys("Timeline", [
    { keys: ["+", "="], says: "closer", run: () => zoom(0.5) },
    { keys: ["-"], says: "further away", run: () => zoom(2) },
    { keys: ["["], says: "earlier", run: () => pan(-0.5) },
    { keys: ["]"], says: "later", run: () => pan(0.5) },
    { keys: ["0"], says: "the busy time around the cursor", run: () => (chosen.value = null) },
    { keys: ["a"], says: "all that is kept", run: () => (chosen.value = wholeSpan(store)) },
    focusOn("f", "find requests", "find-request"),
    tableKey(asTable),
    { keys: ["e"], says: "export for Perfetto", run: () => download(store) },
  ]);
  if (hasNone.value) {
    return html`<${Panel} title="Timeline"><${Empty}><p>Each request from its arrival to its end, and what held it up: queue, prompt, tokens, preemptions; below, each step of the engine by what it spent its time on. Generate something, and it appears here.</p><//><//>`;
  }
  return html`
    <div class="column">
      <${Requests} session=${session} gestures=${gestures} asTable=${asTable} />
      <${Below} session=${later} gestures=${gestures} asTable=${asTable} />
      <${InCache} session=${later} />
    </div>
    <div class="column"><${HeldUp} session=${later} /></div>
  `;
}

/** The lanes, and what changes the time that they show. @param {{session: Session, gestures: TimeChanges, asTable: {value: boolean}}} props */
function Requests({ session, gestures, asTable }) {
  const { store, cursor } = session;
  const { chosen, search } = timelineState(session);
  cursor.seq.value;
  const bounds = wholeSpan(store);
  const span = spanOf(session);
  const length = span.to - span.from;
  const { zoom, pan } = gestures;
  const around = () => cursor.timeUs.peek();
  const actions = html`
    <button aria-label="earlier" data-tip="earlier ([)" disabled=${span.from <= bounds.from} onClick=${() => pan(-0.5)}>←</button>
    <button aria-label="later" data-tip="later (])" disabled=${span.to >= bounds.to} onClick=${() => pan(0.5)}>→</button>
    <button aria-label="closer" data-tip="closer (+)" disabled=${length <= MIN_SPAN} onClick=${() => zoom(0.5, around())}>+</button>
    <button aria-label="further away" data-tip="further away (-)" disabled=${length >= bounds.to - bounds.from} onClick=${() => zoom(2, around())}>−</button>
    <button class="quiet" data-tip="the busy time around the cursor (0)" aria-pressed=${chosen.value === null} onClick=${() => (chosen.value = null)}>fit</button>
    <${TableButton} asTable=${asTable} />
    <button class="quiet" data-tip="what the page holds, as a file for ui.perfetto.dev (e)" onClick=${() => download(store)}>for Perfetto</button>`;
  return html`<${Lanes} session=${session} span=${span} gestures=${gestures} search=${search} asTable=${asTable} actions=${actions} />`;
}

/** The steps on the lanes' axis. @param {{session: Session, gestures: TimeChanges, asTable: {value: boolean}}} props */
function Below({ session, gestures, asTable }) {
  session.cursor.seq.value;
  return html`<${Steps} session=${session} span=${spanOf(session)} gestures=${gestures} asTable=${asTable} />`;
}
