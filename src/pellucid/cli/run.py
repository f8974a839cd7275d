"""`pellucid run`: one prompt, one answer."""

import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from pellucid.cli.generation import count_tokens, load, stream_text
from pellucid.cli.json_output import print_json, request_object
from pellucid.cli.options import (
    MAX_TOKENS,
    OUTPUT,
    Json,
    ModelOptions,
    PrefixCacheOptions,
    SamplingOptions,
    StopOptions,
)
from pellucid.cli.prompt import PromptArguments
from pellucid.cli.status import EXIT_FAILED, EXIT_INTERRUPTED
from pellucid.cli.summary import done_line
from pellucid.cli.terminal import note, write_text
from pellucid.event_bus import EventBus
from pellucid.event_recording import recording

EXIT_BY_FINISH_REASON = {"stop": 0, "length": 0, "error": EXIT_FAILED, "abort": EXIT_INTERRUPTED}


def run(
    arguments: PromptArguments,
    *,
    no_kv_cache: Annotated[
        bool,
        typer.Option(
            "--no-kv-cache", help="Compute the whole text again for every token: the naive loop."
        ),
    ] = False,
    max_tokens: Annotated[int, MAX_TOKENS] = 256,
    stop_options: StopOptions,
    sampling_options: SamplingOptions,
    model_options: ModelOptions,
    prefix_cache_options: PrefixCacheOptions,
    logprobs: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            rich_help_panel=OUTPUT,
            help="With --json: log-probabilities of each token and of the K likeliest.",
        ),
    ] = None,
    events: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=OUTPUT,
            help="Record every event, a JSON object a line: docs/events.md; explain reads it.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Go on from a prompt. stdout is the text alone; times and the reason it stopped go to stderr."""
    if logprobs is not None and not json:
        raise ValueError(f"--logprobs {logprobs}: is only shown with --json")
    prompt = arguments.read_prompt()
    knobs = {
        **model_options.knobs(),
        **prefix_cache_options.knobs(),
        "use_kv_cache": not no_kv_cache,
        "max_num_seqs": 1,  # one request: room for one context
    }
    given = {
        **sampling_options.given(),
        **stop_options.given(),
        "max_tokens": max_tokens,
        "logprobs": logprobs,
    }
    bus = EventBus(time.monotonic)
    with nullcontext() if events is None else recording(bus, events):
        llm, params = load(arguments.model, knobs, given, bus)
        if json:
            output = count_tokens(llm.engine, prompt, params, "generate")
            print_json(request_object(llm.engine, output, params))
        else:
            output = stream_text(llm.engine, prompt, params)
            if sys.stdout.isatty():
                write_text("\n")
    note(done_line(llm.engine, output, params))
    finish_reason = output.outputs[0].finish_reason
    assert finish_reason is not None
    raise typer.Exit(EXIT_BY_FINISH_REASON[finish_reason])
