"""Chooses the file that a short name stands for: in four bits, and such that the memory holds it.

Fewer bits are no way out: codes of two and three bits take four in memory (docs/gguf.md).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pellucid.benchmark.planned_model import plan_stored_model
from pellucid.facts import formulas
from pellucid.facts.model_config import ModelConfig
from pellucid.facts.model_names import MODEL_NAMES, KnownModel
from pellucid.inputs.config import EngineConfig
from pellucid.loading.gguf_names import models_among
from pellucid.loading.hub import ALWAYS_THERE
from pellucid.loading.hub_headers import find_headers
from pellucid.loading.hub_repository import HubName, fetch_files, list_files
from pellucid.loading.open_model import open_stored_model
from pellucid.memory.memory_plan import in_gib, plan_weights
from pellucid.model_store.cache import CachedModel, cached_models
from pellucid.shapes import SHAPES

# Of a GGUF repository, the best first; MXFP4 is how gpt-oss was trained.
FOUR_BITS = ("MXFP4", "Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS")
LEAST_CONTEXT = 2048  # tokens, as far as the model reads so many: less is no conversation
_SHARE = 0.95
_FOUR_BIT_BYTES = 4.6 / 8  # a weight of Q4_K in memory


@dataclass(frozen=True)
class Choice:
    """What a short name stands for.

    Args:
        model: as users name it: "owner/name:Q4_K_M", or "owner/name" for a directory.
        reason: why it was chosen, for people.
        max_model_len: the longest context that fits; None: the model's own.
    """

    model: str
    reason: str
    max_model_len: int | None = None


@dataclass(frozen=True)
class _Fit:
    """What a file takes, and the context for which it leaves room.

    Args:
        num_bytes: of its weights, while they are loaded.
        context: the model's.
        longest: context that fits; 0: none.
    """

    num_bytes: int
    context: int
    longest: int


def choose(
    known: KnownModel,
    tag: str | None,
    memory_bytes: int | None,
    settings: Mapping[str, Any] | None = None,
) -> Choice:
    """The file of a model that is in the cache, or else the best one in four bits that the memory holds.

    Args:
        tag: the quantization that the user asked for, which is taken as it is.
        memory_bytes: free; None: whatever the file takes.
        settings: of the engine, which decide how much room a context takes.

    Raises:
        ValueError: none fits; says what would. Or the repository cannot be read.
        OSError: the hub cannot be reached.
    """
    if tag is not None:
        return Choice(f"{known.repository}:{tag}", "as asked for")
    if (cached := _cached(known)) is not None:
        reason, longest = "it is in the cache", None
        if memory_bytes is not None:
            fit = _fit(str(cached.path), memory_bytes, settings or {})
            longest = fit.longest if 0 < fit.longest < fit.context else None
            reason += _context_note(fit)
        return Choice(cached.name, reason, longest)
    name = HubName(known.repository, known.repository, None, None)
    tags = _four_bits(models_among(list_files(name, fetch_files(name, (ALWAYS_THERE,)))))
    models = [f"{known.repository}:{each}" for each in tags] or [known.repository]
    bits = "in four bits" if tags else "as stored"
    if memory_bytes is None:
        return Choice(models[0], bits)
    fits = {}
    for model in models:
        fits[model] = fit = _fit(model, memory_bytes, settings or {})
        if fit.longest >= min(LEAST_CONTEXT, fit.context):
            return Choice(
                model,
                f"{bits} it takes {in_gib(fit.num_bytes)}, and {in_gib(memory_bytes)} of memory are free"
                + _context_note(fit),
                fit.longest if fit.longest < fit.context else None,
            )
    smallest = min(fits, key=lambda model: fits[model].num_bytes)
    raise ValueError(
        f"{known.name}: does not fit: {smallest} takes {in_gib(fits[smallest].num_bytes)}, and"
        f" {in_gib(memory_bytes)} of memory are free{_smaller(known, memory_bytes)}"
    )


def _cached(known: KnownModel) -> CachedModel | None:
    """The file or directory in the cache: of several files the best one in four bits."""
    found = {
        model.tag: model
        for model in cached_models()
        if model.repository == known.repository and model.revision is None and model.is_whole
    }
    return next((found[tag] for tag in (*_four_bits(found), None) if tag in found), None)


def _four_bits(tags: Collection[str | None]) -> list[str]:
    """Those in four bits, the best first."""
    return [tag for tag in FOUR_BITS if tag in tags]


def _fit(model: str, memory_bytes: int, settings: Mapping[str, Any]) -> _Fit:
    """By the headers of the files."""
    config = EngineConfig(model=model, **settings)
    with find_headers(model) as location:
        stored = open_stored_model(location.path, verifies_checksums=False)
        needed = plan_weights(stored, None, config.quantization).while_loading
        plan = None
        if needed <= memory_bytes:
            plan = plan_stored_model(model, stored, config).engine_plan(memory_bytes)
    context = config.max_model_len or stored.config.context_length
    longest = 0 if plan is None else plan.memory.max_model_len
    if longest < context:  # other programs may take more by the time the weights are loaded
        longest = int(longest * _SHARE)
    return _Fit(needed, context, longest)


def _context_note(fit: _Fit) -> str:
    if not 0 < fit.longest < fit.context:
        return ""
    return f"; a context of {fit.longest} tokens fits, of {fit.context}"


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
