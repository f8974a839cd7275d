"""Writes docs/cli.md from the declarations of the command line.

python docs/write_cli_reference.py            writes
python docs/write_cli_reference.py --check    fails if it would write something else
"""

import sys
from pathlib import Path
from typing import Any

from generated_file import write_or_check

from pellucid.cli.app import all_verbs, make_command
from pellucid.cli.parsing.help_page import grouped_options, option_default, option_names

REFERENCE = Path(__file__).with_name("cli.md")
HEADER = """\
# Command line

<!-- Written by docs/write_cli_reference.py; do not edit. -->

    pellucid run "Once upon a time"                  # the bundled model, no download
    pellucid run Qwen/Qwen3-0.6B "Why is the sky blue?"
    pellucid run model.gguf < prompt.txt
    pellucid chat Qwen/Qwen3-0.6B

MODEL is a directory in Hugging Face layout, a `.gguf` file, or `owner/name` on the Hugging Face hub. A single
word after `run` is the model if it looks like one (it exists, ends in `.gguf` or is `owner/name`), else it is the
prompt. If nothing else is the prompt, stdin is.

`run` answers the prompt through the model's chat template; `--raw`, or a model without a chat template, continues it
as text. The bundled model answers questions and texts of one or two words; other text it continues, unless `--chat`
is given.

stdout gets the answer and nothing else, so that it can be piped. Progress, times and errors go to stderr, in plain
text if `NO_COLOR` is set, the terminal is dumb or stderr is no terminal.

| exit status | meaning |
|---|---|
| 0 | done |
| 1 | the request failed while it ran |
| 2 | the request cannot be served; one line on stderr says why |
| 130 | Ctrl-C; the text so far is on stdout |
| 141 | the reader of stdout went away |

## Defaults of your own

The command line wins over environment variables, which win over the configuration file. Sampling options that are
set nowhere take what the model's `generation_config.json` recommends.

- **Environment variables**: `PELLUCID_` and the option's name in capitals, as in `PELLUCID_MODEL`,
  `PELLUCID_NUM_THREADS`, `PELLUCID_TEMPERATURE`. Options that may be repeated have none.
- **Configuration file**: `~/.config/pellucid/config.toml` (or in `$XDG_CONFIG_HOME`), or the file that
  `PELLUCID_CONFIG` names; with `PELLUCID_CONFIG=` none is read. Keys are the options' names with `_` for `-`; those
  in a table hold for one command:

```toml
model = "Qwen/Qwen3-0.6B"
num_threads = 8
kv_cache_memory = "2GiB"

[chat]
system = "Answer in one sentence."
temperature = 0.6
```

Four options are named as in Python: `include_stop_str_in_output` (`--include-stop`), `stop_token_ids`
(`--stop-token-id`), `raw = false` (`--chat`) and `think = false` (`--no-think`).

Sizes are bytes, or have a unit: `2GiB` and `2G` are 2 x 1024^3 bytes, `2GB` is 2 x 1000^3. In `--stop`, `\\n`, `\\t`,
`\\r`, `\\0` and `\\\\` stand for the characters that they name.

`pellucid chat` keeps what was typed in `~/.local/state/pellucid/chat_history` (or in `$XDG_STATE_HOME`), readable
by you alone.

`pellucid --install-completion` lets the Tab key complete commands, options and their values.
`PELLUCID_TRACEBACK=1` shows where an error comes from.
"""


def reference() -> str:
    command = make_command()
    sections = [HEADER.strip()]
    tables: dict[str, dict[str, str]] = {}
    usages = {}
    with command.make_context("pellucid", [], resilient_parsing=True) as context:
        for name in all_verbs():
            verb = command.commands[name]
            usages[name] = f"    pellucid {name} [OPTIONS] {arguments(verb)}".rstrip()
            tables[name] = {
                title: table(title, options)
                for title, options in grouped_options(verb, context).items()
            }
    verbs_by_table: dict[str, list[str]] = {}
    for name, own_tables in tables.items():
        for each in own_tables.values():
            verbs_by_table.setdefault(each, []).append(name)
    for name in all_verbs():
        verb = command.commands[name]
        own = [each for each in tables[name].values() if verbs_by_table[each] == [name]]
        sections += [
            f"## pellucid {name}",
            usages[name],
            unindented(verb.help),
            arguments_table(verb),
            *own,
        ]
    sections.append("## Options that commands share")
    for each, names in verbs_by_table.items():
        if len(names) > 1:
            listed = ", ".join(f"`{name}`" for name in names[:-1])
            sections += [f"{listed} and `{names[-1]}` have:", each]
    return "\n\n".join(sections) + "\n"


def arguments(verb: Any) -> str:
    shown = [each for each in verb.params if each.param_type_name == "argument" and not each.hidden]
    return " ".join(each.metavar if each.required else f"[{each.metavar}]" for each in shown)


def arguments_table(verb: Any) -> str:
    rows = [
        f"| {each.metavar} | {each.help} |"
        for each in verb.params
        if each.param_type_name == "argument" and not each.hidden
    ]
    return "\n".join(["| argument | |", "|---|---|", *rows])


def table(title: str, options: list[Any]) -> str:
    return "\n".join([f"| {title} | | default |", "|---|---|---|", *map(row, options)])


def row(option: Any) -> str:
    cells = (f"`{option_names(option)}`", option.help, option_default(option))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def unindented(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


if __name__ == "__main__":
    sys.exit(write_or_check(REFERENCE, reference()))
