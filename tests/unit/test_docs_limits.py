"""Limits that the guides name are those of the program."""

from pathlib import Path

import pytest

from pellucid import async_engine
from pellucid.engine import request_maker, step_recorder
from pellucid.execution import block_directory, block_server, fetch_policy, prefix_store
from pellucid.inputs.config import PRIORITY_SECONDS
from pellucid.loading import gguf_tokenizer
from pellucid.memory import engine_plan
from pellucid.observing import event_feed
from pellucid.scheduling import recurrent_states, state_pool
from pellucid.server import fields, http_protocol, json_bounds
from pellucid.server.kv_events import event_log
from pellucid.server.page import compare_routes
from pellucid.speculation import draft_policy

DOCS = Path(__file__).parents[2] / "docs"
MIB = 1 << 20
FRACTIONS = {2: "half", 4: "a quarter", 16: "a sixteenth"}


@pytest.mark.parametrize(
    ("guide", "sentence"),
    [
        ("kv-cache", f"up to {engine_plan.MAX_SNAPSHOT_BYTES / MIB:g} MiB, for snapshots"),
        ("kv-cache", f"every {recurrent_states.SNAPSHOT_TOKENS:,} tokens"),
        ("kv-cache", f"more than {FRACTIONS[recurrent_states.SNAPSHOTS_SHARE]} of the slots"),
        ("kv-cache", f"at most {FRACTIONS[state_pool.OUTPUT_SHARE]} of the slots"),
        ("kv-cache", f"spare slots, up to {engine_plan.MAX_SPARE_BYTES / MIB:g} MiB"),
        ("kv-cache", f"{engine_plan.MAX_EXTRA_LOGITS_BYTES / MIB:g} MiB for further rows"),
        ("kv-cache", f"written {FRACTIONS[1 / block_directory._COUNTED_FRACTION]} of the bound"),
        ("kv-cache", {0.875: "until seven eighths of the"}[block_directory._KEPT_FRACTION]),
        ("kv-cache", f"takes no block for {prefix_store.MAX_DISK_SECONDS:g} s"),
        ("kv-cache", f"does not answer for {prefix_store.MAX_DISK_SECONDS:g} s"),
        ("scale", {1: "fails after a second"}[block_server.ANSWER_SECONDS]),
        ("scale", {1: "no call for one second"}[block_server.FIRST_PAUSE]),
        ("scale", {60: "up to a minute"}[block_server.LONGEST_PAUSE]),
        ("scale", {30: "again after half a minute"}[fetch_policy.TRIAL_SECONDS]),
        ("scheduling", f"`arrival_time + {PRIORITY_SECONDS:g} s * priority`"),
        ("server", f"its last {step_recorder.NUM_LAST_STEPS} steps"),
        ("server", f"after a reply, {http_protocol.LINGER_SECONDS:g} s for the rest"),
        ("server", f"that run or wait | {async_engine.DEFAULT_MAX_REQUESTS:,}, of one call"),
        ("server", f"{json_bounds.MAX_DEPTH} levels; {fields.MAX_FIELDS:,} fields"),
        ("server", f"still kept (up to {event_feed.DEFAULT_CAPACITY:,}"),
        ("scale", f"keeps {event_log.MAX_BATCHES:,} batches"),
        ("page-data", f"first {compare_routes.MAX_SECONDS_BEFORE_REPEATING:g} s"),
        ("speculation", f"{100 * draft_policy.MAX_LOSS_SHARE:g} % of the time since then"),
        ("gguf", f"at most {gguf_tokenizer._MAX_SCORED_CHARACTERS} characters"),
        ("engine", f"at most {request_maker.MAX_CACHE_SALT} characters"),
        ("scheduling", f"{request_maker.MIN_WEIGHT:g} to {request_maker.MAX_WEIGHT:g}"),
    ],
)
def test_a_limit(guide: str, sentence: str) -> None:
    assert sentence in " ".join((DOCS / f"{guide}.md").read_text(encoding="utf-8").split())
