"""Screenshots of every view at three widths in two themes, from a server with the bundled model.

python tests/page/screenshots.py [FOLDER] [--view NAME] [--url URL]
"""

import argparse
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import sync_playwright

from page.browser import CHROMIUM, FLAGS

VIEWS = ("generate", "timeline", "cache", "compare", "speculate", "serve", "plan", "learn")
WIDTHS = (1440, 900, 320)
THEMES = ("light", "dark")
GENERATE = """async () => {
  const model = (await pellucid.api.get("/v1/models")).data[0].id;
  const body = {model, prompt: "Once upon a time", max_tokens: 40, seed: 4, temperature: 0.8};
  await pellucid.api.post("/v1/completions", body);
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default="build/screenshots", type=Path)
    parser.add_argument("--view", choices=VIEWS, action="append", help="only this one")
    parser.add_argument("--width", type=int, choices=WIDTHS, action="append")
    parser.add_argument("--theme", choices=THEMES, action="append")
    parser.add_argument("--url", help="of a server that runs; else one is started")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        url = arguments.url
        if url is None:
            from support.bundled import bundled_engine
            from support.http_server import running_server

            # In a thread of its own: playwright keeps an event loop in this one.
            thread = stack.enter_context(ThreadPoolExecutor(1))
            running = running_server(bundled_engine())
            url = thread.submit(running.__enter__).result().url
            stack.callback(lambda: thread.submit(running.__exit__, None, None, None).result())
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=shutil.which(CHROMIUM), args=FLAGS)
        for theme in arguments.theme or THEMES:
            for width in arguments.width or WIDTHS:
                window = {"width": width, "height": 900 if width > 400 else 720}
                context = browser.new_context(viewport=window, color_scheme=theme)
                page = context.new_page()
                page.on("pageerror", lambda error: print(f"error: {error}"))
                page.on(
                    "console",
                    lambda line: (
                        print(f"{line.type}: {line.text}") if line.type == "error" else None
                    ),
                )
                page.goto(url)
                page.locator("main h2").first.wait_for()
                page.evaluate(GENERATE)
                page.wait_for_timeout(600)
                for view in arguments.view or VIEWS:
                    page.goto(f"{url}/#{view}")
                    page.wait_for_timeout(500)
                    path = arguments.folder / f"{view}-{width}-{theme}.png"
                    tall = page.evaluate("document.documentElement.scrollHeight")
                    page.set_viewport_size({"width": width, "height": max(tall, window["height"])})
                    page.screenshot(path=path)
                    page.set_viewport_size(window)
                    print(path)
                context.close()
        browser.close()


if __name__ == "__main__":
    main()
