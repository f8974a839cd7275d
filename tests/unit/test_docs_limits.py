"""Limits that the guides name are those of the program."""

from pathlib import Path

import pytest

from pellucid import async_engine
from pellucid.backends.cpu import thread_limiter
from pellucid.engine import request_maker, step_recorder
from pellucid.execution import block_directory, block_server, fetch_policy, prefix_store
from pellucid.inputs.config import PRIORITY_SECONDS
from pellucid.loading import gguf_tokenizer, json_file
from pellucid.memory import engine_plan
from pellucid.observing import event_feed, ledger
from pellucid.scheduling import recurrent_states, scheduling_events, state_pool
from pellucid.server import (
    body_memory,
    fields,
    generation,
    http_protocol,
    json_bounds,
    request_records,
)
from pellucid.server.config import Limits, ServerConfig
from pellucid.server.kv_events import event_log
from pellucid.server.page import compare_routes, load_routes
from pellucid.server.page.fields import MAX_REQUESTS
from pellucid.server.protocols.openai_responses_api import kept_items
from pellucid.speculation import draft_policy

DOCS = Path(__file__).parents[2] / "docs"
KIB, MIB = 1 << 10, 1 << 20
LIMITS, (COMMAS, QUOTES, OBJECTS, LISTS) = Limits(), json_bounds.MOST.values()
MINUTES = {120: "two minutes", 300: "five minutes"}
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
        ("deployment", f"keepalive every {ServerConfig().keepalive_seconds:g} seconds"),
        ("scheduling", f"`arrival_time + {PRIORITY_SECONDS:g} s * priority`"),
        ("server", f"its last {step_recorder.NUM_LAST_STEPS} steps"),
        ("server", f"after a reply, {http_protocol.LINGER_SECONDS:g} s for the rest"),
        ("server", f"that run or wait | {async_engine.DEFAULT_MAX_REQUESTS:,}, of one call"),
        ("server", f"{LIMITS.max_connections:,}, of one address {LIMITS.max_connections_per_client:,}"),
        ("server", f"| {LIMITS.max_unfinished_completions:,}, of one call {LIMITS.max_completions};"),
        ("server", f"{LIMITS.max_header_bytes / KIB:g} KiB, {LIMITS.header_seconds:g} s from"),
        ("server", f"{LIMITS.max_body_bytes / MIB:g} MiB, {LIMITS.body_seconds:g} s; after"),
        ("server", f"| {LIMITS.max_held_body_bytes / MIB:g} MiB in all, of one caller"),
        ("server", f"caller {FRACTIONS[1 / body_memory.OWNER_SHARE]}; the first {body_memory.SMALL / KIB:g} KiB"),
        ("server", f"| {COMMAS:,} commas, {QUOTES:,} quotes, {OBJECTS:,} objects"),
        ("server", f"context; {LIMITS.max_waiting_texts} wait, {['', 'one', 'two'][LIMITS.text_workers]} are"),
        ("server", f"something of it every {LIMITS.write_seconds:g} s"),
        ("server", f"| readers of `/v1/events` | {LIMITS.max_event_readers} |"),
        ("server", f"| {LIMITS.max_waiting_looks} wait, one is computed"),
        ("server", f"Bodies above {generation.MAX_READ_IN_PLACE / KIB:g} KiB are read on a thread"),
        ("server", f"no step has ended for {MINUTES[ServerConfig().stall_seconds]}"),
        ("server", f"remembers up to {request_records.MAX_RECORDS:,} of each key"),
        ("server", f"replies to the same key, up to {kept_items.MAX_BYTES / MIB:g} MiB"),
        ("models", f"limited to {json_file._MAX_BYTES / MIB:g} MiB and {json_file._MAX_CONTAINERS:,} lists"),
        ("page-data", f"and ends it after {MINUTES[compare_routes.MAX_SECONDS]} with"),
        ("page-data", f"at most {MAX_REQUESTS} requests and {MINUTES[load_routes.MAX_SECONDS]}"),
        ("page-data", f"tokens read, at most {compare_routes.MAX_READ_TOKENS};"),
        ("server", {OBJECTS: "objects and as many lists"}[LISTS]),
        ("server", f"{json_bounds.MAX_DEPTH} levels; {fields.MAX_FIELDS:,} fields"),
        ("server", f"still kept (up to {event_feed.DEFAULT_CAPACITY:,}"),
        ("scale", f"keeps {event_log.MAX_BATCHES:,} batches"),
        ("page-data", f"first {compare_routes.MAX_SECONDS_BEFORE_REPEATING:g} s"),
        ("speculation", f"{100 * draft_policy.MAX_LOSS_SHARE:g} % of the time since then"),
        ("gguf", f"at most {gguf_tokenizer._MAX_SCORED_CHARACTERS} characters"),
        ("engine", f"at most {request_maker.MAX_CACHE_SALT} characters"),
        ("events", {0.5: "twice a second while it steps"}[scheduling_events.STAT_SECONDS]),
        ("events", {8: "what it needs, at most eight;"}[scheduling_events.MAX_NAMED]),
        ("events", {3: "of up to three that were running"}[ledger.MAX_NAMED]),
        ("engine", {0.5: "twice a second"}[thread_limiter.SECONDS_BETWEEN_MEASUREMENTS]),
        ("engine", {0.5: "less than half a core"}[thread_limiter.OTHERS_SHARE]),
        ("scheduling", f"{request_maker.MIN_WEIGHT:g} to {request_maker.MAX_WEIGHT:g}"),
    ],
)  # fmt: skip
def test_a_limit(guide: str, sentence: str) -> None:
    assert sentence in " ".join((DOCS / f"{guide}.md").read_text(encoding="utf-8").split())
