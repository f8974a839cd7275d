"""Records the runs of the lessons on the bundled model, for pages without an engine: traces/lessons.json.

python tests/page/record_lessons.py
"""

import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import sync_playwright

from page.browser import CHROMIUM, FLAGS, wait_until
from pellucid.observing.page_files import WEB_FOLDER
from support.bundled import bundled_engine
from support.http_server import running_server

STEPS = """async (module) => {
  const { STEPS } = await import(module);
  const recorded = {};
  for (const step of STEPS) {
    const result = await step.run(pellucid);
    const engine = pellucid.store.hello.model.name;
    recorded[step.id] = { when: new Date().toISOString(), engine, result };
  }
  return recorded;
}"""


def main() -> None:
    with ExitStack() as stack:
        # In a thread of its own: playwright keeps an event loop in this one.
        thread = stack.enter_context(ThreadPoolExecutor(1))
        running = running_server(bundled_engine(speculation="ngram"), model_names=("pellucid-5m",))
        url = thread.submit(running.__enter__).result().url
        stack.callback(lambda: thread.submit(running.__exit__, None, None, None).result())
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=shutil.which(CHROMIUM), args=FLAGS)
        page = browser.new_page()
        page.goto(url)
        page.locator("button.live.on").wait_for()
        wait_until(page, "pellucid.store.hello !== null")
        folder = page.locator('script[type="module"]').get_attribute("src").removesuffix("app.js")
        recorded = page.evaluate(STEPS, f"{folder}views/learn.js")
        browser.close()
    text = json.dumps(recorded, separators=(",", ":"), ensure_ascii=False)
    (WEB_FOLDER / "traces/lessons.json").write_text(text + "\n", encoding="utf-8")
    print(f"{len(text)} bytes")


if __name__ == "__main__":
    main()
