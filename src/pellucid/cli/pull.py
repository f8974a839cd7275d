"""`pellucid pull`: downloads a model into the hub's cache."""

import time
from typing import Annotated

from pellucid.cli.output.terminal import note
from pellucid.cli.output.units import describe_bytes, num_bytes, seconds
from pellucid.cli.parsing.models import complete_model, resolve_model
from pellucid.cli.parsing.options import Quiet
from pellucid.cli.parsing.panels import OTHERS, argument
from pellucid.progress import progress


def pull(
    model: Annotated[
        str,
        argument(
            "NAME",
            "Short name such as qwen3:0.6b, owner/name, or a GGUF file by its quantization, owner/name:Q4_K_M.",
            autocompletion=complete_model,
        ),
    ],
    *,
    revision: str | None = OTHERS.option("REV", "Branch, tag or commit of a hub id."),
    quiet: Quiet = False,
) -> None:
    """Download a model.

    Commands download a model when they first use it; this one does nothing else. A download that broke off is
    continued. Prints where the model is.
    """
    name = resolve_model(model, quiet=quiet)
    start = time.monotonic()
    with progress("pull", describe_bytes, quiet=quiet) as show:
        from pellucid.model_store.cache import cached_models
        from pellucid.model_store.pulling import pull_model

        path = pull_model(name, revision, show)
    print(path)
    if quiet:
        return
    size = sum(each.num_bytes for each in cached_models() if each.path == path)
    note(f"{name}: {num_bytes(size)}, in {seconds(time.monotonic() - start)}")
