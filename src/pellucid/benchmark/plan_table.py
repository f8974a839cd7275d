"""What estimates need of models, as JSON: a page without a server computes them from it (web/plan/planner.js)."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from pellucid.backends.quantization.formats import BF16, FORMATS
from pellucid.benchmark.estimate import FORMULAS
from pellucid.benchmark.machine_facts import MachineFacts
from pellucid.benchmark.planned_model import PlannedModel, plan_shape
from pellucid.facts import formulas
from pellucid.facts.kv_groups import block_needs, open_key_bytes
from pellucid.facts.model_config import ModelConfig
from pellucid.inputs.config import EngineConfig, fitting_block_size
from pellucid.memory.memory_plan import MemoryPlan

WEIGHT_FORMATS = ("none", "int8", "int4")
KV_FORMATS = ("bf16", "int8", "int4", "int8,int4")
_PLENTY = 2.0**60  # bytes of memory, in which every model has room


def plan_table(
    own: PlannedModel,
    machines: Mapping[str, MachineFacts],
    shapes: Mapping[str, ModelConfig],
    settings: EngineConfig,
) -> dict[str, Any]:
    """The table of some models and machines.

    Args:
        own: the model of the page's recording, in the table by the name "".
        machines: by the names that requests for estimates have.
        settings: of the engine that would run a shape; its formats are those of "as loaded".
    """
    facts = {"": _facts(own.name, own.config, own.settings, own)}
    facts |= {name: _facts(name, config, settings) for name, config in shapes.items()}
    return {
        "formulas": FORMULAS,
        "settings": {
            "S": settings.max_num_seqs,
            "m": settings.max_num_batched_tokens,
            "u": settings.memory_utilization,
            "quantization": settings.quantization,
            "kv_cache_dtype": settings.kv_cache_dtype,
        },
        "machines": {name: asdict(machine) for name, machine in machines.items()},
        "models": facts,
    }


def _facts(
    name: str, config: ModelConfig, settings: EngineConfig, loaded: PlannedModel | None = None
) -> dict[str, Any]:
    """Of one model, in each format of its weights and each of its KV cache.

    Args:
        loaded: in the formats of `settings`, its weights counted; None: a shape.
    """
    base = loaded or plan_shape(name, config, settings)
    backend = base.models.model.backend
    dtype = settings.kv_cache_dtype
    plain = _memory(base)

    def planned(quantization: str, kv_dtype: str) -> PlannedModel:
        if (quantization, kv_dtype) == (settings.quantization, dtype):
            return base
        block_size = fitting_block_size(settings.block_size, kv_dtype)
        asked = replace(
            settings, quantization=quantization, kv_cache_dtype=kv_dtype, block_size=block_size
        )
        return plan_shape(name, config, asked, backend)

    weights = {
        quantization: _weights(planned(quantization, dtype)) for quantization in WEIGHT_FORMATS
    }
    caches = {}
    for kv_dtype in KV_FORMATS:
        model = planned(settings.quantization, kv_dtype)
        memory = _memory(model)
        caches[kv_dtype] = {
            "block_tok": memory.block_size,
            "position_bytes": formulas.kv_position_bytes(config, kv_dtype),
            "block_bytes": backend.kv_bytes_per_block(config, memory.block_size, kv_dtype),
            "open_bytes": open_key_bytes(config, kv_dtype),
            "states": memory.states,
            "scratch": memory.scratch - plain.scratch,  # beside that of the weights' format
        }
    flops, kv = formulas.ForwardFlops(config), formulas.KVBytes(config, 1.0)
    attention = config.attentions[0]
    return {
        "name": name,
        "context": config.context_length,
        "layers": len(config.layers),
        "attentions": len(config.attentions),
        "recurrent": sum(layer.recurrence is not None for layer in config.layers),
        "n_kv": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "has_experts": any(layer.experts for layer in config.layers),
        "parameters": formulas.matrix_parameters(config),
        "embeddings": formulas.embedding_parameters(config),
        "active": formulas.active_matrix_parameters(config),
        "head": config.vocab_size * config.hidden_size,
        "token_flops": flops.per_token,
        "logits_flops": flops.per_logits,
        "pair_flops": flops.per_pair_by_window,
        "logits_pair_flops": flops.per_pair_of_logits_by_window,
        "kv_numbers": kv.numbers_by_window,
        "kv_number_share": kv.bytes_per_number,  # of the bytes of a position
        "state_bytes": formulas.state_bytes(config),
        "windows": block_needs(config, settings.block_size, 1).windows,
        "weights": weights,
        "caches": caches,
    }


def _memory(model: PlannedModel) -> MemoryPlan:
    plan = model.engine_plan(_PLENTY)
    assert plan is not None
    return plan.memory


def _weights(model: PlannedModel) -> dict[str, Any]:
    """Of one format: in memory, and as formulas count them."""
    bytes_of = FORMATS.get(model.settings.quantization, BF16).num_bytes
    config = model.config
    return {
        "bytes": model.weight_bytes,
        "model_bytes": model.models.model.weight_bytes,
        "scratch": _memory(model).scratch,
        "read": formulas.weight_bytes(config, bytes_of),
        "stored": formulas.stored_weight_bytes(config, bytes_of),
        "experts": _experts(
            each
            for layer in config.layers
            for each in _sized(formulas.layer_matrices(layer, config.hidden_size), bytes_of)
        ),
    }


def _sized(
    matrices: Iterable[formulas.LayerMatrices], bytes_of: Any
) -> Iterable[tuple[int, int, int]]:
    """How many matrices there are of a shape, how many of them a token passes, and the bytes of all."""
    for each in matrices:
        num_bytes = each.num_matrices * bytes_of(each.num_outputs, each.num_inputs)
        yield each.num_matrices, each.num_active, num_bytes


def _experts(matrices: Iterable[tuple[int, int, int]]) -> Sequence[tuple[int, int, int]]:
    """Their bytes, summed by the two counts; matrices that every token passes are left out."""
    sums = Counter[tuple[int, int]]()
    for count, active, num_bytes in matrices:
        if active < count:
            sums[count, active] += num_bytes
    return [(count, active, num_bytes) for (count, active), num_bytes in sums.items()]
