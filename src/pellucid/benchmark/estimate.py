"""Estimates what a model needs and how fast it can be, each number with its formula and its inputs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pellucid import formulas
from pellucid.backends.quantization.formats import FORMATS
from pellucid.benchmark.machine_facts import MachineFacts, Provenance
from pellucid.kv_groups import block_needs, kv_groups
from pellucid.model_config import AttentionConfig, ModelConfig

NUMBER_BYTES = {"f32": 4.0, "bf16": 2.0, "int8": 1.0, "int4": 0.5}  # of keys and values
SCALE_BYTES = 2
INT4_GROUP_DIMS = 32


@dataclass(frozen=True)
class Number:
    """One number and where it comes from.

    Attributes:
        unit: "B", "FLOP", "s", "token/s" ...; "" for a count.
        formula: in words of the inputs.
        inputs: what the formula was given.
    """

    name: str
    value: float
    unit: str
    provenance: Provenance
    formula: str
    inputs: Mapping[str, float | str]


@dataclass(frozen=True)
class Workload:
    """The requests for which the model's speed and cost are estimated.

    Attributes:
        prompt, output: tokens of each request.
        batch: requests in a decode step.
        price_per_hour: of the machine, in whatever currency; 0: not asked for.
        acceptance: probability that a draft is right, given those before it.
        num_drafts: in a round; 0: no speculation.
        draft_cost, verify_cost: as in `formulas.draft_speedup`.
    """

    prompt: int
    output: int
    batch: int = 1
    price_per_hour: float = 0.0
    acceptance: float = 0.0
    num_drafts: int = 0
    draft_cost: float = 0.05
    verify_cost: float = 1.0


@dataclass(frozen=True)
class ModelFormats:
    """The formats of weights and KV cache.

    Attributes:
        quantization, kv_cache_dtype: as in `EngineConfig`.
        block_size: tokens in a block.
        weight_bytes: in memory, if the engine has counted them; None: by the formula.
        bytes_per_block: as the pool allocates them; None: by the formula.
        memory_utilization: the share of the memory beside the weights that the engine may use.
        scratch_bytes: what a step takes besides the KV cache, as far as it is known.
    """

    quantization: str
    kv_cache_dtype: str
    block_size: int
    weight_bytes: float | None = None
    bytes_per_block: float | None = None
    memory_utilization: float = 1.0
    scratch_bytes: float = 0.0


def estimate(
    model: ModelConfig, formats: ModelFormats, machine: MachineFacts, work: Workload
) -> list[Number]:
    """All formulas for one model, machine and workload.

    Raises:
        ValueError: a format is not known.
    """
    sheet = _Sheet()
    weight_bytes = _add_size(sheet, model, formats)
    _add_memory(sheet, model, formats, machine.memory_bytes, work, weight_bytes)
    _add_speed(sheet, model, formats, machine, work, weight_bytes)
    _add_token_passes(sheet, work)
    if work.num_drafts:
        _add_speculation(sheet, work)
    return sheet.numbers


def estimate_memory(
    model: ModelConfig, formats: ModelFormats, memory_bytes: float, work: Workload
) -> list[Number]:
    """The sizes among the numbers of `estimate`: those that no speed of a machine decides.

    Args:
        memory_bytes: of the machine, for weights and KV cache.

    Raises:
        ValueError: a format is not known.
    """
    sheet = _Sheet()
    weight_bytes = _add_size(sheet, model, formats)
    _add_memory(sheet, model, formats, memory_bytes, work, weight_bytes)
    return sheet.numbers


class _Sheet:
    """The numbers so far."""

    def __init__(self) -> None:
        self.numbers: list[Number] = []

    def add(
        self,
        name: str,
        value: float,
        unit: str,
        provenance: Provenance,
        formula: str,
        **inputs: float | str,
    ) -> float:
        """Adds a number, and returns its value."""
        self.numbers.append(Number(name, value, unit, provenance, formula, inputs))
        return value


def _add_size(sheet: _Sheet, model: ModelConfig, formats: ModelFormats) -> float:
    """Parameters, and the bytes of weights, which it returns."""
    layers = formulas.matrix_parameters(model)
    embeddings = formulas.embedding_parameters(model)
    sheet.add(
        "parameters",
        layers + embeddings,
        "",
        "C",
        "matrices of all layers + embeddings",
        layers=layers,
        embeddings=embeddings,
    )
    sheet.add(
        "active_parameters",
        _active_parameters(model),
        "",
        "C",
        "matrices that a token passes + head",
        layers=formulas.active_matrix_parameters(model),
        head=model.vocab_size * model.hidden_size,
    )
    by_formula = formulas.stored_weight_bytes(model, matrix_bytes(formats.quantization))
    return sheet.add(
        "weight_bytes",
        by_formula if formats.weight_bytes is None else formats.weight_bytes,
        "B",
        "C",
        "bytes of all matrices, scales included",
        quantization=formats.quantization,
        by_formula=by_formula,
    )


def _read_share(model: ModelConfig, formats: ModelFormats, num_tokens: int) -> float:
    """Of the weights in memory, the share that a step of `num_tokens` tokens reads."""
    bytes_of = matrix_bytes(formats.quantization)
    unread = formulas.unread_expert_bytes(model, bytes_of, num_tokens)
    return (formulas.weight_bytes(model, bytes_of) - unread) / formulas.stored_weight_bytes(
        model, bytes_of
    )


def _active_parameters(model: ModelConfig) -> int:
    return formulas.active_matrix_parameters(model) + model.vocab_size * model.hidden_size


def _add_memory(
    sheet: _Sheet,
    model: ModelConfig,
    formats: ModelFormats,
    memory_bytes: float,
    work: Workload,
    weight_bytes: float,
) -> None:
    """What a request holds of the KV cache and of recurrent states, and what fits beside the weights."""
    context = work.prompt + work.output
    position = kv_position_bytes(model, formats.kv_cache_dtype)
    sheet.add(
        "kv_bytes_per_token",
        position,
        "B",
        "C",
        "sum over layers of 2 * Hkv * d * b",
        kv_cache_dtype=formats.kv_cache_dtype,
        layers=len(model.layers),
        n_kv=model.attentions[0].num_kv_heads,
        head_dim=model.attentions[0].head_dim,
    )
    # At the end of an answer, a token at a time.
    needs = block_needs(model, formats.block_size, max_chunk=1)
    has_windows = needs.windows != (None,)
    block_bytes = formats.bytes_per_block or kv_block_bytes(
        model, formats.kv_cache_dtype, formats.block_size
    )
    blocks = sheet.add(
        "kv_blocks_per_request",
        needs.most(context),
        "",
        "C",
        "sum over groups of ceil(n / s), at most a window" if has_windows else "ceil(n / s)",
        n=context,
        s=formats.block_size,
    )
    states = formulas.state_bytes(model)
    if states:
        sheet.add(
            "state_bytes_per_request",
            states,
            "B",
            "C",
            "sum over recurrent layers of 4 * numbers of a state",
            layers=sum(layer.recurrence is not None for layer in model.layers),
        )
    per_request = sheet.add(
        "kv_bytes_per_request",
        blocks * block_bytes + states,
        "B",
        "C",
        "blocks * bytes of a block" + (" + states" if states else ""),
        blocks=blocks,
        block_bytes=block_bytes,
        states=states,
        by_formula=context * position + states,
    )
    sheet.add(
        "kv_bytes_batch", work.batch * per_request, "B", "C", "B * bytes of a request", B=work.batch
    )
    room = {
        "memory": memory_bytes,
        "weights": weight_bytes,
        "u": formats.memory_utilization,
        "scratch": formats.scratch_bytes,
    }
    free = (memory_bytes - weight_bytes) * formats.memory_utilization
    free -= formats.scratch_bytes
    sheet.add(
        "requests_that_fit",
        max(0, free // per_request),
        "",
        "C",
        "floor(((memory - weights) * u - scratch) / bytes of a request)",
        request=per_request,
        **room,
    )
    num_free_blocks = int(max(0, (free - states) // block_bytes))
    sheet.add(
        "longest_context",
        needs.longest(
            num_free_blocks, min(num_free_blocks * formats.block_size, model.context_length)
        ),
        "token",
        "C",
        "longest n up to c whose blocks fit: ((memory - weights) * u - scratch - states) / block bytes"
        if has_windows
        else "min(floor(((memory - weights) * u - scratch - states) / block bytes) * s, c)",
        c=model.context_length,
        states=states,
        block_bytes=block_bytes,
        s=formats.block_size,
        **room,
    )


def _add_speed(
    sheet: _Sheet,
    model: ModelConfig,
    formats: ModelFormats,
    machine: MachineFacts,
    work: Workload,
    weight_bytes: float,
) -> None:
    """The roofline of prefill and decode, and the times and the price that follow."""
    bandwidth, peak = machine.bandwidth_bytes_per_second, machine.flops_per_second
    source = {"machine": machine.name}
    sheet.add("bandwidth", bandwidth, "B/s", machine.provenance, "of the machine", **source)
    sheet.add("peak", peak, "FLOP/s", machine.provenance, "of the machine", **source)
    sheet.add("ridge", peak / bandwidth, "FLOP/B", "E", "F / W", F=peak, W=bandwidth)

    def add_step(name: str, start: int, end: int, num_requests: int) -> float:
        """The step that computes positions start .. end - 1 of each request."""
        num_tokens = num_requests * (end - start)
        flops = num_requests * formulas.forward_flops(model, start, end, 1)
        weights = sheet.add(
            f"{name}_weight_bytes",
            weight_bytes * _read_share(model, formats, num_tokens),
            "B",
            "E" if any(layer.experts for layer in model.layers) else "C",
            "weights - embedding rows - experts that no token chooses: n * (1 - k/n)^q of n",
            weights=weight_bytes,
            q=num_tokens,
        )
        moved = weights + num_requests * kv_bytes(start, end)
        sheet.add(
            f"{name}_flops",
            flops,
            "FLOP",
            "C",
            "2*P*q + 4*L*Hq*d*pairs + head",
            P=_active_parameters(model),
        )
        sheet.add(
            f"{name}_bytes",
            moved,
            "B",
            "C",
            "weights + K and V read and written",
            weights=weights,
        )
        sheet.add(f"{name}_intensity", flops / moved, "FLOP/B", "C", "FLOPs / bytes")
        return sheet.add(
            f"{name}_seconds",
            max(flops / peak, moved / bandwidth),
            "s",
            "E",
            "max(FLOPs / F, bytes / W)",
            F=peak,
            W=bandwidth,
            bound="compute" if flops / peak > moved / bandwidth else "memory",
        )

    kv_bytes = formulas.KVBytes(model, kv_position_bytes(model, formats.kv_cache_dtype))
    context = work.prompt + work.output
    prefill = add_step("prefill", 0, work.prompt, num_requests=1)
    decode = add_step("decode", context - 1, context, num_requests=work.batch)
    rate = sheet.add(
        "tokens_per_second", work.batch / decode, "token/s", "E", "B / decode step", B=work.batch
    )
    sheet.add("first_token_seconds", prefill, "s", "E", "prefill of one prompt, no queue")
    sheet.add(
        "request_seconds",
        prefill + (work.output - 1) * decode,
        "s",
        "E",
        "prefill + (T - 1) * decode step at the longest context",
        T=work.output,
    )
    if work.price_per_hour:
        sheet.add(
            "price_per_million_tokens",
            work.price_per_hour / (3600 * rate) * 1e6,
            "price/Mtoken",
            "E",
            "price an hour / (3600 * tokens/s) * 1e6",
            price=work.price_per_hour,
        )


def _add_token_passes(sheet: _Sheet, work: Workload) -> None:
    """Tokens that pass through the model for an answer, with and without a KV cache."""
    for name, use_cache, formula in (
        ("cached", True, "N + T - 1"),
        ("naive", False, "N*T + T*(T - 1)/2"),
    ):
        passes = formulas.token_passes(work.prompt, work.output, use_cache)
        sheet.add(
            f"{name}_token_passes", passes, "token", "C", formula, N=work.prompt, T=work.output
        )


def _add_speculation(sheet: _Sheet, work: Workload) -> None:
    a, k = work.acceptance, work.num_drafts
    sheet.add(
        "tokens_per_round",
        formulas.expected_tokens(a, k),
        "token",
        "E",
        "(1 - a^(k+1)) / (1 - a)",
        a=a,
        k=k,
    )
    sheet.add(
        "draft_speedup",
        formulas.draft_speedup(a, k, work.draft_cost, work.verify_cost),
        "x",
        "E",
        "E / (k*c + v)",
        a=a,
        k=k,
        c=work.draft_cost,
        v=work.verify_cost,
    )


def matrix_bytes(quantization: str) -> Callable[[int, int], int]:
    """Bytes of a matrix of (outputs, inputs); "none" is bf16.

    Raises:
        ValueError: there is no such format.
    """
    if quantization == "none":
        return lambda num_outputs, num_inputs: 2 * num_outputs * num_inputs
    if quantization not in FORMATS:
        raise ValueError(
            f"quantization={quantization!r}: must be one of none, {', '.join(FORMATS)}"
        )
    return FORMATS[quantization].num_bytes


def kv_position_bytes(model: ModelConfig, dtype: str) -> float:
    """Bytes of K and V of one position in all layers that have their own, scales included.

    Raises:
        ValueError: there is no such format.
    """
    own = (each for each in model.attentions if each.shared_kv_layer is None)
    return sum(_layer_position_bytes(each, dtype) for each in own)


def kv_block_bytes(model: ModelConfig, dtype: str, block_size: int) -> float:
    """Bytes of one block, which holds as much as the largest group of layers needs. Raises as
    `kv_position_bytes` does."""
    return block_size * max(
        sum(
            _layer_position_bytes(attention, dtype)
            for layer in group.layers
            if (attention := model.layers[layer].attention) is not None
        )
        for group in kv_groups(model)
    )


def _layer_position_bytes(attention: AttentionConfig, dtype: str) -> float:
    if dtype not in NUMBER_BYTES:
        raise ValueError(f"kv_cache_dtype={dtype!r}: must be one of {', '.join(NUMBER_BYTES)}")
    groups = {"int8": 1, "int4": -(-attention.head_dim // INT4_GROUP_DIMS)}.get(dtype, 0)
    head = attention.head_dim * NUMBER_BYTES[dtype] + groups * SCALE_BYTES
    return 2 * attention.num_kv_heads * head
