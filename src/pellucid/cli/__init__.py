"""The command line: one file per verb. Imports what a verb needs when it runs, so --help is fast."""

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line.

    Args:
        arguments: without the program's name; left out, those of the process.

    Returns:
        The exit status: 0, 1 if the request failed, 2 for what cannot be served as asked, 130 after
        Ctrl-C, 141 if the reader of stdout went away.
    """
    from pellucid.cli.app import run_command_line

    return run_command_line(arguments)
