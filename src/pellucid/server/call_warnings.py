"""The warnings of one call: which of its fields had no effect."""

MAX_WARNINGS = 32
MAX_CHARS = 256  # of one warning: it may quote the client


class Warnings(list[str]):
    """A list that stays short, whatever a client sends: it has each warning once, and counts those beyond
    `MAX_WARNINGS` in a last line."""

    def __init__(self) -> None:
        super().__init__()
        self._num_left_out = 0

    def append(self, warning: str) -> None:
        warning = warning[:MAX_CHARS]
        if warning in self:
            return
        if len(self) < MAX_WARNINGS:
            super().append(warning)
            return
        self._num_left_out += 1
        self[MAX_WARNINGS:] = [f"{self._num_left_out} more fields have no effect"]
