"""`pellucid explain`: shows where one request's time went."""

from pathlib import Path
from typing import Annotated

import typer

from pellucid.cli.explanation import Event, Explanation, explain_request
from pellucid.cli.generation import count_tokens, load
from pellucid.cli.output.json_output import print_json
from pellucid.cli.output.summary import answer_facts
from pellucid.cli.output.terminal import EXIT_BY_FINISH_REASON, note_facts
from pellucid.cli.parsing import options
from pellucid.cli.parsing.model_and_prompt import ModelAndPrompt, PromptOptions
from pellucid.cli.parsing.panels import Panel
from pellucid.progress import progress

RECORDING = Panel("Recording")


def explain(
    words: ModelAndPrompt,
    *,
    prompt_options: PromptOptions,
    max_tokens: Annotated[int, options.MAX_TOKENS] = 64,
    answer_options: options.AnswerOptions,
    model_options: options.ModelOptions,
    events: Path | None = RECORDING.option("FILE", "Recording that pellucid run --events wrote."),
    request: str | None = RECORDING.option(
        "ID", "The request of the recording to explain.", show_default="the only one"
    ),
    json: options.Json = False,
) -> None:
    """Show where a request's time went.

    Runs a prompt, or reads a recording of run --events. Shows the time of each part, what limited the
    steps on this machine, what the prefix cache had, and which requests this one waited for.
    """
    from pellucid.cli.explanation_report import print_explanation

    status = 0
    if events is not None:
        from pellucid.observing.event_recording import read_recording

        if words.typed() != (None, None):
            raise ValueError(f"--events {events}: is a recording; it takes no prompt")
        explanation = explain_request(read_recording(events), request)
    else:
        if request is not None:
            raise ValueError(f"--request {request}: needs --events FILE")
        given = {**answer_options.given(), "max_tokens": options.token_limit(max_tokens)}
        explanation, finish_reason = _from_run(words, prompt_options, model_options, given)
        status = EXIT_BY_FINISH_REASON[finish_reason]
    if json:
        print_json(explanation.as_dict())
    else:
        print_explanation(explanation)
    raise typer.Exit(status)


def _from_run(
    words: ModelAndPrompt,
    prompt_options: PromptOptions,
    model_options: options.ModelOptions,
    given: dict[str, object],
) -> tuple[Explanation, str]:
    """What happened, and how it ended."""
    model, text = words.read()
    llm, params = load(model, {**words.settings(model_options), "max_num_seqs": 1}, given)
    prompt = prompt_options.prompt(llm, text, is_bundled=model is None)

    from pellucid.benchmark.ceilings import measure_ceilings
    from pellucid.engine import LLMEngine
    from pellucid.observing.events import Level

    with progress("measure this machine", lambda done, total, elapsed: f"{elapsed:.0f} s"):
        ceilings = measure_ceilings(llm.config, llm.engine.model)
    engine = LLMEngine(llm.config, llm.engine.model, ceilings=ceilings)  # the same weights
    heard: list[Event] = []
    engine.events.subscribe(lambda record: heard.append(record.as_dict()), Level.STEP)
    output = count_tokens(engine, prompt, params, "generate")
    note_facts("done", answer_facts(engine, output, params))
    finish_reason = output.outputs[0].finish_reason
    assert finish_reason is not None
    return explain_request(heard, f"{output.request_id}/0"), finish_reason
