"""The sampling parameters of a call: its fields, and the model's defaults for the rest."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pellucid.inputs.sampling_params import SamplingParams
from pellucid.server.errors import refused


def with_given(
    defaults: SamplingParams,
    given: Mapping[str, Any],
    parameter_names: Mapping[str, str],
) -> SamplingParams:
    """The defaults with those of the given fields that are not None.

    Args:
        given: by the protocol's names of the fields.
        parameter_names: the engine's names of the fields to which the protocol gives other names.

    Raises:
        ApiError: names the field as the protocol does, its value and what is allowed.
        ValueError: the same, for a field whose name the engine shares.
    """
    names = parameter_names
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
