"""Runs one request of the command line: loads the model, streams the completion, handles Ctrl-C."""

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING, Any

from pellucid.cli.output.summary import note_memory
from pellucid.cli.output.terminal import DIM, AnswerWriter, note_all
from pellucid.cli.output.units import describe_bytes, describe_tokens
from pellucid.inputs.beam_search_params import RequestParams
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.progress import progress

if TYPE_CHECKING:  # these import numpy, and --help must not wait for it
    from pellucid.engine import LLMEngine
    from pellucid.inputs.prompts import ChatPrompt, Prompt
    from pellucid.llm import LLM
    from pellucid.observing.event_bus import EventBus
    from pellucid.outputs import RequestOutput
    from pellucid.text.responses.deltas import ResponseDelta


def load(
    model: str | None,
    settings: Mapping[str, Any],
    given: Mapping[str, Any],
    bus: "EventBus | None" = None,
    *,
    quiet: bool = False,
    shows_memory: bool = True,
) -> "tuple[LLM, SamplingParams]":
    """Loads a model, and shows the progress, what was left out of its files, and the memory plan.

    Args:
        model: as `EngineConfig.model`.
        settings: other fields of `EngineConfig`.
        given: fields of `SamplingParams`; fields left out take the model's own defaults.
        shows_memory: whether the memory plan is.

    Raises:
        ValueError: a setting, a parameter or the model cannot be used.
    """
    # A wrong parameter or setting is refused before anyone waits for imports and weights.
    SamplingParams(**given)
    EngineConfig(model=model, **settings)
    with progress("load", describe_bytes, quiet=quiet) as show:
        from pellucid.llm import (
            LLM,  # the first time, this takes as long as a small model's weights
        )

        notes: list[str] = []
        llm = LLM(model, on_progress=show, bus=bus, on_note=notes.append, **settings)
    if not quiet:
        note_all(notes)
    if shows_memory and not quiet:
        note_memory(llm.engine.plan)
    return llm, replace(llm.get_default_sampling_params(), **given)


@dataclass
class Interrupt:
    requested: bool = False


@contextmanager
def noting_interrupt() -> Iterator[Interrupt]:
    """Records the first Ctrl-C instead of raising, so that the current step ends and the engine stays usable.
    A second one is a KeyboardInterrupt."""
    interrupt = Interrupt()

    def note_it(signum: int, frame: FrameType | None) -> None:
        if interrupt.requested:
            raise KeyboardInterrupt
        interrupt.requested = True

    previous = signal.signal(signal.SIGINT, note_it)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, previous)


def run_request(
    engine: "LLMEngine",
    prompt: "Prompt",
    params: RequestParams,
    on_step: "Callable[[RequestOutput], None]",
) -> "RequestOutput":
    """Runs one request to its end, or to Ctrl-C: then its finish_reason is "abort".

    Args:
        on_step: called with the output so far after each step, and once more at the end.
    """
    output = engine.add_request(prompt, params)
    try:
        with noting_interrupt() as interrupt:
            while not output.finished and not interrupt.requested:
                engine.step()
                on_step(output)
    finally:
        engine.abort(output.request_id)
    on_step(output)
    return output


def stream_text(
    engine: "LLMEngine",
    prompt: "Prompt",
    params: SamplingParams,
    write: Callable[[str], None],
    quiet: bool = False,
) -> "RequestOutput":
    """Runs one request and writes its text as it is made; if quiet, without the progress of the prefill."""
    num_written = 0
    with ExitStack() as before_text:
        show = before_text.enter_context(progress("prefill", describe_tokens, quiet=quiet))

        def on_step(output: "RequestOutput") -> None:
            nonlocal num_written
            if not output.metrics.token_times and not output.finished:
                num_computed = output.num_cached_tokens + output.metrics.num_processed_tokens
                show(num_computed, len(output.prompt_token_ids))
                return
            before_text.close()
            text = output.outputs[0].text
            write(text[num_written:])
            num_written = len(text)

        return run_request(engine, prompt, params, on_step)


def stream_answer(
    llm: "LLM",
    prompt: "ChatPrompt",
    params: SamplingParams,
    writer: AnswerWriter,
    quiet: bool = False,
) -> "tuple[RequestOutput, str]":
    """Answers a conversation and writes the answer as it is made. Reasoning is dimmed on a terminal, and
    left out elsewhere.

    Returns:
        The output, and the answer without the reasoning.
    """
    from pellucid.text.responses.deltas import ContentText, ReasoningText

    response_format = llm.tokenizer.response_format
    params = replace(params, skip_special_tokens=response_format.skip_special_tokens)
    parser = response_format.parser(llm.tokenizer.render_chat(prompt))
    content: list[str] = []
    has_reasoned = False

    def show(deltas: "list[ResponseDelta]") -> None:
        nonlocal has_reasoned
        for delta in deltas:
            if isinstance(delta, ReasoningText) and writer.is_live:
                writer.write(delta.text, DIM)
                has_reasoned = True
            elif isinstance(delta, ContentText):
                if has_reasoned and not content:
                    writer.write("\n\n")
                content.append(delta.text)
                writer.write(delta.text)

    output = stream_text(llm.engine, prompt, params, lambda text: show(parser.push(text)), quiet)
    show(parser.flush())
    return output, "".join(content)


def count_tokens(
    engine: "LLMEngine",
    prompt: "Prompt",
    params: RequestParams,
    label: str,
    quiet: bool = False,
) -> "RequestOutput":
    """Runs one request and shows only how many of its tokens are there."""
    limit = params.max_tokens if isinstance(params.max_tokens, int) else 0
    with progress(label, describe_tokens, quiet=quiet) as show:
        return run_request(
            engine,
            prompt,
            params,
            lambda output: show(len(output.metrics.token_times), limit),
        )


def count_answer(
    llm: "LLM", prompt: "Prompt", params: RequestParams, label: str, quiet: bool = False
) -> "tuple[RequestOutput, dict[str, str]]":
    """As `count_tokens`; of a conversation also the answer's `content` and `reasoning`."""
    from pellucid.inputs.prompts import ChatPrompt
    from pellucid.text.responses.deltas import ContentText, ReasoningText

    if not isinstance(prompt, ChatPrompt):
        return count_tokens(llm.engine, prompt, params, label, quiet), {}
    response_format = llm.tokenizer.response_format
    params = replace(params, skip_special_tokens=response_format.skip_special_tokens)
    output = count_tokens(llm.engine, prompt, params, label, quiet)
    parser = response_format.parser(llm.tokenizer.render_chat(prompt))
    deltas = [*parser.push(output.outputs[0].text), *parser.flush()]
    return output, {
        "content": "".join(each.text for each in deltas if isinstance(each, ContentText)),
        "reasoning": "".join(each.text for each in deltas if isinstance(each, ReasoningText)),
    }
