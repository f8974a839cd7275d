"""Answers that one engine begins and another one goes on with."""

from copy import deepcopy
from typing import Any

from pellucid.engine import LLMEngine
from pellucid.inputs.prompts import Prompt
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.outputs import RequestOutput


def facts(output: RequestOutput) -> tuple[Any, ...]:
    """All that the caller of a request is told of its answers, but for times."""
    return output.seed, output.prompt_logprobs, output.outputs


def answers_so_far(
    engine: LLMEngine, prompt: Prompt, params: SamplingParams
) -> list[tuple[RequestOutput, list[str]]]:
    """A request before its first step and after each, and the texts that its deltas have brought until then; the last
    one is the whole answer."""
    output = engine.add_request(prompt, params)
    texts = [""] * len(output.outputs)
    found = [(deepcopy(output), [*texts])]
    while engine.has_unfinished_requests:
        for delta in engine.step():
            texts[delta.index] += delta.text
        found.append((deepcopy(output), [*texts]))
    return found


def resume(
    engine: LLMEngine, prompt: Prompt, params: SamplingParams, so_far: RequestOutput
) -> RequestOutput:
    """Queues a request that another engine has begun."""
    return engine.add_prepared(engine.prepare(prompt, params), resumes=so_far)


def check_every_cut(
    begins: LLMEngine, goes_on: LLMEngine, prompt: Prompt, params: SamplingParams
) -> RequestOutput:
    """Cuts an answer behind each of its steps. The second engine goes on with all of these at once; each becomes the
    whole answer."""
    *cuts, (whole, all_texts) = answers_so_far(begins, prompt, params)
    resumed = [resume(goes_on, prompt, params, so_far) for so_far, _ in cuts]
    texts = {output.request_id: before for output, (_, before) in zip(resumed, cuts, strict=True)}
    while goes_on.has_unfinished_requests:
        for delta in goes_on.step():
            texts[delta.request_id][delta.index] += delta.text
    for output in resumed:
        assert facts(output) == facts(whole)
        assert params.ranks or texts[output.request_id] == all_texts  # ranked ones are given whole
    return whole
