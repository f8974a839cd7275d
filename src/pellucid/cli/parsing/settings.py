"""Defaults of options: environment variables and the configuration file.

The command line takes precedence over an environment variable, that over the file, and that over the built-in
default.
"""

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

import typer
from typer.models import OptionInfo

from pellucid.cli.parsing.panels import PLANNED_REQUESTS, WORKLOAD

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_FILE_BYTES = 1 << 20
# Options of a single call, which make no sense as defaults.
_NOT_SETTABLE = ("json", "prompt", "file", "events", "request", "plot", "text", "yes")
# A temperature for answers must not change what `bench` measures.
_NOT_SETTABLE_PANELS = (WORKLOAD.title, PLANNED_REQUESTS.title)
_MUST_BE = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "text in quotes"),
}


@dataclass(frozen=True)
class Setting:
    """An option that can have a default of the user's.

    Attributes:
        name: of the parameter; with PELLUCID_ before it and in capitals, the environment variable's.
        kind: of the value, or of each of its items.
        is_list: whether the option may be repeated.
        parsed: whether the option has a parser of its own, which takes text.
    """

    name: str
    kind: type
    is_list: bool
    parsed: bool

    @property
    def variable(self) -> str | None:
        """The environment variable; None for lists."""
        return None if self.is_list else f"PELLUCID_{self.name.upper()}"

    def check(self, value: Any, where: str) -> Any:
        """The value; raises ValueError if it is of the wrong type."""
        if self.is_list:
            if not isinstance(value, list):
                raise ValueError(f"{where} = {value!r}: must be a list")
            return [self._check_item(item, where) for item in value]
        return self._check_item(value, where)

    def _check_item(self, value: Any, where: str) -> Any:
        types, words = _MUST_BE[self.kind]
        if self.parsed and isinstance(value, str):
            return value
        if not isinstance(value, types) or (isinstance(value, bool) and self.kind is not bool):
            raise ValueError(f"{where} = {value!r}: must be {words}")
        return value


def settings_of(verb: Callable[..., None]) -> dict[str, Setting]:
    """The options of a verb that can be set, by name; from its signature."""
    found = {}
    for parameter in inspect.signature(verb).parameters.values():
        kind, *facts = get_args(parameter.annotation) or (parameter.annotation,)
        option = next((fact for fact in facts if isinstance(fact, OptionInfo)), None)
        if (
            option is None
            or parameter.name in _NOT_SETTABLE
            or option.rich_help_panel in _NOT_SETTABLE_PANELS
        ):
            continue
        (kind,) = [each for each in get_args(kind) or (kind,) if each is not NoneType] or [str]
        is_list = get_origin(kind) is list
        found[parameter.name] = Setting(
            parameter.name,
            get_args(kind)[0] if is_list else kind,
            is_list,
            option.parser is not None,
        )
    return found


def settings_kind(option: Any, verb: Callable[..., None]) -> str | None:
    """The type of an option's value in words; None if the option has its own parser."""
    setting = settings_of(verb).get(option.name)
    return None if setting is None or setting.parsed else _MUST_BE[setting.kind][1]


def config_path(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The configuration file, None if there is none.

    PELLUCID_CONFIG names it, and it must exist; if that is empty, no file is read. Left out, it is
    pellucid/config.toml in $XDG_CONFIG_HOME or ~/.config, if that exists.
    """
    if (named := environment.get("PELLUCID_CONFIG")) is not None:
        return Path(named).expanduser() if named else None
    home = environment.get("XDG_CONFIG_HOME")
    directory = Path(home) if home else Path("~/.config").expanduser()
    path = directory / "pellucid" / "config.toml"
    return path if path.exists() else None


def read_config(
    path: Path, settings: Mapping[str, Mapping[str, Setting]]
) -> dict[str, dict[str, Any]]:
    """The file's defaults for each verb.

    A key at the top holds for all verbs that have the option; one in a table [run] for that verb.

    Args:
        settings: by verb, and by name.

    Raises:
        ValueError: the file is not TOML, or a key or value in it is unknown; the message names it.
        OSError: the file cannot be read.
    """
    content = _load(path)
    everywhere = {name for own in settings.values() for name in own}
    defaults: dict[str, dict[str, Any]] = {verb: {} for verb in settings}
    for key, value in content.items():
        if key in settings:
            continue
        name = _known(key, everywhere | settings.keys(), str(path))
        for verb, own in settings.items():
            if name in own:
                defaults[verb][name] = own[name].check(value, f"{path}: {key}")
    for verb, own in settings.items():
        table = content.get(verb, {})
        if not isinstance(table, dict):
            raise ValueError(f"{path}: {verb} = {table!r}: must be a table, [{verb}]")
        for key, value in table.items():
            name = _known(key, own, f"{path}: [{verb}]")
            defaults[verb][name] = own[name].check(value, f"{path}: [{verb}] {key}")
    return defaults


def _load(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise ValueError(f"PELLUCID_CONFIG={path}: no such file")
    if not path.is_file():
        raise ValueError(f"{path}: must be a file")
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"{path}: has more than {MAX_FILE_BYTES} bytes")
    try:
        values: dict[str, Any] = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # TOML's and UTF-8's
        raise ValueError(f"{path}: not TOML: {error}") from None
    return values


def _known(key: str, names: Iterable[str], where: str) -> str:
    name, names = key.replace("-", "_"), sorted(names)
    if name in names:
        return name
    close = get_close_matches(name, names, 1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
    raise ValueError(f"{where}: {key}: no such option; {hint}")


def origin_of_error(context: typer.Context, message: str) -> str:
    """Where a wrong value comes from, if not from the command line: an end for its message, or nothing.

    Args:
        message: an error of the form "name=value: what is wrong".
    """
    match = re.match(r"(\w+)=", message)
    if match is None:
        return ""
    value = context.params.get(match[1])
    if isinstance(value, str) and not message.startswith(f"{match[1]}={value!r}"):
        return ""  # the word MODEL on the command line, not the setting of that name
    return origin(context, match[1])


def origin(context: typer.Context, name: str) -> str:
    """Where the value of an option comes from, if not from the command line: an end for a message, or nothing."""
    source = context.get_parameter_source(name)
    if source is not None and source.name == "ENVIRONMENT":
        return f" (set by the environment variable PELLUCID_{name.upper()})"
    return f" (set in {config_path()})" if source and source.name == "DEFAULT_MAP" else ""
