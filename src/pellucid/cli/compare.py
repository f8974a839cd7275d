"""`pellucid compare`: the same answer with and without the KV cache."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from pellucid.cli.comparison import Arm, Comparison
from pellucid.cli.generation import count_tokens, load
from pellucid.cli.output.image_path import Plot, check_image_path
from pellucid.cli.output.json_output import comparison_object, print_json
from pellucid.cli.output.summary import answer_facts, formats, machine_name, sampling
from pellucid.cli.output.terminal import (
    BOLD,
    EXIT_INTERRUPTED,
    AnswerWriter,
    note,
    note_facts,
    wrapped,
)
from pellucid.cli.parsing import options
from pellucid.cli.parsing.model_and_prompt import ModelAndPrompt, PromptOptions
from pellucid.inputs.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pellucid.engine import LLMEngine
    from pellucid.inputs.prompts import Prompt
    from pellucid.outputs import RequestOutput

NUM_WARM_UP_TOKENS = 2


def compare(
    words: ModelAndPrompt,
    *,
    prompt_options: PromptOptions,
    max_tokens: Annotated[int, options.MAX_TOKENS] = 128,
    ignore_eos: options.IgnoreEos = False,
    sampling_options: options.SamplingOptions,
    model_options: options.ModelOptions,
    plot: Plot = None,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Show what the KV cache saves.

    Runs one prompt with and without the KV cache: same weights, same parameters, same seed. Neither run uses
    results of the other.
    """
    from pellucid.cli.comparison_report import print_comparison, write_image
    from pellucid.engine import LLMEngine

    check_image_path(plot)
    model, text = words.read()
    llm, params = load(
        model,
        {
            **words.settings(model_options),
            "max_num_seqs": 1,
            "enable_prefix_caching": False,
            "speculation": "off",
        },
        {
            **sampling_options.given(),
            "max_tokens": options.token_limit(max_tokens),
            "ignore_eos": ignore_eos,
            "logprobs": 0,  # of the chosen tokens, to compare
        },
        quiet=quiet,
    )
    prompt = prompt_options.prompt(llm, text, is_bundled=model is None)
    config = replace(llm.config, use_kv_cache=False)
    naive_engine = LLMEngine(config, llm.engine.model)  # the same weights

    cached = _run_arm("with KV cache", llm.engine, prompt, params, quiet)
    params = replace(params, seed=cached.output.seed)  # the one that was drawn, if none was given
    if cached.interrupted:
        note_facts("done", answer_facts(llm.engine, cached.output, params))
        raise typer.Exit(EXIT_INTERRUPTED)
    naive = _run_arm("without", naive_engine, prompt, params, quiet)

    comparison = Comparison(cached, naive)
    subject = f"{formats(llm.engine.model.name, config)}, on {machine_name()}"
    if json:
        print_json(comparison_object(comparison, (llm.engine, naive_engine), params))
    else:
        _write_answer(llm.engine, prompt, cached.output)
        print_comparison(comparison, subject)
    if plot is not None:
        write_image(comparison, subject, plot)
    if not quiet:
        if plot is not None:
            note(f"plot: {plot}")
        num_tokens = len(cached.output.prompt_token_ids)
        note_facts("done", [f"{num_tokens} prompt tokens", sampling(params, cached.output.seed)])
    raise typer.Exit(EXIT_INTERRUPTED if naive.interrupted else 0)


def _write_answer(engine: "LLMEngine", prompt: "Prompt", output: "RequestOutput") -> None:
    """Writes prompt and answer. What --ignore-eos made after the end of the text is another text: it is
    left out, and counted."""
    ids, text = output.outputs[0].token_ids, output.outputs[0].text
    end_ids = engine.encode(prompt).end_token_ids
    end = next((index for index, token_id in enumerate(ids[:-1]) if token_id in end_ids), None)
    if end is not None:
        decode = engine.tokenizer.decode
        before = decode(output.prompt_token_ids)
        text = decode([*output.prompt_token_ids, *ids[:end]])[len(before) :]
    writer = AnswerWriter()
    if isinstance(prompt, str):
        writer.write(prompt, BOLD)
    writer.write(f"{text}\n\n")
    if end is not None:
        print(
            wrapped(
                f"(The model ended its text after {end} tokens. --ignore-eos made it continue to"
                f" {len(ids)}; what follows the end is not shown.)"
            )
            + "\n"
        )


def _run_arm(
    label: str, engine: "LLMEngine", prompt: "Prompt", params: SamplingParams, quiet: bool
) -> Arm:
    # First calls allocate, and the first run would pay for both.
    warm_up = replace(params, max_tokens=NUM_WARM_UP_TOKENS)
    if count_tokens(engine, prompt, warm_up, "warm up", quiet).outputs[0].finish_reason == "abort":
        raise KeyboardInterrupt
    arm = Arm(label, engine.config.use_kv_cache, count_tokens(engine, prompt, params, label, quiet))
    completion = arm.output.outputs[0]
    if completion.finish_reason == "error":
        raise ValueError(f"{label}: {completion.stop_reason}")
    return arm
