"""Writes the site that we would publish: the page with runs of SmolLM2 135M, as a folder and as one file.

    python tests/page/record_site.py DIR MODELS      `make site`; MODELS is the folder of tools/fetch_models.py

DIR gets `index.html` with its files, and `pellucid.html`. The trace, what its tokens read, the comparisons, the drafts,
the loads and the lessons are all of SmolLM2. Needs Chromium, in which the lessons run.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from fetch_models import fetch
from record_demo_trace import record as record_trace

from page.record_answers import ASKED, SEATS, answers, as_file
from page.record_lessons import LESSONS, OF_BUNDLED, OF_SMOLLM2
from page.record_lessons import record as record_lessons
from pellucid.engine import LLMEngine
from pellucid.facts.model_config import ModelConfig
from pellucid.inputs.config import EngineConfig
from pellucid.observing.event_recording import open_recording
from pellucid.observing.page_bundle import export_file
from pellucid.observing.page_export import export_page
from pellucid.observing.page_files import page_files
from pellucid.shapes import SHAPES

NAME = "SmolLM2 135M"
MAX_BYTES = 1_500_000  # of the one file
MAX_NEW_TOKENS = 64  # of a comparison: without a cache a larger model takes its time
MAX_MODEL_LEN = 512


def write_site(
    directory: Path,
    name: str,
    engine: LLMEngine,
    trace: Path,
    lessons: dict[str, Any],
    asked: list[tuple[str, Any]],
    shapes: dict[str, ModelConfig],
) -> Path:
    """Writes both forms of the site.

    Args:
        name: as people know the model.
        trace: a recording of the engine's model.
        lessons: recorded runs by step; the other arguments are those of `answers`.

    Returns:
        The one file.
    """
    recorded = {
        "traces/answers.json.gz": as_file(answers(name, engine, trace, asked, shapes)),
        "traces/lessons.json": json.dumps(lessons, ensure_ascii=False).encode(),
    }
    files = page_files().with_bodies(recorded)
    export_page(directory, trace, files)
    whole = directory / "pellucid.html"
    export_file(whole, trace, files)
    size = whole.stat().st_size
    assert size <= MAX_BYTES, f"{whole}: {size} bytes"
    return whole


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("models", type=Path, metavar="MODELS")
    args = parser.parse_args()
    model = str(fetch(args.models, "smollm2"))
    engine = LLMEngine.from_config(
        EngineConfig(
            model=model, max_model_len=MAX_MODEL_LEN, max_num_seqs=SEATS, speculation="ngram"
        )
    )
    lessons = json.loads(LESSONS.read_text(encoding="utf-8"))
    lessons |= record_lessons(engine, "smollm2-135m-instruct", [*OF_BUNDLED, *OF_SMOLLM2])
    asked = [
        (path, {**body, "max_tokens": MAX_NEW_TOKENS} if "max_tokens" in body else body)
        for path, body in ASKED
        if body.get("drafter") != "draft"  # there is no smaller model with its tokens
    ]
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "smollm2.jsonl.gz")
        with open_recording(trace) as file:
            file.writelines(record_trace(model))
        whole = write_site(args.directory, NAME, engine, trace, lessons, asked, dict(SHAPES))
    print(f"{args.directory / 'index.html'}, and {whole}: {whole.stat().st_size} bytes")


if __name__ == "__main__":
    main()
