"""`pellucid compare`: the same answer with and without the KV cache."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pellucid.cli.comparison import Arm, Comparison
from pellucid.cli.generation import count_tokens, load
from pellucid.cli.json_output import comparison_object, print_json
from pellucid.cli.model_and_prompt import ModelAndPrompt, PromptOptions
from pellucid.cli.options import (
    MAX_TOKENS,
    OUTPUT,
    IgnoreEos,
    Json,
    ModelOptions,
    SamplingOptions,
)
from pellucid.cli.summary import answer_facts, sampling
from pellucid.cli.terminal import EXIT_INTERRUPTED, note, note_facts, write_text
from pellucid.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pellucid.engine import LLMEngine
    from pellucid.prompts import Prompt

NUM_WARM_UP_TOKENS = 2


def compare(
    words: ModelAndPrompt,
    *,
    prompt_options: PromptOptions,
    max_tokens: Annotated[int, MAX_TOKENS] = 128,
    ignore_eos: IgnoreEos = False,
    sampling_options: SamplingOptions,
    model_options: ModelOptions,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png", rich_help_panel=OUTPUT, help="Also draw the plot into an image."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Run one prompt with and without the KV cache, and show what the cache saves.

    Both runs have the same weights, prompt, parameters and seed, and find nothing of each other.
    """
    from pellucid.cli.comparison_image import check_image_path, write_image
    from pellucid.cli.comparison_text import print_comparison
    from pellucid.engine import LLMEngine

    if plot is not None:
        check_image_path(plot)
    model, text = words.read()
    llm, params = load(
        model,
        {**model_options.knobs(), "max_num_seqs": 1, "enable_prefix_caching": False},
        {
            **sampling_options.given(),
            "max_tokens": max_tokens,
            "ignore_eos": ignore_eos,
            "logprobs": 0,  # of the chosen tokens, to compare
        },
    )
    prompt = prompt_options.prompt(llm, text, is_bundled=model is None)
    config = replace(llm.config, use_kv_cache=False)
    naive_engine = LLMEngine(config, llm.engine.model)  # the same weights

    cached = _run_arm("with KV cache", llm.engine, prompt, params)
    params = replace(params, seed=cached.output.seed)  # the one that was drawn, if none was given
    if cached.interrupted:
        note_facts("done", answer_facts(llm.engine, cached.output, params))
        raise typer.Exit(EXIT_INTERRUPTED)
    naive = _run_arm("without", naive_engine, prompt, params)

    comparison = Comparison(cached, naive)
    if json:
        print_json(comparison_object(comparison, (llm.engine, naive_engine), params))
    else:
        write_text(f"{prompt}{cached.output.outputs[0].text}\n\n")
        print_comparison(comparison)
    if plot is not None:
        write_image(comparison, plot)
        note(f"plot: {plot}")
    note(
        f"done: {len(cached.output.prompt_token_ids)} prompt tokens · {sampling(params, cached.output.seed)}"
    )
    raise typer.Exit(EXIT_INTERRUPTED if naive.interrupted else 0)


def _run_arm(label: str, engine: "LLMEngine", prompt: "Prompt", params: SamplingParams) -> Arm:
    # First calls allocate, and the first run would pay for both.
    warm_up = replace(params, max_tokens=NUM_WARM_UP_TOKENS)
    if count_tokens(engine, prompt, warm_up, "warm up").outputs[0].finish_reason == "abort":
        raise KeyboardInterrupt
    arm = Arm(label, engine.config.use_kv_cache, count_tokens(engine, prompt, params, label))
    completion = arm.output.outputs[0]
    if completion.finish_reason == "error":
        raise ValueError(f"{label}: {completion.stop_reason}")
    return arm
