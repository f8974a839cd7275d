"""Chooses the file that a short name stands for: in four bits, and such that the memory holds it.

Fewer bits are no way out: codes of two and three bits take four in memory (docs/gguf.md).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pellucid import formulas
from pellucid.loading.gguf_names import models_among
from pellucid.loading.hub import ALWAYS_THERE
from pellucid.loading.hub_headers import find_headers
from pellucid.loading.hub_repository import HubName, fetch_files, list_files
from pellucid.loading.open_model import open_stored_model
from pellucid.memory.memory_plan import in_gib, plan_weights
from pellucid.model_config import ModelConfig
from pellucid.model_names import MODEL_NAMES, KnownModel
from pellucid.model_store.cache import cached_models
from pellucid.shapes import SHAPES

# Of a GGUF repository, the best first; MXFP4 is how gpt-oss was trained.
FOUR_BITS = ("MXFP4", "Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS")
_FOUR_BIT_BYTES = 4.6 / 8  # a weight of Q4_K in memory


@dataclass(frozen=True)
class Choice:
    """What a short name stands for.

    Args:
        model: as users name it: "owner/name:Q4_K_M", or "owner/name" for a directory.
        reason: why it was chosen, for people.
    """

    model: str
    reason: str


def choose(known: KnownModel, tag: str | None, memory_bytes: int | None) -> Choice:
    """The file of a model that is in the cache, or else the best one in four bits that the memory holds.

    Args:
        tag: the quantization that the user asked for, which is taken as it is.
        memory_bytes: that weights may take; None: unknown.

    Raises:
        ValueError: none fits; says what would. Or the repository cannot be read.
        OSError: the hub cannot be reached.
    """
    if tag is not None:
        return Choice(f"{known.repository}:{tag}", "as asked for")
    cached = [
        model.tag
        for model in cached_models()
        if model.repository == known.repository and model.revision is None and model.is_whole
    ]
    if cached and (None in cached or _four_bits(cached)):
        return Choice(_named(known, _four_bits(cached)), "it is in the cache")
    name = HubName(known.repository, known.repository, None, None)
    tags = _four_bits(models_among(list_files(name, fetch_files(name, (ALWAYS_THERE,)))))
    needed = {}
    for model in [_named(known, [each]) for each in tags] or [known.repository]:
        needed[model] = needs = _memory_bytes(model)
        if memory_bytes is None or needs <= memory_bytes:
            bits = "in four bits" if tags else "as stored"
            room = "" if memory_bytes is None else f", and {in_gib(memory_bytes)} are free"
            return Choice(model, f"{bits} it takes {in_gib(needs)} of memory{room}")
    assert memory_bytes is not None
    smallest = min(needed, key=lambda model: needed[model])
    raise ValueError(
        f"{known.name}: does not fit: {smallest} takes {in_gib(needed[smallest])} of memory, and"
        f" {in_gib(memory_bytes)} are free{_smaller(known, memory_bytes)}"
    )


def _named(known: KnownModel, tags: Sequence[str]) -> str:
    return f"{known.repository}:{tags[0]}" if tags else known.repository


def _four_bits(tags: Collection[str | None]) -> list[str]:
    """Those in four bits, the best first."""
    return [tag for tag in FOUR_BITS if tag in tags]


def _memory_bytes(model: str) -> int:
    """That loading takes at most, by the headers of the files."""
    with find_headers(model) as location:
        stored = open_stored_model(location.path, verifies_checksums=False)
        return plan_weights(stored, None, "none").while_loading


def _smaller(known: KnownModel, memory_bytes: int) -> str:
    """The largest model of the same family that fits, by its shape: the end of a message."""
    fitting = {
        size: each.name
        for each in MODEL_NAMES.values()
        if each.family == known.family
        and each.shape is not None
        and (size := _num_parameters(SHAPES[each.shape]) * _FOUR_BIT_BYTES) < memory_bytes
    }
    return f"; {fitting[max(fitting)]} fits" if fitting else ""


def _num_parameters(shape: ModelConfig) -> int:
    return formulas.matrix_parameters(shape) + formulas.embedding_parameters(shape)
