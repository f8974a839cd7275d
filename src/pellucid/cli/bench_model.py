"""The model of `bench` and `ablate`: MODEL, or random weights of a known shape."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pellucid.cli.output.terminal import note
from pellucid.cli.output.units import describe_bytes
from pellucid.cli.parsing.options import ModelOptions
from pellucid.cli.parsing.panels import WORKLOAD
from pellucid.inputs.config import EngineConfig
from pellucid.progress import progress

if TYPE_CHECKING:
    from pellucid.benchmark.workloads import Workload
    from pellucid.loaded_model import LoadedModel

Shape = Annotated[
    str | None,
    WORKLOAD.option(
        "NAME",
        "Random weights of a known model's shape instead of MODEL: qwen2.5-0.5b, llama-3.2-1b ...",
    ),
]


def check_shape_alone(shape: str | None, model: str | None, options: ModelOptions) -> None:
    """Raises ValueError if there is a model besides the shape."""
    named = {"MODEL": model, "--revision": options.revision, "--tokenizer": options.tokenizer}
    for name, value in named.items():
        if shape is not None and value is not None:
            raise ValueError(
                f"--shape={shape!r} has random weights: {name}={value!r} has no effect"
            )


def load_bench_model(
    shape: str | None, config: EngineConfig, workloads: "Sequence[Workload]"
) -> "LoadedModel":
    """Makes or loads it; says so on stderr."""
    from pellucid.benchmark.random_model import random_model
    from pellucid.loaded_model import load_model

    if shape is not None:
        note(f"making random weights of the shape {shape}")
        return random_model(shape, config, workloads)
    with progress("load", describe_bytes) as show:
        # A tokenizer that is named is checked, though token ids are all that is measured.
        return load_model(
            replace(config, skip_tokenizer_init=config.tokenizer is None), show, on_download=show
        )
