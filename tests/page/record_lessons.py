"""Records the runs of the lessons, for pages without an engine: traces/lessons.json.

    python tests/page/record_lessons.py MODELS [STEP...]       all steps, or some; others stay as they are

Of the bundled model; of SmolLM2 135M where a word's meaning matters. MODELS is the folder of
`python tools/fetch_models.py MODELS smollm2`.
"""

import argparse
import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from fetch_models import fetch
from playwright.sync_api import sync_playwright

from page.browser import CHROMIUM, FLAGS, wait_until
from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from pellucid.observing.page_files import WEB_FOLDER
from support.bundled import bundled_engine
from support.http_server import running_server

LESSONS = WEB_FOLDER / "traces/lessons.json"
OF_BUNDLED = (
    "one-token",
    "keys-values",
    "with-without",
    "memory",
    "speculation",
    "batching",
    "challenge",
)
OF_SMOLLM2 = ("choosing", "attention")
STEPS = """async ({ module, wanted }) => {
  const { STEPS } = await import(module);
  const recorded = {};
  for (const step of STEPS.filter(({ id }) => wanted.includes(id))) {
    const result = await step.run(pellucid);
    const engine = pellucid.store.hello.model.name.replace(/-q4_1\\.gguf$/, "");
    recorded[step.id] = { when: new Date().toISOString(), engine, result };
  }
  return recorded;
}"""


def record(engine: LLMEngine, name: str, steps: list[str]) -> Any:
    """The runs of steps, by their ids."""
    with ExitStack() as stack:
        # In a thread of its own: playwright keeps an event loop in this one.
        thread = stack.enter_context(ThreadPoolExecutor(1))
        running = running_server(engine, model_names=(name,))
        url = thread.submit(running.__enter__).result().url
        stack.callback(lambda: thread.submit(running.__exit__, None, None, None).result())
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=shutil.which(CHROMIUM), args=FLAGS)
        page = browser.new_page()
        page.goto(url)
        page.locator("button.live.on").wait_for()
        wait_until(page, "pellucid.store.hello !== null")
        folder = page.locator('script[type="module"]').get_attribute("src").removesuffix("app.js")
        wanted = {"module": f"{folder}views/learn.js", "wanted": steps}
        recorded = page.evaluate(STEPS, wanted)
        browser.close()
    return recorded


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", type=Path, metavar="MODELS")
    every = (*OF_BUNDLED, *OF_SMOLLM2)
    parser.add_argument("steps", nargs="*", metavar="STEP", help=", ".join(every))
    args = parser.parse_args()
    wanted = args.steps or every
    if unknown := set(wanted).difference(every):
        parser.error(f"no step: {', '.join(sorted(unknown))}")
    recorded = json.loads(LESSONS.read_text(encoding="utf-8"))
    if own := [step for step in OF_BUNDLED if step in wanted]:
        recorded |= record(bundled_engine(speculation="ngram"), "pellucid-5m", own)
    if own := [step for step in OF_SMOLLM2 if step in wanted]:
        model = str(fetch(args.models, "smollm2"))
        engine = LLMEngine.from_config(EngineConfig(model=model, max_model_len=512, max_num_seqs=1))
        recorded |= record(engine, "smollm2-135m-instruct", own)
    text = json.dumps(recorded, separators=(",", ":"), ensure_ascii=False)
    LESSONS.write_text(text + "\n", encoding="utf-8")
    print(f"{len(text)} bytes")


if __name__ == "__main__":
    main()
