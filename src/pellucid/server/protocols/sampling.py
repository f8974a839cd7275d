"""The sampling parameters of a call: its fields, and the model's defaults for the rest."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pellucid.sampling_params import SamplingParams


def with_given(defaults: SamplingParams, given: Mapping[str, Any]) -> SamplingParams:
    """The defaults with those of the given fields that are not None.

    Raises:
        ValueError: names the field, its value and what is allowed.
    """
    return replace(defaults, **{name: value for name, value in given.items() if value is not None})
