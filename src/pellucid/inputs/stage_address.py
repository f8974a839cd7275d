"""Where a stage of `EngineConfig.stages` listens."""

import re
from typing import NamedTuple

from pellucid.inputs.parameter_checks import refuse

_FORM = re.compile(
    r"(?P<host>[\w.-]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})(?:/(?P<layers>\d{1,5}))?"
)


class StageAddress(NamedTuple):
    """Where a stage listens.

    Attributes:
        port: 0 takes a free one.
        num_layers: that the stage is to compute; None: as many as suit its memory.
    """

    host: str
    port: int
    num_layers: int | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(field: str, text: str) -> StageAddress:
    """Reads `host:port`, or `host:port/LAYERS`.

    Args:
        field: what an error calls the text.

    Raises:
        ValueError: the text has another form.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None or int(found["port"]) > 65_535 or found["layers"] == "0":
        return refuse(field, text, "host:port, or host:port/LAYERS")
    layers = found["layers"]
    return StageAddress(
        found["host"].strip("[]"), int(found["port"]), None if layers is None else int(layers)
    )


def parse_addresses(stages: str) -> list[StageAddress]:
    """Reads `EngineConfig.stages`: addresses with commas between. Raises as `parse_address` does."""
    return [parse_address("stages", each) for each in stages.split(",")]
