"""Tables on stdout."""

import sys
from collections.abc import Sequence

from pellucid.progress import is_live

MAX_WIDTH = 120  # characters: wide enough that no number is cut, whatever the terminal


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Writes a table whose first column is names and whose others are numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    live = is_live(sys.stdout)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for index, title in enumerate(titles):
        table.add_column(title, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(
        file=sys.stdout,
        force_terminal=live,
        color_system="auto" if live else None,
        width=MAX_WIDTH,
    )
    console.print(table)
