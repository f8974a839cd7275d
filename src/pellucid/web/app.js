// @ts-check
// The shell: header, views, time bar, keys. One view is shown at a time; all get the same session.

import { followTheme } from "./draw/hues.js";
import { useCanvas } from "./draw/picture.js";
import { html, render, useEffect, useLayoutEffect, useRef, useSignal } from "./html.js";
import { Badge, count, inTime, percent } from "./parts/numbers.js";
import { isHelpOpen, KeySheet, listenToKeys, Select, useKeys } from "./parts/panel.js";
import { Tips } from "./parts/tips.js";
import { createSession, playWhenRead, SPEEDS } from "./state/session.js";

/** The views in the order of their keys. The file of each exports `View` and is loaded when it is first shown. */
const VIEWS = ["Learn", "Generate", "Timeline", "Cache", "Compare", "Speculate", "Serve", "Plan", "Chat"].map((title) => [title.toLowerCase(), title]);

/** Views that show no moment of the engine: runs of their own, or conversations. */
const TIMELESS = new Set(["compare", "learn", "chat"]);

const session = createSession();

function App() {
  const { route, cursor, settings } = session;
  const { view, params } = route.now.value;
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
    scrollTo(0, 0);
  }, [known, params.step]);
  return html`
    <a class="skip" href="#main" onClick=${skipToMain}>to the view</a>
    <${Header} view=${known} />
    <${Notice} />
    <main id="main" tabindex="-1" class=${`view-${known}`}><${CurrentView} key=${known} name=${known} /></main>
    ${!TIMELESS.has(known) && html`<${TimeBar} />`}
    <${KeySheet} settings=${settings} />
    <${Tips} />
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
  const { route, source, settings } = session;
  return html`<header class="top">
    <a class="logo" href="#generate"><i></i>pellucid</a>
    <h1 class="spoken">${VIEWS.find(([name]) => name === view)?.[1]}</h1>
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
    <${Engine} />
    ${!source.isLive && html`<span class="recorded">recorded: ${source.name.replace(/\.jsonl(\.gz)?$/, "")}</span>`}
    <span class="kinds" aria-label="M measured, C counted, E estimated"
      ><i class="badge">M</i>easured <i class="badge">C</i>ounted <i class="badge">E</i>stimated</span>
    <${Looking} />
    <button
      class="quiet"
      aria-label="theme"
      data-tip="light, dark, or the machine's"
      onClick=${() => (settings.theme.value = /** @type {any} */ ({ "": "dark", dark: "light", light: "" })[settings.theme.value])}
    >${/** @type {any} */ ({ "": "◐", dark: "●", light: "○" })[settings.theme.value]}<span class="word"> theme</span></button>
    <button class="quiet" aria-label="keys" data-tip="keys (?)" onClick=${() => (isHelpOpen.value = true)}>?<span class="word"> keys</span></button>
  </header>`;
}

/** Model, weights and backend. */
function Engine() {
  session.cursor.seq.value;
  const { hello } = session.store;
  if (!hello) return null;
  const { model, device } = hello;
  const weights = model.dtype === "none" ? "" : model.dtype; // none: as in the checkpoint
  return html`<span class="engine">${[model.name, weights, device.backend].filter(Boolean).join(" · ")}</span>`;
}

/** The share of the engine's time that this page takes. */
function Looking() {
  const { store, cursor } = session;
  const row = store.rowAt(store.stats, cursor.seq.value);
  const looking = row < 0 ? -1 : store.stats.get("obs_frac", row);
  return looking >= 0 && html`<span class="looking">looking: ${percent(looking)}<${Badge}
    of="the cost of looking" kind="M" from="stat.obs_frac" note="The share of the engine's time that went into creating events for this page." /></span>`;
}

/** What stands between header and view when something is wrong with the stream. */
function Notice() {
  const { source, settings, store, cursor } = session;
  cursor.seq.value;
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
      <p class="faint">Kept for this tab, and sent in a header.</p>
    </form>`;
  }
  if (status === "refused") return html`<p class="notice"><b>The trace could not be read.</b> ${source.message.value}</p>`;
  if (status === "ended" && source.message.value) return html`<p class="notice"><b>The recording is not whole.</b> ${source.message.value}</p>`;
  if (status === "lost") {
    return html`<p class="notice">
      <b>The server does not answer.</b> The page goes on when it is back.
    </p>`;
  }
  if (source.before.value !== "none") {
    const isShown = source.before.value === "shown";
    return html`<p class="notice">
      <b>${isShown ? "This is the server's run before it was restarted." : "The server has been restarted."}</b>
      ${isShown ? "It stays until the page is loaded again." : "Its run before is kept as a recording."}
      <button onClick=${() => source.turn()}>${isShown ? "show the server now" : "show the run before"}</button>
    </p>`;
  }
  if (store.missed > 0) {
    return html`<p class="notice calm">
      <b>Events missed: ${count(store.missed)}.</b> They came faster than this page read. A snapshot has put blocks and requests right.
    </p>`;
  }
  return null;
}

/** @type {[number, string][]} */
const SPEED_OPTIONS = SPEEDS.map((speed) => [speed, `${speed}×`]);

/** One cursor for all views: steps of the engine, live or replayed. */
function TimeBar() {
  const { store, cursor, source } = session;
  const seq = cursor.seq.value;
  const row = store.rowAt(store.steps, seq);
  const { first, end } = store.steps;
  const step = row < 0 ? 0 : store.steps.get("step", row);
  const lastStep = end > first ? store.steps.get("step", end - 1) : store.head.step;
  const isLive = cursor.isLive.value;
  const status = source.status.value;
  return html`<footer class="time-bar" aria-label="Time">
    <${Transport} />
    <p class="where"><span>step ${count(step)}<small> / ${count(lastStep)}</small></span><small>${inTime(cursor.timeUs.peek())}</small></p>
    <div class="scrub">
      <${TimeStrip} store=${store} end=${end} />
      <input
        type="range"
        aria-label="step"
        aria-valuetext=${`step ${step} of ${lastStep}`}
        min=${first}
        max=${Math.max(first, end - 1)}
        value=${Math.max(first, row)}
        style=${{ "--at": `${((Math.max(first, row) - first) / Math.max(1, end - 1 - first)) * 100}%` }}
        onInput=${(/** @type {any} */ event) => cursor.seekStep(Number(event.target.value))}
      />
    </div>
    <label class="speed">
      <span class="spoken">speed of replay</span>
      <${Select} of=${cursor.speed} options=${SPEED_OPTIONS} />
    </label>
    <button class=${`live ${isLive && status === "open" ? "on" : ""} ${status === "lost" ? "lost" : ""}`} onClick=${cursor.goLive}>
      ${status === "lost" ? "no connection" : status === "connecting" || status === "refused" ? status : source.isLive ? "live" : "end"}
    </button>
  </footer>`;
}

/** The buttons of the time bar. */
function Transport() {
  const { cursor, store } = session;
  const moves = cursor.isLive.value || cursor.isPlaying.value;
  return html`<div class="transport">
    ${[
      ["first", "first step", "Home", () => cursor.seekStep(store.steps.first)],
      ["back", "a step back", "←", () => cursor.move(-1)],
      moves ? ["hold", "hold", "Space", cursor.toggle] : ["play", "play", "Space", cursor.toggle],
      ["on", "a step on", "→", () => cursor.move(1)],
      ["last", "newest", "End", cursor.goLive],
    ].map(
      ([icon, says, key, run]) => html`<button class=${key === "Space" ? "main" : ""} data-tip=${`${says} (${key})`} aria-label=${says} onClick=${run}>
        <svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true"><path d=${ICONS[/** @type {string} */ (icon)]} fill="currentColor" /></svg>
      </button>`,
    )}
  </div>`;
}

/** @type {Record<string, string>} paths in a square of 16 */
const ICONS = {
  first: "M3 3h2v10H3zM13 3v10L6 8z",
  back: "M11 3v10L4 8z",
  play: "M4 2.5v11L13 8z",
  hold: "M4 3h3v10H4zM9 3h3v10H9z",
  on: "M5 3v10l7-5z",
  last: "M11 3h2v10h-2zM3 3v10l7-5z",
};

const HEIGHT = 18;

/** What each step did: a bar as high as its tokens, prompts lighter than decoded tokens. @param {{store: Store, end: number}} props */
function TimeStrip({ store, end }) {
  const box = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const { canvas } = useCanvas({
    box,
    height: HEIGHT,
    inputs: [store.hello, end],
    draw({ ctx, width, palette }) {
      const { first } = store.steps;
      const count = end - first;
      if (count === 0) return;
      const bars = Math.min(count, Math.floor(width / 3));
      const each = width / bars;
      /** @param {string} colour @param {number} alpha @param {(from: number, to: number) => number} heightOf the steps of a bar */
      const draw = (colour, alpha, heightOf) => {
        ctx.fillStyle = colour;
        ctx.globalAlpha = alpha;
        for (let bar = 0; bar < bars; bar++) {
          const tall = Math.min(HEIGHT, heightOf(first + Math.floor((bar * count) / bars), first + Math.floor(((bar + 1) * count) / bars)));
          if (tall > 0) ctx.fillRect(bar * each, HEIGHT - tall, Math.max(1, each - 1), tall);
        }
      };
      draw(palette.line2, 1, (from, to) => {
        let tokens = 0;
        for (let row = from; row < to; row++) tokens += store.steps.get("prompt_tok", row);
        return tokens === 0 ? 0 : 6 + 2 * Math.log2(1 + tokens);
      });
      draw(palette.water, 0.55, (from, to) => {
        let most = 0;
        for (let row = from; row < to; row++) most = Math.max(most, store.steps.get("decoding", row));
        return most === 0 ? 0 : 4 + 2 * most;
      });
      ctx.globalAlpha = 1;
    },
  });
  return html`<div ref=${box}><canvas ref=${canvas} class="strip" aria-hidden="true"></canvas></div>`;
}

followTheme();
render(html`<${App} />`, document.body);
const trace = new URLSearchParams(location.search).get("trace");
const bundled = document.querySelector("meta[name=pellucid-trace]")?.getAttribute("content");
if (trace || bundled) {
  session.source.open(/** @type {string} */ (trace ?? bundled));
  playWhenRead(session);
}
else session.source.follow();
// For tests in a browser, which compare what is shown with what the engine says.
/** @type {any} */ (globalThis).pellucid = session;
