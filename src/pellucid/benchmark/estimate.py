"""Estimates what a model needs and how fast it can be, each number with its formula and its inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pellucid.backends.quantization.formats import BF16, FORMATS
from pellucid.benchmark.machine_facts import MachineFacts, Provenance
from pellucid.benchmark.measured_speed import SecondsByKind, predicted_seconds
from pellucid.benchmark.planned_model import PlannedModel
from pellucid.benchmark.step_work import Step, model_work, steps_of
from pellucid.benchmark.workloads import Prefill
from pellucid.facts import formulas
from pellucid.facts.kv_groups import block_needs, open_key_bytes
from pellucid.facts.model_config import ModelConfig
from pellucid.memory.engine_plan import EnginePlan, max_model_len

MEASURED = "_measured"  # ends the names of times as measured here
# Unit and formula, of a step of prefill and of decode.
_OF_STEPS: Mapping[str, tuple[str, str]] = {
    "weight_bytes": (
        "B",
        "weights - embedding rows - experts that no token chooses: n * (1 - k/n)^q of n",
    ),
    "flops": ("FLOP", "2*P*q + 4*L*Hq*d*pairs + head"),
    "bytes": ("B", "weights + K and V read and written"),
    "intensity": ("FLOP/B", "FLOPs / bytes"),
    "seconds": ("s", "max(FLOPs / F, bytes / W)"),
}
_FITTED = "sum over kinds of work: amount * seconds of a unit, fitted to runs of pellucid bench"
_KV_BLOCKS = (
    "floor(((memory - weights) * u - scratch - states) / bytes of a block), at most what S requests of c tokens hold;"
    " or as the settings say"
)
# Unit and formula of each number, in words of its inputs. One that ends in MEASURED has those of the same name without.
FORMULAS: Mapping[str, tuple[str, str]] = {
    "parameters": ("", "matrices of all layers + embeddings"),
    "active_parameters": ("", "matrices that a token passes + head"),
    "weight_bytes": ("B", "bytes of all weights, scales included"),
    "kv_bytes_per_token": ("B", "sum over layers of 2 * Hkv * d * b"),
    "kv_blocks_per_request": ("", "ceil(n / s)"),
    "state_bytes_per_request": ("B", "sum over recurrent layers of 4 * numbers of a state"),
    "open_key_bytes_per_request": ("B", "sum over layers of 2 * 32 * Hkv * d * 2"),
    "kv_bytes_per_request": ("B", "blocks * bytes of a block"),
    "kv_bytes_batch": ("B", "B * bytes of a request"),
    "kv_blocks": ("", _KV_BLOCKS),
    "requests_that_fit": ("", "min(S, floor(blocks / blocks of a request))"),
    "longest_context": ("token", "longest n up to c whose blocks fit"),
    "bandwidth": ("B/s", "of the machine"),
    "peak": ("FLOP/s", "of the machine"),
    "ridge": ("FLOP/B", "F / W"),
    **{f"{step}_{name}": row for step in ("prefill", "decode") for name, row in _OF_STEPS.items()},
    "first_token_seconds": ("s", "prefill of one prompt, no queue"),
    f"first_token_seconds{MEASURED}": ("s", _FITTED),
    f"decode_seconds{MEASURED}": ("s", _FITTED),
    "tokens_per_second": ("token/s", "B / decode step"),
    "request_seconds": ("s", "prefill + (T - 1) * decode step at the longest context"),
    "price_per_million_tokens": ("price/Mtoken", "price an hour / (3600 * tokens/s) * 1e6"),
    "cached_token_passes": ("token", "N + T - 1"),
    "naive_token_passes": ("token", "N*T + T*(T - 1)/2"),
    "tokens_per_round": ("token", "(1 - a^(k+1)) / (1 - a)"),
    "draft_speedup": ("x", "E / (k*c + v)"),
}


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

    @property
    def num_positions(self) -> int:
        """Of a request in the KV cache, at its end: the last token is not computed."""
        return self.prompt + self.output - 1


def estimate(
    model: PlannedModel,
    plan: EnginePlan | None,
    machine: MachineFacts,
    work: Workload,
    speed: SecondsByKind | None = None,
) -> list[Number]:
    """All formulas for one model, machine and workload.

    Args:
        plan: of the engine on this machine; None: there is no room for a sequence.
        speed: of this machine, as `bench` measured it; None: no times "as measured here".
    """
    sheet = _Sheet()
    _add_size(sheet, model)
    _add_request(sheet, model, work)
    _add_memory(sheet, model, plan, machine.memory_bytes, work)
    _add_speed(sheet, model, machine, work)
    if speed is not None:
        _add_measured_speed(sheet, model, work, speed)
    _add_token_passes(sheet, work)
    if work.num_drafts:
        _add_speculation(sheet, work)
    return sheet.numbers


def estimate_memory(
    model: PlannedModel, plan: EnginePlan | None, memory_bytes: float | None, work: Workload
) -> list[Number]:
    """The sizes among the numbers of `estimate`: those that no speed of a machine decides.

    Args:
        memory_bytes: of the machine, for weights and KV cache; None: unknown, so nothing is said of what fits.
    """
    sheet = _Sheet()
    _add_size(sheet, model)
    _add_request(sheet, model, work)
    if memory_bytes is not None:
        _add_memory(sheet, model, plan, memory_bytes, work)
    return sheet.numbers


class _Sheet:
    """The numbers so far."""

    def __init__(self) -> None:
        self.numbers: list[Number] = []

    def add(self, name: str, value: float, provenance: Provenance, **inputs: float | str) -> float:
        """Adds a number, and returns its value. An input `formula` stands in place of that of `FORMULAS`."""
        unit, formula = FORMULAS.get(name) or FORMULAS[name.removesuffix(MEASURED)]
        formula = str(inputs.pop("formula", formula))
        self.numbers.append(Number(name, value, unit, provenance, formula, inputs))
        return value

    def count(self, name: str, value: float, **inputs: float | str) -> float:
        """Adds a number that is exact."""
        return self.add(name, value, "C", **inputs)

    def estimate(self, name: str, value: float, **inputs: float | str) -> float:
        """Adds a number that is estimated."""
        return self.add(name, value, "E", **inputs)


def _add_size(sheet: _Sheet, model: PlannedModel) -> None:
    """Parameters, and the bytes of weights."""
    config = model.config
    layers = formulas.matrix_parameters(config)
    embeddings = formulas.embedding_parameters(config)
    sheet.count("parameters", layers + embeddings, layers=layers, embeddings=embeddings)
    layers, head = formulas.active_matrix_parameters(config), config.vocab_size * config.hidden_size
    sheet.count("active_parameters", layers + head, layers=layers, head=head)
    sheet.count("weight_bytes", model.weight_bytes, quantization=model.settings.quantization)


def _active_parameters(model: ModelConfig) -> int:
    return formulas.active_matrix_parameters(model) + model.vocab_size * model.hidden_size


def _add_request(sheet: _Sheet, model: PlannedModel, work: Workload) -> None:
    """What a request holds of the KV cache, of recurrent states and of open keys."""
    settings, config, own_heads = model.settings, model.config, model.own_heads
    position = formulas.kv_position_bytes(own_heads, settings.kv_cache_dtype)
    sheet.count(
        "kv_bytes_per_token",
        position,
        kv_cache_dtype=settings.kv_cache_dtype,
        layers=len(config.layers),
        n_kv=own_heads.attentions[0].num_kv_heads,
        head_dim=config.attentions[0].head_dim,
    )
    needs = block_needs(config, settings.block_size, settings.max_num_batched_tokens)
    by_groups = "sum over groups of ceil(n / s), at most a window and a step of m tokens"
    blocks = sheet.count(
        "kv_blocks_per_request",
        needs.most(work.num_positions),
        n=work.num_positions,
        s=settings.block_size,
        m=settings.max_num_batched_tokens,
        **({} if needs.windows == (None,) else {"formula": by_groups}),
    )
    states = formulas.state_bytes(config)
    if states:
        recurrent = sum(layer.recurrence is not None for layer in config.layers)
        sheet.count("state_bytes_per_request", states, layers=recurrent)
    open_keys = open_key_bytes(own_heads, settings.kv_cache_dtype)
    if open_keys:
        sheet.count("open_key_bytes_per_request", open_keys, layers=len(config.attentions))
    block_bytes = model.models.model.backend.kv_bytes_per_block(
        config, settings.block_size, settings.kv_cache_dtype
    )
    parts = ["blocks * bytes of a block"]
    parts += [name for name, size in (("states", states), ("open keys", open_keys)) if size]
    per_request = sheet.count(
        "kv_bytes_per_request",
        blocks * block_bytes + states + open_keys,
        blocks=blocks,
        block_bytes=block_bytes,
        states=states,
        open_keys=open_keys,
        by_formula=work.num_positions * position + states + open_keys,
        **({"formula": " + ".join(parts)} if len(parts) > 1 else {}),
    )
    sheet.count("kv_bytes_batch", work.batch * per_request, B=work.batch)


def _add_memory(
    sheet: _Sheet,
    model: PlannedModel,
    plan: EnginePlan | None,
    memory_bytes: float,
    work: Workload,
) -> None:
    """What fits beside the weights."""
    settings = model.settings
    memory = None if plan is None else plan.memory
    blocks = sheet.count(
        "kv_blocks",
        0 if memory is None else memory.num_blocks,
        memory=memory_bytes,
        weights=model.weight_bytes,
        u=settings.memory_utilization,
        scratch=0 if memory is None else memory.scratch,
        states=0 if memory is None else memory.states,
        S=settings.max_num_seqs,
        c=model.config.context_length,
        decided_by="no room" if memory is None else memory.decided_by,
    )
    fitting = 0 if plan is None else plan.num_requests(work.num_positions)
    given = {"blocks": blocks, "memory": memory_bytes}
    sheet.count("requests_that_fit", fitting, S=settings.max_num_seqs, **given)
    longest = 0 if memory is None else memory.max_model_len
    sheet.count("longest_context", longest, c=max_model_len(settings, model.config), **given)


def _read_share(model: PlannedModel, num_tokens: int) -> float:
    """Of the weights in memory, the share that a step of `num_tokens` tokens reads."""
    bytes_of = FORMATS.get(model.settings.quantization, BF16).num_bytes
    unread = formulas.unread_expert_bytes(model.config, bytes_of, num_tokens)
    return (formulas.weight_bytes(model.config, bytes_of) - unread) / formulas.stored_weight_bytes(
        model.config, bytes_of
    )


def _add_speed(sheet: _Sheet, model: PlannedModel, machine: MachineFacts, work: Workload) -> None:
    """The roofline of prefill and decode, and the times and the price that follow."""
    config, weight_bytes = model.config, model.models.model.weight_bytes
    bandwidth, peak = machine.bandwidth_bytes_per_second, machine.flops_per_second
    sheet.add("bandwidth", bandwidth, machine.provenance, machine=machine.name)
    sheet.add("peak", peak, machine.provenance, machine=machine.name)
    sheet.estimate("ridge", peak / bandwidth, F=peak, W=bandwidth)

    def add_step(name: str, start: int, end: int, num_requests: int) -> float:
        """The step that computes positions start .. end - 1 of each request."""
        num_tokens = num_requests * (end - start)
        flops = num_requests * formulas.forward_flops(config, start, end, 1) / model.num_ranks
        weights = sheet.add(
            f"{name}_weight_bytes",
            weight_bytes * _read_share(model, num_tokens),
            "E" if any(layer.experts for layer in config.layers) else "C",
            weights=weight_bytes,
            q=num_tokens,
        )
        moved = weights + num_requests * kv_bytes(start, end)
        sheet.count(f"{name}_flops", flops, P=_active_parameters(config))
        sheet.count(f"{name}_bytes", moved, weights=weights)
        sheet.count(f"{name}_intensity", flops / moved)
        return sheet.estimate(
            f"{name}_seconds",
            max(flops / peak, moved / bandwidth),
            F=peak,
            W=bandwidth,
            bound="compute" if flops / peak > moved / bandwidth else "memory",
        )

    own_heads = model.own_heads
    kv_bytes = formulas.KVBytes(
        own_heads, formulas.kv_position_bytes(own_heads, model.settings.kv_cache_dtype)
    )
    context = work.prompt + work.output
    prefill = add_step("prefill", 0, work.prompt, num_requests=1)
    decode = add_step("decode", context - 1, context, num_requests=work.batch)
    sheet.estimate("first_token_seconds", prefill)
    _add_times(sheet, work, prefill, decode, "")


def _add_measured_speed(
    sheet: _Sheet, model: PlannedModel, work: Workload, speed: SecondsByKind
) -> None:
    """The same times as the measured speeds of the machine have them."""
    step_work = model_work(model.settings, model.config, model.models.model.weight_bytes)
    context = work.prompt + work.output

    def add_steps(name: str, steps: Sequence[Step]) -> float:
        counted = step_work.of(steps)
        amounts = {kind: amount for kind, amount in counted.items() if amount}
        seconds = predicted_seconds(speed, counted)
        return sheet.estimate(f"{name}_seconds{MEASURED}", seconds, **amounts)

    chunk = model.settings.max_num_batched_tokens
    prefill = add_steps("first_token", steps_of(Prefill(work.prompt), chunk))
    decode = add_steps("decode", [Step(context - 1, context, work.batch)])
    _add_times(sheet, work, prefill, decode, MEASURED)


def _add_times(sheet: _Sheet, work: Workload, prefill: float, decode: float, suffix: str) -> None:
    """What follows from the seconds of a prompt and of a decode step."""
    rate = sheet.estimate(f"tokens_per_second{suffix}", work.batch / decode, B=work.batch)
    whole = prefill + (work.output - 1) * decode
    sheet.estimate(f"request_seconds{suffix}", whole, T=work.output)
    if price := work.price_per_hour:
        per_million = price / (3600 * rate) * 1e6
        sheet.estimate(f"price_per_million_tokens{suffix}", per_million, price=price)


def _add_token_passes(sheet: _Sheet, work: Workload) -> None:
    """Tokens that pass through the model for an answer, with and without a KV cache."""
    for name, use_cache in (("cached", True), ("naive", False)):
        passes = formulas.token_passes(work.prompt, work.output, use_cache)
        sheet.count(f"{name}_token_passes", passes, N=work.prompt, T=work.output)


def _add_speculation(sheet: _Sheet, work: Workload) -> None:
    a, k, c, v = work.acceptance, work.num_drafts, work.draft_cost, work.verify_cost
    sheet.estimate("tokens_per_round", formulas.expected_tokens(a, k), a=a, k=k)
    sheet.estimate("draft_speedup", formulas.draft_speedup(a, k, c, v), a=a, k=k, c=c, v=v)
