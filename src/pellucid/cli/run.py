"""`pellucid run`: one prompt, one completion."""

import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from pellucid.cli.generation import count_answer, count_tokens, load, stream_answer, stream_text
from pellucid.cli.output.json_output import print_json, request_object
from pellucid.cli.output.summary import answer_facts, brief_facts
from pellucid.cli.output.terminal import (
    BOLD,
    EXIT_BY_FINISH_REASON,
    AnswerWriter,
    note_all,
    note_facts,
)
from pellucid.cli.parsing import options
from pellucid.cli.parsing.model_and_prompt import ModelAndPrompt, PromptOptions
from pellucid.cli.parsing.panels import MODEL, OUTPUT
from pellucid.inputs.beam_search_params import RequestParams
from pellucid.inputs.prompts import ChatPrompt
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.observing.event_bus import EventBus
from pellucid.observing.event_recording import recording

MAX_TOKENS_OF_RAW_TEXT = 256  # a text need not end


def run(
    words: ModelAndPrompt,
    *,
    prompt_options: PromptOptions,
    max_tokens: Annotated[int | None, options.MAX_TOKENS] = None,
    answer_options: options.AnswerOptions,
    beam_options: options.BeamOptions,
    model_options: options.ModelOptions,
    speculation_options: options.SpeculationOptions,
    no_kv_cache: bool = MODEL.flag(
        "Compute the whole text again for each token, as a naive loop does.", "--no-kv-cache"
    ),
    prefix_cache_options: options.PrefixCacheOptions,
    stages_options: options.StagesOptions,
    logprobs: int | None = OUTPUT.option(
        "K", "With --json: log-probabilities of each token and of the K likeliest tokens."
    ),
    events: Path | None = OUTPUT.option(
        "FILE", "Record every event, one JSON object a line, for pellucid explain --events."
    ),
    verbose: options.Verbose = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Answer one prompt.

    A model with a chat template answers the prompt; --raw continues it as text instead. The bundled model
    answers questions and texts of one or two words; other text it continues, unless --chat is given. stdout
    gets the text alone; speed, the reason why the text ends and what repeats it go to stderr, --verbose adds
    more.
    """
    if logprobs is not None and not json:
        raise ValueError(f"--logprobs {logprobs}: is only shown with --json")
    model, text = words.read()
    settings = {
        **words.settings(model_options, prefix_cache_options, speculation_options, stages_options),
        "use_kv_cache": not no_kv_cache,
        "max_num_seqs": beam_options.beam_width or 1,  # one request: room for one context
    }
    given = {
        **answer_options.given(),
        "max_tokens": options.token_limit(max_tokens),
        "logprobs": logprobs,
    }
    search = beam_options.search(given)
    bus = EventBus(time.monotonic)
    with nullcontext() if events is None else recording(bus, events):
        llm, sampling_params = load(
            model,
            settings,
            given if search is None else {},
            bus,
            quiet=quiet,
            shows_memory=verbose,
        )
        prompt = prompt_options.prompt(llm, text, is_bundled=model is None)
        if not quiet and prompt_options.raw is None and not llm.tokenizer.has_chat_template:
            note_all([f"{llm.engine.model.name} has no chat template: it continues the prompt"])
        params: RequestParams = sampling_params
        if search is not None:
            params = options.beam_search_params(search, sampling_params)
        if max_tokens is None and isinstance(prompt, str):
            params = replace(params, max_tokens=MAX_TOKENS_OF_RAW_TEXT)
        if json:
            output, parts = count_answer(llm, prompt, params, "generate", quiet)
            print_json({**request_object(llm.engine, output, params), **parts})
        else:
            writer = AnswerWriter()
            if isinstance(prompt, str) and sys.stdout.isatty():
                writer.write(prompt, BOLD)
            if isinstance(params, SamplingParams):
                if isinstance(prompt, ChatPrompt):
                    output, _ = stream_answer(llm, prompt, params, writer, quiet)
                else:
                    output = stream_text(llm.engine, prompt, params, writer.write, quiet)
            else:  # a search has no text before its end
                output = count_tokens(llm.engine, prompt, params, "search", quiet)
                writer.write(output.outputs[0].text)
            writer.end_line()
    if not quiet:
        facts = answer_facts if verbose else brief_facts
        note_facts("done", facts(llm.engine, output, params))
    finish_reason = output.outputs[0].finish_reason
    assert finish_reason is not None
    raise typer.Exit(EXIT_BY_FINISH_REASON[finish_reason])
