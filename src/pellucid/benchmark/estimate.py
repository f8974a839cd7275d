"""Estimates what a model needs and how fast it can be, each number with its formula and its inputs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from pellucid import formulas
from pellucid.backends.quantization.formats import FORMATS
from pellucid.config import ModelConfig
from pellucid.kv_groups import block_needs

Provenance = Literal["M", "C", "E"]  # measured on this machine; counted, exact; estimated
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
class MachineFacts:
    """The limits of a machine.

    Attributes:
        provenance: "M" where the ceilings were measured, "E" where they are a data sheet's.
        bandwidth_bytes_per_second, flops_per_second: ceilings.
        memory_bytes: for weights and KV cache.
    """

    name: str
    provenance: Provenance
    bandwidth_bytes_per_second: float
    flops_per_second: float
    memory_bytes: float


# Data sheets: dense bf16 without sparsity. A step reaches less: measured ceilings are the better inputs.
MACHINES = {
    "a100-80g": MachineFacts("NVIDIA A100 SXM 80 GB", "E", 2.039e12, 312e12, 80e9),
    "h100-80g": MachineFacts("NVIDIA H100 SXM 80 GB", "E", 3.35e12, 989e12, 80e9),
}


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
        weight_bytes: that a step reads, if the engine has counted them; None: by the formula.
        bytes_per_block: as the pool allocates them; None: by the formula.
    """

    quantization: str
    kv_cache_dtype: str
    block_size: int
    weight_bytes: float | None = None
    bytes_per_block: float | None = None


def estimate(
    model: ModelConfig, formats: ModelFormats, machine: MachineFacts, work: Workload
) -> list[Number]:
    """All formulas for one model, machine and workload."""
    numbers: list[Number] = []

    def add(
        name: str,
        value: float,
        unit: str,
        provenance: Provenance,
        formula: str,
        **inputs: float | str,
    ) -> float:
        numbers.append(Number(name, value, unit, provenance, formula, inputs))
        return value

    context = work.prompt + work.output
    head = model.vocab_size * model.hidden_size
    embeddings = formulas.embedding_parameters(model)
    add(
        "parameters",
        formulas.matrix_parameters(model) + embeddings,
        "",
        "C",
        "matrices of all layers + embeddings",
        layers=formulas.matrix_parameters(model),
        embeddings=embeddings,
    )
    active = add(
        "active_parameters",
        formulas.active_matrix_parameters(model) + head,
        "",
        "C",
        "matrices that a token passes + head",
        layers=formulas.active_matrix_parameters(model),
        head=head,
    )
    by_formula = formulas.weight_bytes(model, matrix_bytes(formats.quantization))
    weights = add(
        "weight_bytes",
        by_formula if formats.weight_bytes is None else formats.weight_bytes,
        "B",
        "C",
        "bytes of each matrix that a step reads, scales included",
        quantization=formats.quantization,
        by_formula=by_formula,
    )
    position = kv_position_bytes(model, formats.kv_cache_dtype)
    add(
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
    num_groups = len(needs.windows)
    block_bytes = formats.bytes_per_block or position * formats.block_size / num_groups
    blocks = needs.most(context)
    add(
        "kv_blocks_per_request",
        blocks,
        "",
        "C",
        "ceil(n / s)"
        if needs.windows == (None,)
        else "sum over groups of ceil(n / s), at most a window",
        n=context,
        s=formats.block_size,
    )
    per_request = add(
        "kv_bytes_per_request",
        blocks * block_bytes,
        "B",
        "C",
        "blocks * bytes of a block",
        blocks=blocks,
        block_bytes=block_bytes,
        by_formula=context * position,
    )
    add(
        "kv_bytes_batch", work.batch * per_request, "B", "C", "B * bytes of a request", B=work.batch
    )
    free = machine.memory_bytes - weights
    num_free_blocks = int(max(0, free // block_bytes))
    add(
        "requests_that_fit",
        max(0, free // per_request),
        "",
        "C",
        "floor((memory - weights) / bytes of a request)",
        memory=machine.memory_bytes,
        weights=weights,
        request=per_request,
    )
    add(
        "longest_context",
        needs.longest(num_free_blocks, num_free_blocks * formats.block_size),
        "token",
        "C",
        "floor((memory - weights) / block bytes) * s"
        if needs.windows == (None,)
        else "longest n whose blocks fit: (memory - weights) / block bytes",
        memory=machine.memory_bytes,
        weights=weights,
        block_bytes=block_bytes,
        s=formats.block_size,
    )
    bandwidth, peak = machine.bandwidth_bytes_per_second, machine.flops_per_second
    add("bandwidth", bandwidth, "B/s", machine.provenance, "of the machine", machine=machine.name)
    add("peak", peak, "FLOP/s", machine.provenance, "of the machine", machine=machine.name)
    add("ridge", peak / bandwidth, "FLOP/B", "E", "F / W", F=peak, W=bandwidth)
    kv = formulas.KVBytes(model, position)

    def step(name: str, flops: float, moved: float) -> float:
        seconds = max(flops / peak, moved / bandwidth)
        add(f"{name}_flops", flops, "FLOP", "C", "2*P*q + 4*L*Hq*d*pairs + head", P=active)
        add(f"{name}_bytes", moved, "B", "C", "weights + K and V read and written", weights=weights)
        add(f"{name}_intensity", flops / moved, "FLOP/B", "C", "FLOPs / bytes")
        return add(
            f"{name}_seconds",
            seconds,
            "s",
            "E",
            "max(FLOPs / F, bytes / W)",
            F=peak,
            W=bandwidth,
            bound="compute" if flops / peak > moved / bandwidth else "memory",
        )

    prefill = step(
        "prefill",
        formulas.forward_flops(model, 0, work.prompt, 1),
        weights + kv(0, work.prompt),
    )
    last = context - 1
    decode = step(
        "decode",
        work.batch * formulas.forward_flops(model, last, context, 1),
        weights + work.batch * kv(last, context),
    )
    rate = add(
        "tokens_per_second", work.batch / decode, "token/s", "E", "B / decode step", B=work.batch
    )
    add("first_token_seconds", prefill, "s", "E", "prefill of one prompt, no queue")
    add(
        "request_seconds",
        prefill + (work.output - 1) * decode,
        "s",
        "E",
        "prefill + (T - 1) * decode step at the longest context",
        T=work.output,
    )
    if work.price_per_hour:
        add(
            "price_per_million_tokens",
            work.price_per_hour / (3600 * rate) * 1e6,
            "price/Mtoken",
            "E",
            "price an hour / (3600 * tokens/s) * 1e6",
            price=work.price_per_hour,
        )
    for use_cache, name in ((True, "cached"), (False, "naive")):
        add(
            f"{name}_token_passes",
            formulas.token_passes(work.prompt, work.output, use_cache),
            "token",
            "C",
            "N + T - 1" if use_cache else "N*T + T*(T - 1)/2",
            N=work.prompt,
            T=work.output,
        )
    if work.num_drafts:
        a, k = work.acceptance, work.num_drafts
        add(
            "tokens_per_round",
            formulas.expected_tokens(a, k),
            "token",
            "E",
            "(1 - a^(k+1)) / (1 - a)",
            a=a,
            k=k,
        )
        add(
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
    return numbers


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
    if dtype not in NUMBER_BYTES:
        raise ValueError(f"kv_cache_dtype={dtype!r}: must be one of {', '.join(NUMBER_BYTES)}")
    total = 0.0
    for attention in model.attentions:
        if attention.shared_kv_layer is not None:
            continue
        groups = {"int8": 1, "int4": -(-attention.head_dim // INT4_GROUP_DIMS)}.get(dtype, 0)
        head = attention.head_dim * NUMBER_BYTES[dtype] + groups * SCALE_BYTES
        total += 2 * attention.num_kv_heads * head
    return total
