"""Options of the command line have the names and defaults of the fields that they set."""

import inspect
import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
import typer

from pellucid.cli.app import _function, all_verbs, make_command
from pellucid.cli.parsing.option_types import size, text_with_escapes
from pellucid.cli.parsing.options import ModelOptions, SamplingOptions, StopOptions, takes_options
from pellucid.cli.parsing.settings import config_path, read_config, settings_of
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from support.refusals import check_refusals


def test_model_options_are_engine_config() -> None:
    for option in fields(ModelOptions):
        assert option.default == EngineConfig.__dataclass_fields__[option.name].default
    assert EngineConfig(**ModelOptions().settings()) == EngineConfig()


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


def test_settings_of_a_measurement_are_typed_each_time() -> None:
    options = {option.name: option for option in make_command().commands["bench"].params}
    assert options["num_threads"].envvar == "PELLUCID_NUM_THREADS"
    assert options["temperature"].envvar is None and options["repetitions"].envvar is None


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("2147483648", 2 << 30),
        ("2GiB", 2 << 30),
        ("2G", 2 << 30),
        ("2g", 2 << 30),
        ("2GB", 2 * 10**9),
        ("1.5 MiB", 3 << 19),
        ("512k", 512 << 10),
        ("10 bytes", 10),
        (7, 7),
    ],
)
def test_sizes(text: str | int, num_bytes: int) -> None:
    assert size(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "2 GiBs", "1e9", "0x10", "2GiB2", "²", "nan"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a size"):
        size(text)


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        (r"\n", "\n"),
        (r"a\tb\r\0", "a\tb\r\0"),
        (r"\\n", r"\n"),
        (r"\end{x}", r"\end{x}"),
        ("\n", "\n"),
        ("\\", "\\"),
    ],
)
def test_escapes(typed: str, text: str) -> None:
    assert text_with_escapes(typed) == text


def test_the_configuration_file_of_the_docs_is_one(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    path = tmp_path / "config.toml"
    path.write_text(example)
    settings = {verb: settings_of(_function(verb)) for verb in all_verbs()}
    defaults = read_config(path, settings)
    assert defaults["run"] == {
        "model": "Qwen/Qwen3-0.6B",
        "num_threads": 8,
        "kv_cache_memory": "2GiB",
    }
    assert defaults["chat"] == {
        **defaults["run"],
        "system": "Answer in one sentence.",
        "temperature": 0.6,
    }


WRONG_FILES = (
    "num_thread = 2",
    "[run]\nrepetitions = 2",
    "[runs]\nx = 1",
    "run = 1",
    "num_threads = true",
    "num_threads = 2.5",
    "temperature = 'hot'",
    "raw = 'yes'",
    "model = 1",
    "[run]\nstop = 'x'",
    "[run]\nstop = [1]",
    "x = '\xff'",
    "#" * (2 << 20),
)


def test_a_wrong_configuration_file_is_named_with_key_and_value(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    settings = {verb: settings_of(_function(verb)) for verb in all_verbs()}

    def read(content: str) -> None:
        path.write_bytes(content.encode("latin-1"))
        read_config(path, settings)

    check_refusals("config_file", WRONG_FILES, read, hidden=tmp_path)
    with pytest.raises(ValueError, match="not TOML"):  # in Python's own words
        read("x=" + "[" * 100_000)


def test_where_the_configuration_file_is(tmp_path: Path) -> None:
    file = tmp_path / "pellucid" / "config.toml"
    assert config_path({"XDG_CONFIG_HOME": str(tmp_path)}) is None
    file.parent.mkdir()
    file.touch()
    assert config_path({"XDG_CONFIG_HOME": str(tmp_path)}) == file
    assert config_path({"XDG_CONFIG_HOME": str(tmp_path), "PELLUCID_CONFIG": ""}) is None
    assert config_path({"PELLUCID_CONFIG": "/no/such/file"}) == Path("/no/such/file")
