"""`pellucid run`: one prompt, one answer."""

import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from pellucid.beam_search_params import RequestParams
from pellucid.cli.beams import BeamOptions, beam_search_params
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
from pellucid.cli.status import EXIT_BY_FINISH_REASON
from pellucid.cli.summary import done_line
from pellucid.cli.terminal import note, write_text
from pellucid.event_bus import EventBus
from pellucid.event_recording import recording


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
    beam_options: BeamOptions,
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
        "max_num_seqs": beam_options.beam_width or 1,  # one request: room for one context
    }
    given = {
        **sampling_options.given(),
        **stop_options.given(),
        "max_tokens": max_tokens,
        "logprobs": logprobs,
    }
    search = beam_options.search(given)
    bus = EventBus(time.monotonic)
    with nullcontext() if events is None else recording(bus, events):
        llm, sampling_params = load(arguments.model, knobs, given if search is None else {}, bus)
        params: RequestParams = sampling_params
        if search is not None:
            params = beam_search_params(search, sampling_params)
        if json:
            output = count_tokens(llm.engine, prompt, params, "generate")
            print_json(request_object(llm.engine, output, params))
        elif search is not None:  # there is no text before the end
            output = count_tokens(llm.engine, prompt, params, "search")
            write_text(output.outputs[0].text)
        else:
            output = stream_text(llm.engine, prompt, sampling_params)
        if not json and sys.stdout.isatty():
            write_text("\n")
    note(done_line(llm.engine, output, params))
    finish_reason = output.outputs[0].finish_reason
    assert finish_reason is not None
    raise typer.Exit(EXIT_BY_FINISH_REASON[finish_reason])
