"""`pellucid list`: the models in the hub's cache."""

import time
from typing import TYPE_CHECKING, Any

from pellucid.cli.output.json_output import print_json
from pellucid.cli.output.terminal import note, print_table
from pellucid.cli.output.units import ago, counted, num_bytes
from pellucid.cli.parsing.options import Json

if TYPE_CHECKING:
    from pellucid.model_store.cache import CachedModel


def list(json: Json = False) -> None:  # noqa: A001 (the verb's name)
    """List the downloaded models.

    Those in the cache of the Hugging Face hub, the last used first. Other programs keep theirs there, too.
    """
    from pellucid.model_store.cache import cache_folder, cached_models

    models = cached_models()
    if json:
        print_json([_object(model) for model in models])
        return
    if not models:
        note(f"no models in {cache_folder()}; pellucid pull qwen3:0.6b downloads one")
        return
    now = time.time()
    rows = [
        (_name(model), num_bytes(model.num_bytes), model.file_format, ago(now - model.last_used))
        for model in models
    ]
    print_table(("model", "size", "format", "used"), rows)
    total = num_bytes(sum(model.num_bytes for model in models))
    note(f"{counted(len(models), 'model')}, {total}, in {cache_folder()}")


def _name(model: "CachedModel") -> str:
    return model.name if model.revision is None else f"{model.name} ({model.revision[:12]})"


def _object(model: "CachedModel") -> dict[str, Any]:
    return {
        "name": model.name,
        "revision": model.revision,
        "format": model.file_format,
        "num_bytes": model.num_bytes,
        "last_used": model.last_used,
        "path": str(model.path),
    }
