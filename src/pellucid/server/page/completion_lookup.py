"""Finds an unfinished or remembered completion by its name."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from pellucid.inputs.prompts import EncodedPrompt
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.outputs import RequestOutput
from pellucid.server.api_keys import Caller
from pellucid.server.completion_id import CompletionId
from pellucid.server.errors import ApiError
from pellucid.server.generation import GenerationService
from pellucid.server.request_records import CallRecord


@dataclass(frozen=True)
class RememberedCompletion:
    """A completion that is unfinished, or that the server remembers.

    Attributes:
        id: its name.
        prompt_token_ids, output_token_ids: so far.
    """

    id: CompletionId
    record: CallRecord
    seed: int
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]

    @property
    def index(self) -> int:
        """Which of its prompt's completions it is."""
        return self.id.index or 0

    @property
    def params(self) -> SamplingParams:
        assert self.record.params is not None
        return self.record.params

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    def tokens(self, end: int) -> list[int]:
        """The first `end` tokens of prompt and output."""
        num_outputs = max(0, end - len(self.prompt_token_ids))
        return [*self.prompt_token_ids[:end], *self.output_token_ids[:num_outputs]]

    def prompt(self, end: int) -> EncodedPrompt:
        """The prompt in the engine's form, or its first `end` tokens if it is longer."""
        prompt = self.record.prompts[self.id.prompt_index]
        token_ids = tuple(self.prompt_token_ids[:end])
        return EncodedPrompt(None, prompt.is_chat, token_ids, prompt.end_token_ids, 0.0, 0.0)


def find_completion(service: GenerationService, caller: Caller, name: str) -> RememberedCompletion:
    """An unfinished or remembered completion.

    Args:
        caller: who asks; completions of other callers are not found.
        name: the engine's, or the id of the reply for its first completion.

    Raises:
        ApiError: 404 if there is none of this name, or it is another caller's; 409 if the engine does not
            have it yet.
    """
    named = CompletionId.parse(name)
    record = None if named is None else service.records.find(named.call_id, caller)
    if named is None or record is None:
        raise ApiError(404, f"{name[:64]!r}: no such request is remembered", code="not_found")
    prompt_index, index = named.prompt_index, named.index or 0
    outputs: Sequence[RequestOutput] = ()
    if (generation := service.under_way.get(record.id)) is not None:
        outputs = generation.outputs
    if prompt_index >= len(record.prompts):
        raise ApiError(404, f"{name[:64]!r}: has {len(record.prompts)} prompts", code="not_found")
    prompt = record.prompts[prompt_index]
    completions: Sequence[Sequence[int]] = prompt.outputs
    seed = prompt.seed
    if prompt_index < len(outputs):
        seed = outputs[prompt_index].seed
        completions = [each.token_ids for each in outputs[prompt_index].outputs]
    if seed is None or record.params is None:
        raise ApiError(409, f"{name[:64]!r}: is not in the engine", code="not_started")
    if index >= len(completions):
        raise ApiError(404, f"{name[:64]!r}: has {len(completions)} completions", code="not_found")
    return RememberedCompletion(
        CompletionId(record.id, prompt_index, index),
        record,
        seed,
        prompt.token_ids,
        array("I", completions[index]),
    )
