"""The groups of options in the help, and how an option in a group is declared."""

from copy import copy
from dataclasses import dataclass, field
from inspect import get_annotations
from typing import Any, ClassVar

import typer
from typer.models import ParameterInfo


def argument(metavar: str, text: str, **facts: Any) -> Any:
    """A word without an option before it; `facts` as in `Panel`."""
    return typer.Argument(metavar=metavar, help=text, show_default=False, **facts)


@dataclass(frozen=True)
class Panel:
    """A group of options under a title. `facts` are further arguments of typer.Option; an option without `names`
    has its parameter's. The declaration stands where the parameter's default would: it has the `default`.
    """

    title: str | None

    def option(self, metavar: str, text: str, *names: str, **facts: Any) -> Any:
        """An option with a value, which `metavar` stands for in the help."""
        return self.flag(text, *names, metavar=metavar, **facts)

    def flag(self, text: str, *names: str, default: Any = ..., **facts: Any) -> Any:
        """An option without a value."""
        return typer.Option(default, *names, help=text, rich_help_panel=self.title, **facts)

    def choice(self, values: tuple[str, ...], text: str, **facts: Any) -> Any:
        """An option with one of these values: the help shows them, and Tab completes them."""

        def complete(incomplete: str) -> list[str]:
            return [each for each in values if each.startswith(incomplete)]

        metavar = facts.pop("metavar", "|".join(values))
        return self.option(metavar, text, autocompletion=complete, **facts)


def option_and_default(declared: ParameterInfo, hint: Any) -> tuple[ParameterInfo, Any]:
    """An option without its default, as typer takes it in a type, and the default; left out, that is False or None."""
    option = copy(declared)
    option.default = ...
    missing = False if hint is bool else None
    return option, missing if declared.default is ... else declared.default


class Options:
    """Options that verbs take together: the fields of a dataclass, each declared by an argument or an option of a
    panel. A field without a default has that of the class `of`, whose fields these are; otherwise, False or None.
    """

    _of: ClassVar[type | None] = None

    def __init_subclass__(cls, of: type | None = None) -> None:
        cls._of = of or cls._of
        for name, hint in get_annotations(cls).items():
            info = vars(cls).get(name)
            if isinstance(info, ParameterInfo):
                option, default = option_and_default(info, hint)
                if info.default is ... and hasattr(cls._of, name):
                    default = getattr(cls._of, name)
                setattr(cls, name, field(default=default, metadata={ParameterInfo: option}))


MODEL, SAMPLING, STOPPING = Panel("Model"), Panel("Sampling"), Panel("When to stop")
RULE = Panel("Form of the answer: text itself, or a file of it")
SPECULATION, PREFIX_CACHE = Panel("Speculation"), Panel("Prefix store")
STAGES = Panel("Stages")
BEAM_SEARCH, PROMPT = Panel("Beam search"), Panel("Prompt")
OUTPUT, SERVER = Panel("Output"), Panel("Server")
# The options of a measurement or a plan.
WORKLOAD, PLANNED_REQUESTS = Panel("What to measure"), Panel("Requests")
OTHERS = Panel(None)  # the last in the help
