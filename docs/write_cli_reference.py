"""Writes docs/cli.md from the declarations of the command line, so that it is never stale.

python docs/write_cli_reference.py            writes
python docs/write_cli_reference.py --check    fails if it would write something else
"""

import sys
from pathlib import Path
from typing import Any

from generated_file import write_or_check
from typer.main import get_command

from pellucid.cli.app import make_app

REFERENCE = Path(__file__).with_name("cli.md")
HEADER = """\
# Command line

<!-- Written by docs/write_cli_reference.py; do not edit. -->

stdout is the answer and nothing else, so it can be piped; progress, the final line and errors go to
stderr, in plain text if `NO_COLOR` is set, the terminal is dumb or stderr is no terminal.

| exit status | meaning |
|---|---|
| 0 | done |
| 1 | the request failed on its way |
| 2 | what was asked for cannot be served; one line on stderr says why |
| 130 | Ctrl-C: what was made is printed |
| 141 | the reader of stdout went away |

Sampling options that are left out take what the model's `generation_config.json` recommends. The final
line says what was used, the seed included.

`PELLUCID_TRACEBACK=1` shows where an error came from.
"""


def reference() -> str:
    command: Any = get_command(make_app())
    with command.make_context("pellucid", [], resilient_parsing=True) as context:
        usages = {
            name: " ".join(verb.collect_usage_pieces(context))
            for name, verb in command.commands.items()
        }
    panels = {name: panel_tables(verb) for name, verb in command.commands.items()}
    verbs_by_table: dict[str, list[str]] = {}
    for name, tables in panels.items():
        for table in tables:
            verbs_by_table.setdefault(table, []).append(name)

    sections = [HEADER.strip()]
    for name, verb in command.commands.items():
        own = [table for table in panels[name] if verbs_by_table[table] == [name]]
        call = f"    pellucid {name} {usages[name]}"
        sections += [
            f"## pellucid {name}",
            call,
            unindented(verb.help),
            arguments_table(verb),
            *own,
        ]
    sections.append("## Options that verbs share")
    for table, names in verbs_by_table.items():
        if len(names) > 1:
            sections += [f"Of {', '.join(f'`{name}`' for name in names)}:", table]
    return "\n\n".join(sections) + "\n"


def arguments_table(verb: Any) -> str:
    arguments = [parameter for parameter in verb.params if parameter.param_type_name == "argument"]
    rows = [f"| {argument.metavar} | {argument.help} |" for argument in arguments]
    return "\n".join(["| argument | |", "|---|---|", *rows])


def panel_tables(verb: Any) -> list[str]:
    """A table for each panel of --help, those without a panel first."""
    options = [parameter for parameter in verb.params if parameter.param_type_name == "option"]
    rows: dict[str, list[str]] = {}
    for option in sorted(options, key=lambda option: option.rich_help_panel is not None):
        title = option.rich_help_panel or "option"
        rows.setdefault(title, [f"| {title} | | default |", "|---|---|---|"]).append(row(option))
    return ["\n".join(lines) for lines in rows.values()]


def row(option: Any) -> str:
    name = " ".join([", ".join(option.opts), *([option.metavar] if option.metavar else [])])
    cells = [cell.replace("|", "\\|") for cell in (f"`{name}`", option.help, default(option))]
    return f"| {' | '.join(cells)} |"


def default(option: Any) -> str:
    if isinstance(option.show_default, str):
        return option.show_default
    unset = option.default is None or option.default is False
    return "" if unset else str(option.default)


def unindented(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


if __name__ == "__main__":
    sys.exit(write_or_check(REFERENCE, reference()))
