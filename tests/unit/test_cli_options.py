"""Options stand beside the fields that they set: the same names, the same defaults."""

import inspect
from dataclasses import MISSING, fields

import pytest

from pellucid.cli.app import make_command
from pellucid.cli.options import ModelOptions, SamplingOptions, StopOptions, takes_options
from pellucid.config import EngineConfig
from pellucid.sampling_params import SamplingParams


def test_model_options_are_engine_config() -> None:
    for option in fields(ModelOptions):
        assert option.default == EngineConfig.__dataclass_fields__[option.name].default
    assert EngineConfig(**ModelOptions().knobs()) == EngineConfig()


@pytest.mark.parametrize("group", [SamplingOptions, StopOptions])
def test_options_left_out_change_no_parameter(group: type) -> None:
    assert SamplingParams(**group().given()) == SamplingParams()
    assert {field.name for field in fields(group)} <= SamplingParams.__dataclass_fields__.keys()


def test_every_verb_has_the_options_of_its_groups() -> None:
    verbs = make_command().commands
    for verb in ("run", "chat", "compare"):
        names = {parameter.name for parameter in verbs[verb].params}
        assert names >= {field.name for field in (*fields(ModelOptions), *fields(SamplingOptions))}
    assert {parameter.name for parameter in verbs["run"].params} >= {
        field.name for field in fields(StopOptions)
    }


def test_takes_options_hands_a_group_over_whole() -> None:
    seen = []

    def verb(*, first: int = 1, options: StopOptions, last: str = "x") -> None:
        """Help."""
        seen.append((first, options, last))

    command = takes_options(verb)
    context, *names = inspect.signature(command).parameters
    assert context == "context"
    assert names == ["first", *(field.name for field in fields(StopOptions)), "last"]
    assert command.__doc__ == "Help."
    values = {field.name: field.default for field in fields(StopOptions)}
    assert MISSING not in values.values()
    command(context=None, first=2, last="y", **{**values, "min_tokens": 3})
    assert seen == [(2, StopOptions(min_tokens=3), "y")]
