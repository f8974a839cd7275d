"""The crash report: what the engine did in its last steps before it failed, in a file, without prompts and answers."""

import json
import logging
import os
import platform
import tempfile
import traceback
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

from pellucid.engine.llm_engine import LLMEngine

VERSION = 1
MAX_MESSAGE = 300  # characters of what the error says

_log = logging.getLogger(__name__)


def write_crash_report(engine: LLMEngine, error: BaseException) -> None:
    """Writes a report into the directory for temporary files, readable by the owner alone, and logs where, or why
    it could not be written.
    """
    try:
        name = f"pellucid-crash-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-"
        descriptor, path = tempfile.mkstemp(".json", name)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(crash_facts(engine, error), file, indent=1)
    except Exception:
        _log.exception("the engine failed with %r, and no crash report could be written", error)
    else:
        name = type(error).__name__
        _log.critical("the engine failed with %s; its last steps are in %s", name, path)


def crash_facts(engine: LLMEngine, error: BaseException) -> dict[str, Any]:
    """The report: where the error was raised, the last steps, the requests and the blocks, by numbers and ids
    alone."""
    facts: dict[str, Any] = {
        "report": VERSION,
        "time": datetime.now(timezone.utc).isoformat(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "error": type(error).__name__,
        "message": str(error)[:MAX_MESSAGE],
        "raised_at": [
            f"{frame.filename}:{frame.lineno} {frame.name}"
            for frame in traceback.extract_tb(error.__traceback__)
        ],
        "architecture": engine.model_config.architecture,
        "max_num_seqs": engine.config.max_num_seqs,
        "max_num_batched_tokens": engine.config.max_num_batched_tokens,
        "block_size": engine.config.block_size,
        "steps": [
            {
                "started": times.started,
                "scheduled": times.scheduled,
                "executed": times.executed,
                "sampled": times.sampled,
                "requests": [
                    {
                        "id": work.request_id,
                        "start": work.start,
                        "end": work.end,
                        "recomputed": work.num_recomputed,
                        "logits": work.num_logits,
                    }
                    for work in works
                ],
            }
            for times, works in engine.last_steps
        ],
    }
    with suppress(Exception):  # the engine's own state may be what is broken
        usage = engine.kv_cache_usage()
        facts["blocks"] = {
            "all": usage.num_blocks,
            "used": usage.num_used_blocks,
            "cached": usage.num_cached_blocks,
        }
        facts["running"] = [request.request_id for request in engine.scheduler.running]
        facts["waiting"] = len(engine.scheduler.waiting)
    return facts
