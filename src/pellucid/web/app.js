// @ts-check
// The shell: header, views, time bar, keys. One view is shown at a time; all get the same session.

import { followTheme } from "./draw/hues.js";
import { html, render, useEffect, useLayoutEffect, useSignal } from "./html.js";
import { isHelpOpen, KeySheet, listenToKeys, useKeys } from "./parts/controls.js";
import { Badge, percent } from "./parts/numbers.js";
import { useReadableSeq } from "./parts/panel.js";
import { TimeBar } from "./parts/time_bar.js";
import { createSession } from "./state/session.js";

/** The views in the order of their keys. The file of each exports `View` and is loaded when it is first shown. */
const VIEWS = ["Generate", "Timeline", "Cache", "Compare", "Speculate", "Serve", "Plan", "Learn"].map((title) => [title.toLowerCase(), title]);

const session = createSession();

function App() {
  const { route, cursor, settings } = session;
  const { view } = route.now.value;
  const known = VIEWS.some(([name]) => name === view) ? view : "generate";
  useKeys("page", [
    ...VIEWS.map(([name, title], index) => ({ keys: [String(index + 1)], says: title, run: () => route.go(name) })),
    { keys: [" "], says: "hold, or play on from here", run: cursor.toggle },
    { keys: ["ArrowLeft"], says: "a step back", run: () => cursor.move(-1) },
    { keys: ["ArrowRight"], says: "a step on", run: () => cursor.move(1) },
    { keys: ["Shift+ArrowLeft"], says: "ten steps back", run: () => cursor.move(-10) },
    { keys: ["Shift+ArrowRight"], says: "ten steps on", run: () => cursor.move(10) },
    { keys: ["Home"], says: "first step", run: () => cursor.seekStep(0) },
    { keys: ["End"], says: "newest", run: cursor.goLive },
    { keys: ["?"], says: "this sheet", run: () => (isHelpOpen.value = !isHelpOpen.value) },
  ]);
  useLayoutEffect(() => listenToKeys(settings.shortcuts), []);
  useLayoutEffect(() => {
    document.title = `${VIEWS.find(([name]) => name === known)?.[1]} · pellucid`;
  }, [known]);
  return html`
    <a class="skip" href="#main" onClick=${skipToMain}>to the view</a>
    <${Header} view=${known} />
    <${Notice} />
    <main id="main" tabindex="-1" class=${`view-${known}`}><${CurrentView} key=${known} name=${known} /></main>
    <${TimeBar} session=${session} />
    <${KeySheet} settings=${settings} />
  `;
}

/** @param {Event} event */
function skipToMain(event) {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

/** @param {{name: string}} props */
function CurrentView({ name }) {
  const loaded = useSignal(/** @type {any} */ (null));
  const failed = useSignal("");
  useEffect(() => {
    import(`./views/${name}.js`).then(
      (module) => (loaded.value = module),
      (error) => (failed.value = String(error)),
    );
  }, []);
  if (failed.value) return html`<p class="why trouble"><b>This view could not be loaded.</b> ${failed.value}</p>`;
  return loaded.value && html`<${loaded.value.View} session=${session} />`;
}

/** @param {{view: string}} props */
function Header({ view }) {
  const { store, cursor, route, source, settings } = session;
  const row = store.rowAt(store.stats, useReadableSeq(cursor));
  const hello = store.hello;
  const looking = row < 0 ? -1 : store.stats.get("obs_frac", row);
  return html`<header class="top">
    <a class="logo" href="#generate"><i></i>pellucid</a>
    <nav aria-label="Views">
      ${VIEWS.map(
        ([name, title], index) =>
          html`<a href=${`#${name}`} class=${name === view ? "on" : ""} aria-current=${name === view ? "page" : undefined}
            ><b>${index + 1}</b>${title}</a>`,
      )}
    </nav>
    <select class="menu" aria-label="View" value=${view} onChange=${(/** @type {any} */ event) => route.go(event.target.value)}>
      ${VIEWS.map(([name, title], index) => html`<option value=${name}>${index + 1} ${title}</option>`)}
    </select>
    <span class="spacer"></span>
    ${hello && html`<span class="engine">${engineName(hello)}</span>`}
    ${!source.isLive && html`<span class="recorded">recorded: ${source.name.value}</span>`}
    <span class="kinds" aria-label="M measured, C counted, E estimated"
      ><i class="badge">M</i>easured <i class="badge">C</i>ounted <i class="badge">E</i>stimated</span>
    ${looking >= 0 &&
    html`<span class="looking">looking: ${percent(looking)}<${Badge}
      kind="M" of="the cost of looking" from="stat.obs_frac" note="The share of the engine's time that went into creating events for this page." /></span>`}
    <button
      class="quiet"
      aria-label="theme"
      title="light, dark, or as the machine has it"
      onClick=${() => (settings.theme.value = /** @type {any} */ ({ "": "dark", dark: "light", light: "" })[settings.theme.value])}
    >${/** @type {any} */ ({ "": "◐", dark: "●", light: "○" })[settings.theme.value]}</button>
    <button class="quiet" aria-label="keys" title="keys (?)" onClick=${() => (isHelpOpen.value = true)}>?</button>
  </header>`;
}

/** @param {any} hello */
function engineName({ model, device }) {
  const weights = model.dtype === "none" ? "" : model.dtype; // none: as in the checkpoint
  return [model.name, weights, device.backend].filter(Boolean).join(" · ");
}

/** What stands between header and view when something is wrong with the stream. */
function Notice() {
  const { source, settings, store, cursor } = session;
  useReadableSeq(cursor);
  const key = useSignal("");
  const status = source.status.value;
  if (status === "refused" && source.isLive) {
    return html`<form
      class="notice"
      onSubmit=${(/** @type {Event} */ event) => {
        event.preventDefault();
        settings.key.value = key.value;
        source.follow();
      }}
    >
      <p><b>${settings.key.value ? "The server did not accept this key." : "The server shows its events to admins only."}</b> ${source.message.value}</p>
      <label>admin key <input type="password" autocomplete="off" value=${key.value} onInput=${(/** @type {any} */ event) => (key.value = event.target.value)} /></label>
      <button class="primary">use it</button>
      <p class="faint">It is kept for this tab only and sent in a header.</p>
    </form>`;
  }
  if (status === "refused") return html`<p class="notice"><b>The trace could not be read.</b> ${source.message.value}</p>`;
  if (status === "lost") {
    return html`<p class="notice">
      <b>The server does not answer.</b> What it told so far stays here; the page goes on when it is back.
    </p>`;
  }
  if (store.missed > 0) {
    return html`<p class="notice calm">
      <b>${store.missed} events were missed</b> because they came faster than this page read them. A snapshot has put blocks and
      requests right.
    </p>`;
  }
  return null;
}

followTheme();
render(html`<${App} />`, document.body);
const trace = new URLSearchParams(location.search).get("trace");
const bundled = document.querySelector("meta[name=pellucid-trace]")?.getAttribute("content");
if (trace || bundled) session.source.open(/** @type {string} */ (trace ?? bundled));
else session.source.follow();
// For tests in a browser, which compare what is shown with what the engine says.
/** @type {any} */ (globalThis).pellucid = session;
