"""`pellucid stage`: computes some layers of a model for an engine on another machine."""

import logging
from pathlib import Path
from typing import Annotated

from pellucid.cli.output.terminal import note
from pellucid.cli.parsing.model_and_prompt import ModelName
from pellucid.cli.parsing.options import STAGES_KEY_HELP, NumThreads, Revision
from pellucid.cli.parsing.panels import STAGES
from pellucid.inputs.stage_address import parse_address


def stage(
    words: ModelName,
    *,
    listen: str = STAGES.option(
        "HOST:PORT",
        "Where the engine reaches this machine: an address of its own, or 0.0.0.0 for all of them; port 0 takes a"
        " free one.",
        default="127.0.0.1:7000",
    ),
    stages_key: Annotated[Path | None, STAGES.option("FILE", STAGES_KEY_HELP)] = None,
    revision: Revision = None,
    num_threads: NumThreads = None,
) -> None:
    """Compute layers of a model for an engine on another machine.

    Start it with the same model and the same key on each machine but one, and there pellucid serve MODEL --stages
    HOST:PORT,... --stages-key FILE. The engine decides which layers a machine has, and all other settings. When the
    engine ends, its stages wait for another one. Runs until Ctrl-C.
    """
    if stages_key is None:
        raise ValueError("stages_key=None: without a secret, whoever reaches a stage can use it")
    from pellucid.stages.stage_server import open_stage

    address = parse_address("listen", listen)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    server = open_stage(address, stages_key, words.name(must_fit=False), revision, num_threads)
    note(f"listening at {server.address}; waits for an engine")
    server.run(note)
