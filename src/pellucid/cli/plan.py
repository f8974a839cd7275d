"""`pellucid plan`: what a model needs, how many requests fit, and how fast they can be."""

import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pellucid.benchmark.machine_facts import (
    KNOWN_MACHINES,
    MACHINE_NAMES,
    THIS_MACHINE,
    MachineFacts,
)
from pellucid.cli.output.json_output import print_json
from pellucid.cli.output.summary import formats
from pellucid.cli.output.terminal import wrapped
from pellucid.cli.parsing.model_and_prompt import ModelName
from pellucid.cli.parsing.option_types import check_count, parse_counts, size
from pellucid.cli.parsing.options import Json, PlannedModelOptions
from pellucid.cli.parsing.panels import MODEL, PLANNED_REQUESTS, Options, Panel
from pellucid.inputs.config import EngineConfig

if TYPE_CHECKING:
    from pellucid.benchmark.planned_model import PlannedModel

MACHINE = Panel("Machine")


@dataclass(frozen=True)
class MachineOptions(Options):
    """The machine that a plan is for."""

    machine: str = MACHINE.choice(
        MACHINE_NAMES,
        "The machine: this one is measured; others are as their data sheets say: "
        f"{', '.join(KNOWN_MACHINES)}.",
        metavar="NAME",
        default=THIS_MACHINE,
    )
    device: str = MACHINE.choice(
        ("auto", "cuda", "xpu", "mps", "cpu"),
        "What of this machine computes; its memory, bandwidth and peak are measured. auto: as pellucid run takes it.",
        default=EngineConfig.device,
    )
    memory: int | None = MACHINE.option(
        "SIZE",
        "Memory for weights and KV cache, as in 24GiB.",
        parser=size,
        show_default="the machine's; of this one, what is free",
    )
    bandwidth: float | None = MACHINE.option(
        "GB/S", "Memory bandwidth, in 10^9 bytes a second.", show_default="the machine's"
    )
    peak: float | None = MACHINE.option(
        "GFLOP/S", "Peak arithmetic, in 10^9 operations a second.", show_default="the machine's"
    )

    def check(self) -> None:
        """Raises ValueError for a machine that is not known, or a limit that none can have."""
        if self.machine not in MACHINE_NAMES:
            known = ", ".join(MACHINE_NAMES)
            raise ValueError(f"--machine={self.machine!r}: must be one of {known}")
        if self.machine != THIS_MACHINE and self.device != EngineConfig.device:
            raise ValueError(
                f"--device={self.device!r}: a device of this machine: --machine={self.machine!r} has its data sheet's"
                " limits"
            )
        for name in ("memory", "bandwidth", "peak"):
            limit = getattr(self, name)
            if limit is not None and not 0 < limit < math.inf:
                raise ValueError(f"--{name}={limit}: must be above 0")

    def facts(self, measure: Callable[[], MachineFacts]) -> MachineFacts:
        """The machine's limits.

        Args:
            measure: measures this machine; not called if all limits are given.
        """
        bandwidth = None if self.bandwidth is None else self.bandwidth * 1e9
        peak = None if self.peak is None else self.peak * 1e9
        if self.machine != THIS_MACHINE:
            return KNOWN_MACHINES[self.machine].with_limits(bandwidth, peak, self.memory)
        if bandwidth is not None and peak is not None and self.memory is not None:
            return MachineFacts("as given", "E", bandwidth, peak, self.memory)
        return measure().with_limits(bandwidth, peak, self.memory)


def plan(
    model_name: ModelName,
    *,
    shape: str | None = MODEL.option(
        "NAME",
        "A known model's shape instead of MODEL, without its files: qwen3-30b-a3b, llama-3.1-8b ...",
    ),
    prompt: int = PLANNED_REQUESTS.option("N", "Tokens of each prompt.", default=512),
    gen: int = PLANNED_REQUESTS.option("N", "Tokens of each answer.", default=128),
    batch: str = PLANNED_REQUESTS.option(
        "N,...", "Requests that decode together.", default="1,8,32"
    ),
    max_num_seqs: int = PLANNED_REQUESTS.option(
        "N",
        "Most requests that the engine runs at the same time, as serve takes it.",
        default=EngineConfig.max_num_seqs,
    ),
    machine_options: MachineOptions,
    tensor_parallel_size: int = MACHINE.option(
        "N",
        "Processes that compute each step together, as serve takes it: plans one of them, on a machine of its own.",
        default=EngineConfig.tensor_parallel_size,
    ),
    price: float = MACHINE.option(
        "PRICE",
        "Price of an hour of the machine, in any currency.",
        show_default="no prices are shown",
        default=0.0,
    ),
    model_options: PlannedModelOptions,
    json: Json = False,
) -> None:
    """Plan a model: its memory, the requests that fit, their speed.

    Reads no weights: of a model on the hub only config.json, or the header of its GGUF file. Sizes are
    counted. Times "at best" are the shortest that the machine's memory bandwidth and peak arithmetic allow. Of this
    machine the table also has times "as measured": what pellucid bench reached here with any model in the same
    formats, in the cache folder's pellucid/speeds.json.
    """
    model = model_name.name(is_needed=shape is None, must_fit=False)
    for name, value in (("MODEL", model), ("--revision", model_options.revision)):
        if shape is not None and value is not None:
            raise ValueError(f"--shape={shape!r} needs no files: {name}={value!r} has no effect")
    check_count("--prompt", prompt, least=1)
    check_count("--gen", gen, least=1)
    batches = parse_counts("--batch", batch, least=1)
    if not 0 <= price < math.inf:
        raise ValueError(f"--price={price}: must be a number of at least 0")
    machine_options.check()
    config = EngineConfig(
        model=model,
        max_num_seqs=max_num_seqs,
        device=machine_options.device,
        tensor_parallel_size=tensor_parallel_size,
        **model_options.settings(),
    )

    from pellucid.benchmark.estimate import Workload, estimate
    from pellucid.benchmark.planned_model import (
        find_planned_model,
        measure_this_machine,
        speed_of_this_machine,
    )
    from pellucid.cli.plan_report import plan_object, print_plan

    planned = find_planned_model(shape, config)
    if prompt + gen > planned.config.context_length:
        raise ValueError(
            f"--prompt={prompt}: with --gen={gen}, that is {prompt + gen} tokens; {planned.name} reads at most"
            f" {planned.config.context_length}"
        )
    machine = machine_options.facts(lambda: measure_this_machine(planned))
    engine_plan = planned.engine_plan(machine.memory_bytes)
    speed = speed_of_this_machine(planned) if machine.provenance == "M" else None
    estimates = {
        requests: estimate(
            planned, engine_plan, machine, Workload(prompt, gen, requests, price), speed
        )
        for requests in batches
    }
    if json:
        print_json(plan_object(planned.name, machine, estimates))
    else:
        print_plan(formats(planned.name, config), machine, estimates)
        if tensor_parallel_size > 1:
            print(wrapped(_of_one_process(planned)))
        if machine.provenance == "M" and speed is None:
            print(wrapped(f"To see times as this machine reaches them: {_bench(shape, config)}"))


def _of_one_process(planned: "PlannedModel") -> str:
    num_processes, num_shares = planned.num_ranks, planned.num_kv_shares
    heads = f"1 of {num_shares} shares of the KV heads"
    if num_shares == 1:
        heads = f"all KV heads, since some layer's cannot be divided by {num_processes}"
    return (
        f"Bytes and times are those of each of {num_processes} processes, which has {heads}. The times leave out what"
        " the processes exchange."
    )


def _bench(shape: str | None, config: EngineConfig) -> str:
    """The command that measures this machine with a model in the same formats."""
    words = ["pellucid bench"]
    if shape is not None:
        words.append(f"--shape {shape}")
    elif config.model is not None:
        words.append(shlex.quote(config.model))
    words += [
        f"--{name.replace('_', '-')} {value}"
        for name in ("quantization", "kv_cache_dtype")
        if (value := getattr(config, name)) != getattr(EngineConfig, name)
    ]
    return " ".join(words)
