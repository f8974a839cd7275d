"""The sampling parameters of a call: its fields, and the model's defaults for the rest."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pellucid.inputs.sampling_params import SamplingParams
from pellucid.server.errors import refused
from pellucid.server.generation import Generation


def warn_of_room(generation: Generation, field: str | None, max_model_len: int) -> None:
    """Adds a warning if the context is full before an answer has as many tokens as its client wants.

    Args:
        generation: that was queued.
        field: the client's name for the number of output tokens; None: it gave none.
        max_model_len: tokens of prompt and answer.
    """
    wanted = generation.request.params.max_tokens
    room = max_model_len - max(len(prompt.token_ids) for prompt in generation.prompts)
    if field is not None and isinstance(wanted, int) and wanted > room:
        generation.call.warnings.append(
            f"{field}={wanted}: at most {room} tokens fit into the context behind the prompt"
        )


def with_given(
    defaults: SamplingParams,
    given: Mapping[str, Any],
    parameter_names: Mapping[str, str] | None = None,
) -> SamplingParams:
    """The defaults with those of the given fields that are not None.

    Args:
        given: by the protocol's names of the fields.
        parameter_names: the engine's names of the fields to which the protocol gives other names.

    Raises:
        ApiError: names the field as the protocol does, its value and what is allowed.
        ValueError: the same, for a field whose name the engine shares.
    """
    names = parameter_names or {}
    parameters = {
        names.get(field, field): value for field, value in given.items() if value is not None
    }
    try:
        return replace(defaults, **parameters)
    except ValueError as error:
        message = str(error)
        for field, name in names.items():
            if given.get(field) is not None and message.startswith((f"{name}=", f"{name}:")):
                raise refused(field + message.removeprefix(name), field) from None
        raise
