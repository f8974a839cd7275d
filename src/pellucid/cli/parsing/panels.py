"""The groups of options in the help, and how an option in a group is declared."""

from dataclasses import dataclass
from typing import Any

import typer


def argument(metavar: str, text: str, **facts: Any) -> Any:
    """A word without an option before it; `facts` as in `Panel`."""
    return typer.Argument(metavar=metavar, help=text, show_default=False, **facts)


@dataclass(frozen=True)
class Panel:
    """A group of options under a title. `facts` are further arguments of typer.Option; an option without `names`
    has its parameter's."""

    title: str

    def option(self, metavar: str, text: str, *names: str, **facts: Any) -> Any:
        """An option with a value, which `metavar` stands for in the help."""
        return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=self.title, **facts)

    def flag(self, text: str, *names: str, **facts: Any) -> Any:
        """An option without a value."""
        return typer.Option(*names, help=text, rich_help_panel=self.title, **facts)

    def choice(self, values: tuple[str, ...], text: str, **facts: Any) -> Any:
        """An option with one of these values: the help shows them, and Tab completes them."""

        def complete(incomplete: str) -> list[str]:
            return [each for each in values if each.startswith(incomplete)]

        metavar = facts.pop("metavar", "|".join(values))
        return self.option(metavar, text, autocompletion=complete, **facts)


MODEL, SAMPLING, STOPPING = Panel("Model"), Panel("Sampling"), Panel("When to stop")
RULE = Panel("Form of the answer: text itself, or a file of it")
SPECULATION, PREFIX_CACHE = Panel("Speculation"), Panel("Prefix cache on disk")
BEAM_SEARCH, PROMPT = Panel("Beam search"), Panel("Prompt")
OUTPUT, SERVER = Panel("Output"), Panel("Server")
# The options of a measurement or a plan.
WORKLOAD, PLANNED_REQUESTS = Panel("What to measure"), Panel("Requests")
