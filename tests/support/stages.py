"""Stages in threads of the test's own process, which an engine reaches over the loopback interface."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pellucid.facts.model_config import ModelConfig
from pellucid.facts.model_parts import part_of, possible_cuts
from pellucid.inputs.stage_address import StageAddress
from pellucid.stages.part_host import OwnSettings
from pellucid.stages.stage_server import StageServer

KEY = b"a secret of all machines of a test"


def write_key(directory: Path | str) -> str:
    path = Path(directory) / "stages.key"
    path.write_bytes(KEY)
    return str(path)


@contextmanager
def stage(model: Path | None, key: bytes = KEY) -> Iterator[StageAddress]:
    """A stage that waits for engines."""
    own = OwnSettings(model=None if model is None else str(model), num_threads=1)
    server = StageServer(StageAddress("127.0.0.1", 0), key, own)
    thread = threading.Thread(target=server.run, args=(lambda _: None,))
    thread.start()
    try:
        yield server.address
    finally:
        server.close()
        thread.join()


@contextmanager
def stages(model: Path | None, num_layers: Sequence[int]) -> Iterator[str]:
    """A stage for each number of layers, as `EngineConfig.stages`."""
    with ExitStack() as stack:
        addresses = [stack.enter_context(stage(model)) for _ in num_layers]
        yield ",".join(
            f"{address}/{count}" for address, count in zip(addresses, num_layers, strict=True)
        )


def deep(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a tiny model's config.json says otherwise if it has so many layers that it can be cut at several places."""
    if "n_layer" in config:
        return {"n_layer": 6}
    times = 3 if "layer_types" in config else 2
    found: dict[str, Any] = {"num_hidden_layers": times * config["num_hidden_layers"]}
    if "layer_types" in config:
        found["layer_types"] = times * config["layer_types"]
    return found


def divisions(config: ModelConfig, num_parts: int) -> list[list[int]]:
    """All ways to cut a model: the numbers of layers of the parts before the last."""
    found: list[list[int]] = []

    def cut(first: int, before: list[int]) -> None:
        if len(before) == num_parts - 1:
            ends = [config.num_layers]
        else:
            ends = [each for each in possible_cuts(config) if each > first]
        for end in ends:
            try:
                part_of(config, range(first, end))
            except ValueError:
                continue  # its layers are all recurrent
            if end == config.num_layers:
                found.append(before)
            else:
                cut(end, [*before, end - first])

    cut(0, [])
    return found
