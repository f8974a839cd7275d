"""Screenshots of every view as it ends, at three widths in two themes, from a server with the bundled model.

python tests/page/screenshots.py [FOLDER] [--view NAME] [--width N] [--theme NAME] [--url URL]
python tests/page/screenshots.py docs/page --docs         the pictures of README.md and docs/page.md

Before the pictures are taken, texts are generated, the comparisons run, a load is sent and the lessons are done.
"""

import argparse
import base64
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from page.browser import CHROMIUM, FLAGS, wait_until

LESSONS = (
    "one-token", "choosing", "attention", "keys-values", "with-without", "memory", "speculation", "batching",
    "challenge", "numbers", "questions", "record",
)  # fmt: skip
VIEWS = ("learn", "generate", "timeline", "cache", "compare", "speculate", "serve", "plan", "chat")
WIDTHS = (1440, 900, 360)
THEMES = ("light", "dark")
PICTURED = (*(view for view in VIEWS if view != "learn"), "learn-with-without")

# What each view runs before its picture is taken: a promise.
GENERATE = """async () => {
  const model = await pellucid.runs.model();
  const send = (prompt, max_tokens, seed) =>
    pellucid.api.post("/v1/completions", {model, prompt, max_tokens, seed, temperature: 0.8, ignore_eos: true});
  const story = "Once upon a time there was a small dog who lived near the sea. Every morning it ran along";
  const prompt = (seed) => `${story} the beach and looked for shells. One day number ${seed}`;
  await Promise.all([1, 2, 3].map((seed) => send(prompt(seed), 30 + 20 * seed, seed)));
  const name = await pellucid.runs.start("/v1/completions",
    {prompt: "Once upon a time", max_tokens: 40, seed: 4, temperature: 0.8, top_p: 0.95, top_k: 40});
  // Events come apart; the ledger is a request's last one.
  while (!pellucid.store.requests.get(name)?.ledger) await new Promise(requestAnimationFrame);
  await pellucid.runs.learnTexts(pellucid.store.requests.get(name).added.prompt_ids);
}"""
LEAST_SURE = """() => {
  const tokens = pellucid.request.value.tokens.map((row) => pellucid.store.token(row)).slice(8);
  pellucid.selection.pos.value = tokens.reduce((a, b) => (b.ent_bits > a.ent_bits ? b : a)).pos;
}"""
COMPARE = """async () => {
  const state = pellucid.views.compare;
  state.tokens.value = 24; // so that arcs and blocks are in the picture
  for (const kind of ["kv_dtype", "batch", "cache"]) {
    state.kind.value = kind;
    await state.start();
  }
}"""
SPECULATE = "() => pellucid.views.speculate.start()"
SERVE = "() => pellucid.views.serve.start()"
CHAT = """async () => {
  const chat = pellucid.views.chat;
  const last = () => chat.branch.value.at(-1);
  for (const text of ["Once upon a time there was a small dog.", "What did the dog do next?"]) {
    chat.set({ params: { seed: 4, max_tokens: 60 } });
    chat.send(text, []);
    while (last()?.status !== "whole") await new Promise(requestAnimationFrame);
  }
  const { parts } = last();
  while (!pellucid.store.requests.get(parts[0].req)?.ledger) await new Promise(requestAnimationFrame);
  chat.inside.value = { what: "token", message: last().id, at: 12 };
}"""
LESSON = """async (module) => {
  const { STEPS } = await import(module);
  const done = {};
  for (const step of STEPS) {
    const result = await step.run(pellucid);
    const engine = pellucid.store.hello.model.name;
    const predicted = step.predict.answer(result);
    const checked = step.check.options?.[1][0] ?? "4"; // guesses are right, most answers are not
    done[step.id] = { predicted, checked, result, isRecorded: false, when: new Date().toISOString(), engine };
  }
  pellucid.settings.lessons.value = done;
}"""


def prepared_pages(page: Any, url: str, views: list[str]) -> Iterator[tuple[str, str]]:
    """Brings the page to the state of each picture: its name, and the view's address."""
    page.goto(url)
    page.locator("button.live.on").wait_for()
    wait_until(page, "pellucid.store.hello !== null")
    page.evaluate(GENERATE)
    folder = page.locator('script[type="module"]').get_attribute("src").removesuffix("app.js")
    # Learn comes last: requests of its runs would be the chosen ones of other views.
    for view in sorted(views, key=lambda each: each == "learn"):
        page.goto(f"{url}/#{view}")
        page.locator(f"main.view-{view} h2").first.wait_for()
        match view:
            case "generate":
                page.evaluate(LEAST_SURE)
                page.locator(".read-list").wait_for()
                yield view, view
            case "cache":
                page.keyboard.press(".")
                page.keyboard.press(".")
                yield view, view
            case "compare":
                page.evaluate(COMPARE)
                yield view, view
                for kind in ("kv_dtype", "batch"):
                    page.keyboard.press("k")
                    yield f"{view}-{kind}", view
            case "speculate":
                page.evaluate(SPECULATE)
                yield view, view
            case "serve":
                page.evaluate(SERVE)
                yield view, view
            case "plan":
                wait_until(page, "Boolean(pellucid.views.plan.estimate.value)")
                yield view, view
            case "learn":
                page.evaluate(LESSON, f"{folder}views/learn.js")
                for lesson in LESSONS:
                    yield f"{view}-{lesson}", f"{view}?step={lesson}"
            case "chat":
                wait_until(page, "pellucid.views.chat.isReady.value")
                page.evaluate(CHAT)
                page.locator(".inside .read-list").wait_for()
                yield view, view
                page.keyboard.press("w")
                page.locator(".inside .ledger").wait_for()
                yield f"{view}-why", view
            case _:
                yield view, view


def show(page: Any, address: str, width: int, theme: str, tallest: int = 10_000) -> None:
    """Shows a view in a window as tall as it is."""
    page.emulate_media(color_scheme=theme)
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate("hash => { location.hash = hash; }", f"#{address}")
    page.locator(f"main.view-{address.partition('?')[0]} h2").first.wait_for()
    if "?" in address:
        page.locator(f".steps a.on[href='#{address}']").wait_for()
    page.wait_for_timeout(350)
    tall = page.evaluate("document.documentElement.scrollHeight")
    page.set_viewport_size({"width": width, "height": min(tallest, max(tall, 900))})
    page.wait_for_timeout(150)


def take_for_docs(page: Any, address: str, path: Path) -> None:
    """A light picture that is small on disk."""
    show(page, address, 1280, "light", tallest=1040)
    session = page.context.new_cdp_session(page)
    taken = session.send("Page.captureScreenshot", {"format": "webp", "quality": 72})
    path.write_bytes(base64.b64decode(taken["data"]))
    print(path, path.stat().st_size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", default="build/screenshots", type=Path)
    parser.add_argument("--view", choices=VIEWS, action="append", help="only this one")
    parser.add_argument("--width", type=int, action="append")
    parser.add_argument("--theme", choices=THEMES, action="append")
    parser.add_argument("--docs", action="store_true", help="the pictures of the documents")
    parser.add_argument("--url", help="of a server that runs; else one is started")
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright  # only here: tests without it import this file

    arguments.folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        url = arguments.url
        if url is None:
            from support.bundled import bundled_engine
            from support.http_server import running_server

            # In a thread of its own: playwright keeps an event loop in this one.
            thread = stack.enter_context(ThreadPoolExecutor(1))
            running = running_server(bundled_engine(speculation="ngram"))
            url = thread.submit(running.__enter__).result().url
            stack.callback(lambda: thread.submit(running.__exit__, None, None, None).result())
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=shutil.which(CHROMIUM), args=FLAGS)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.on("pageerror", lambda error: print(f"error: {error}"))
        page.on("console", lambda line: line.type == "error" and print(f"console: {line.text}"))
        for name, address in prepared_pages(page, url, arguments.view or list(VIEWS)):
            if arguments.docs:
                if name in PICTURED:
                    take_for_docs(page, address, arguments.folder / f"{name}.webp")
                continue
            for width in arguments.width or WIDTHS:
                for theme in arguments.theme or THEMES:
                    show(page, address, width, theme)
                    path = arguments.folder / f"{name}-{width}-{theme}.png"
                    page.screenshot(path=path)
                    print(path)
        browser.close()


if __name__ == "__main__":
    main()
