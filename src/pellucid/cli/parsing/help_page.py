"""--help: options in groups, two columns, as wide as the terminal."""

import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from pellucid.progress import is_live

MIN_WIDTH, MAX_WIDTH = 60, 100  # characters
NAME_WIDTH = 30  # longer names of options have a line of their own

EXAMPLES = """\
  pellucid run "Once upon a time"        # the bundled model, without a download
  pellucid run qwen3:0.6b "Why is the sky blue?"  # from the hub, in four bits
  pellucid chat path/to/model.gguf"""


class Verb(TyperCommand):
    """A command whose help is `verb_page`."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(verb_page(self, ctx, page_width()))


class FrontPage(TyperGroup):
    """The command `pellucid`, whose help is `front_page`. Its verbs are listed by `groups`."""

    groups: Mapping[str, Sequence[str]]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(front_page(self, self.groups, page_width()))


def page_width() -> int:
    return max(MIN_WIDTH, min(MAX_WIDTH, shutil.get_terminal_size().columns))


def front_page(command: Any, groups: Mapping[str, Sequence[str]], width: int) -> str:
    """What `pellucid --help` shows."""
    lines = ["Usage: pellucid COMMAND [OPTIONS] ...", "", command.help, "", EXAMPLES]
    for title, names in groups.items():
        verbs = [command.commands[name] for name in names if name in command.commands]
        rows = [(verb.name, _first_sentence(verb.help)) for verb in verbs]
        lines += ["", _bold(title), *_columns(rows, width)]
    lines += ["", _bold("Options"), *_columns(list(_options(command.params)), width)]
    lines += ["", "pellucid COMMAND --help shows a command's options."]
    return "\n".join(lines)


def verb_page(command: Any, context: typer.Context, width: int) -> str:
    """What `pellucid VERB --help` shows."""
    usage = " ".join(["pellucid", command.name, "[OPTIONS]", *_argument_names(command)])
    lines = [f"Usage: {usage}"]
    for paragraph in command.help.split("\n\n"):
        lines += ["", *textwrap.wrap(" ".join(paragraph.split()), width)]
    arguments = [parameter for parameter in command.params if _is_argument(parameter)]
    if arguments:
        rows = [(argument.metavar, argument.help) for argument in arguments]
        lines += ["", _bold("Arguments"), *_columns(rows, width)]
    for title, options in grouped_options(command, context).items():
        lines += ["", _bold(title), *_columns(list(_options(options)), width)]
    return "\n".join(lines)


def grouped_options(command: Any, context: typer.Context) -> dict[str, list[Any]]:
    """The options of a verb by the title of their group, those without a group last."""
    options = [
        option
        for option in command.get_params(context)
        if option.param_type_name == "option" and not option.hidden
    ]
    groups: dict[str, list[Any]] = {}
    for option in sorted(options, key=lambda option: option.rich_help_panel is None):
        groups.setdefault(option.rich_help_panel or "Options", []).append(option)
    return groups


def option_names(option: Any) -> str:
    """-n, --max-tokens N; a second long name, for users of other engines, is not shown."""
    long = [name for name in option.opts if name.startswith("--")]
    short = [name for name in option.opts if not name.startswith("--")]
    names = ", ".join([*short, *long[:1]])
    if option.secondary_opts:
        names += f" / {option.secondary_opts[0]}"
    return names if option.is_flag or option.metavar is None else f"{names} {option.metavar}"


def option_default(option: Any) -> str:
    """The value of an option that is left out; empty if the help need not say it."""
    if isinstance(option.show_default, str):
        return option.show_default
    is_unset = option.default is None or isinstance(option.default, bool)
    return "" if is_unset or not option.show_default else str(option.default)


def _options(options: Sequence[Any]) -> Iterator[tuple[str, str]]:
    for option in options:
        if option.hidden:
            continue
        default = option_default(option)
        names = option_names(option)
        indent = "" if names.startswith("-") and not names.startswith("--") else "    "
        yield indent + names, f"{option.help} [default: {default}]" if default else option.help


def _argument_names(command: Any) -> Iterator[str]:
    for parameter in command.params:
        if _is_argument(parameter):
            yield parameter.metavar if parameter.required else f"[{parameter.metavar}]"


def _is_argument(parameter: Any) -> bool:
    return parameter.param_type_name == "argument" and not parameter.hidden


def _columns(rows: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    names = [len(name) for name, _ in rows if len(name) <= NAME_WIDTH]
    left = 2 + max(names, default=0) + 2
    for name, text in rows:
        first, *rest = textwrap.wrap(" ".join(text.split()), width - left) or [""]
        if len(name) > NAME_WIDTH:
            yield f"  {name}"
            yield " " * left + first
        else:
            yield f"  {name:<{left - 2}}{first}".rstrip()
        for line in rest:
            yield " " * left + line


def _first_sentence(text: str) -> str:
    return " ".join(text.split()).partition(". ")[0].rstrip(".") + "."


def _bold(title: str) -> str:
    return f"\x1b[1m{title}\x1b[0m" if is_live(sys.stdout) else title
