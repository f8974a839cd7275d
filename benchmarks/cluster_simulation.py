"""What a cluster of servers would do: how often prompts are found, how long first tokens take, what the front's router
can place. Schedulers, caches and the router are real; steps take as long as the planner says.

    python benchmarks/cluster_simulation.py --shape llama-3.1-8b --machine epyc-9654 --servers 2,16,128
    python benchmarks/cluster_simulation.py --shape llama-3.1-70b --machine epyc-9654 --servers 8 --stages 1,2,4
    python benchmarks/cluster_simulation.py --trace mooncake_trace.jsonl --servers 16 ...
    python benchmarks/cluster_simulation.py --measure 2,3

`--measure` runs the bundled model in so many processes here, fits the speeds of steps to short runs of theirs, and
prints the simulation's error on other traffic.

A trace is a file of Mooncake's format: on each line an object with `timestamp` (milliseconds), `input_length`,
`output_length` and `hash_ids`, one for each 512 tokens of the prompt.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median, quantiles

from simulated_cluster import (
    Boundary,
    EngineSizes,
    InTurn,
    SimulatedCluster,
    SimulatedEngine,
    SimulatedRequest,
    StepSeconds,
    hit_rate,
)

from pellucid.backends.quantization.formats import BF16, FORMATS
from pellucid.benchmark.load.traffic import Lengths, Traffic
from pellucid.benchmark.machine_facts import KNOWN_MACHINES
from pellucid.benchmark.measured_speed import SecondsByKind, seconds_at_ceilings
from pellucid.benchmark.planned_model import (
    PlannedModel,
    find_planned_model,
    plan_shape,
    speed_of_this_machine,
)
from pellucid.benchmark.step_work import StepWork
from pellucid.cluster.router import Router
from pellucid.facts import formulas
from pellucid.facts.model_config import ModelConfig
from pellucid.facts.model_parts import PartMemory, divide_layers, part_of
from pellucid.inputs.config import EngineConfig
from pellucid.memory.engine_plan import EngineModels, ModelNeeds, plan_engine
from pellucid.memory.memory_plan import StageNeeds

TRACE_BLOCK = 512  # tokens that a hash of a trace stands for
PREFIXES, OWN = (
    10**6,
    10**9,
)  # the first token of shared prefixes, and of what each prompt has alone
ROUTERS = {"prefix": Router, "turns": InTurn}


# -- traffic ---------------------------------------------------------------------------------------


def drawn(traffic: Traffic) -> list[SimulatedRequest]:
    """The requests of `pellucid bench-serve`: the same lengths, prefixes and times."""
    return [
        SimulatedRequest(
            (PREFIXES + each.prefix,) * traffic.prefix_tokens
            + (OWN + each.index,) * each.num_prompt_tokens,
            each.num_output_tokens,
            each.due,
        )
        for each in traffic.requests()
    ]


def recorded(path: Path) -> Iterator[SimulatedRequest]:
    """The requests of a trace.

    Raises:
        ValueError: a line is not of Mooncake's format.
    """
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                stored = json.loads(line)
                length, hashes = stored["input_length"], stored["hash_ids"]
                tokens = tuple(each for each in hashes for _ in range(TRACE_BLOCK))[:length]
                if not 0 < length == len(tokens):
                    raise ValueError(f"input_length={length} with {len(hashes)} hash_ids")
                num_output_tokens = max(1, int(stored["output_length"]))
                request = SimulatedRequest(tokens, num_output_tokens, stored["timestamp"] / 1e3)
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{path}, line {number}: {error!r}") from None
            yield request


# -- engines ---------------------------------------------------------------------------------------


def plan_replica(
    model: PlannedModel, num_stages: int, memory: int
) -> tuple[EngineSizes, list[StepWork]]:
    """The sizes of an engine whose layers so many machines compute, and the work of each of them.

    Args:
        memory: of each machine, in bytes.

    Raises:
        ValueError: the model does not fit, cannot be cut so often, or has recurrent layers.
    """
    settings, config = model.settings, model.config
    if config.states:
        raise ValueError("recurrent layers are not simulated")
    matrix_bytes = FORMATS.get(settings.quantization, BF16).num_bytes
    parts = [config]
    if num_stages > 1:
        layer_bytes = [
            sum(
                each.num_matrices * matrix_bytes(each.num_outputs, each.num_inputs)
                for each in formulas.layer_matrices(layer, config.hidden_size)
            )
            for layer in config.layers
        ]
        end = matrix_bytes(config.vocab_size, config.hidden_size)
        divided = divide_layers(config, layer_bytes, (end, end), [PartMemory(memory)] * num_stages)
        parts = [part_of(config, layers) for layers in divided]
    needs = _needs_of_parts(model, parts, memory)
    plan = plan_engine(settings, EngineModels(needs), num_stages * memory - needs.weight_bytes)
    sizes = EngineSizes(
        plan.memory.num_blocks,
        settings.block_size,
        settings.max_num_seqs,
        settings.max_num_batched_tokens,
        plan.memory.block_needs.windows,
    )
    scale = model.weight_bytes / formulas.stored_weight_bytes(config, matrix_bytes)
    work = [
        StepWork(
            part,
            lambda *size: scale * matrix_bytes(*size),
            formulas.kv_position_bytes(part, settings.kv_cache_dtype),
        )
        for part in parts
    ]
    return sizes, work


def _needs_of_parts(model: PlannedModel, parts: Sequence[ModelConfig], memory: int) -> ModelNeeds:
    """What a plan takes of a model whose last part lies on the engine's machine."""
    if len(parts) == 1:
        return model.models.model
    settings = model.settings
    *stages, own = [plan_shape(model.name, part, settings).models.model for part in parts]

    def bytes_per_block(needs: ModelNeeds) -> int:
        return needs.backend.kv_bytes_per_block(
            needs.config, settings.block_size, settings.kv_cache_dtype
        )

    elsewhere = tuple(
        StageNeeds(
            f"stage {number}",
            memory - each.weight_bytes,
            each.weight_bytes,
            each.scratch_bytes,
            bytes_per_block(each),
            0,
        )
        for number, each in enumerate(stages)
    )
    return ModelNeeds(
        model.config,
        own.backend,
        own.weight_bytes + sum(each.weight_bytes for each in stages),
        own.scratch_bytes + sum(each.scratch_bytes for each in stages),
        elsewhere,
        bytes_per_block(own),
    )


# -- results ---------------------------------------------------------------------------------------

COLUMNS = "servers  stages  router    blocks  hit rate  first token p50 / p95   a token   tokens/s   router p50 / p99"


def simulate(
    router: str,
    num_replicas: int,
    sizes: EngineSizes,
    seconds: StepSeconds,
    latency: float,
    requests: Sequence[SimulatedRequest],
    concurrency: int | None,
) -> tuple[SimulatedCluster, float]:
    """Runs the requests on so many replicas; returns the cluster and the seconds that they took."""
    engines = [SimulatedEngine(sizes, seconds) for _ in range(num_replicas)]
    cluster = SimulatedCluster(
        ROUTERS[router](sizes.block_size), engines, sizes.block_size, latency
    )
    return cluster, cluster.run(requests, concurrency)


def shown(requests: Sequence[SimulatedRequest], cluster: SimulatedCluster, seconds: float) -> str:
    """The figures of a run, as the table has them."""
    first = quantiles([each.first_token_seconds for each in requests], n=20)
    tokens = [each.token_seconds for each in requests if each.token_seconds is not None]
    rate = sum(each.num_output_tokens for each in requests) / seconds
    placing = quantiles(cluster.router_seconds, n=100)
    return (
        f"{hit_rate(requests):8.3f}  {first[9]:9.3f} / {first[18]:7.3f} s "
        f"{(median(tokens) if tokens else 0) * 1e3:7.1f} ms {rate:10.1f}"
        f"   {placing[49] * 1e3:6.2f} / {placing[98] * 1e3:.2f} ms"
    )


def main() -> None:
    args = parser().parse_args()
    if args.measure:
        from measured_replicas import print_errors

        print_errors(args.measure, args.seed)
        return
    settings = EngineConfig(
        model=args.model,
        quantization=args.quantization,
        kv_cache_dtype=args.kv_cache_dtype,
        num_kv_blocks=args.num_kv_blocks,
        max_model_len=args.max_model_len,
        max_num_seqs=args.max_num_seqs,
        speculation="off",
        skip_tokenizer_init=True,
    )
    model = find_planned_model(args.shape, settings)
    speed, memory = machine_of(args, model)
    boundary = Boundary(
        args.boundary_ms / 1e3, 4 * model.config.hidden_size * 8 / (args.network_gbit * 1e9)
    )
    print(COLUMNS)
    for num_servers in args.servers:
        for num_stages in args.stages:
            try:
                sizes, work = plan_replica(model, num_stages, memory)
            except ValueError as error:
                print(f"{num_servers:7}  {num_stages:6}  {error}")
                continue
            num_replicas = num_servers // num_stages
            for router in args.routers:
                requests = traffic_of(args, num_servers)
                concurrency = args.concurrency and args.concurrency * num_servers
                cluster, seconds = simulate(
                    router,
                    num_replicas,
                    sizes,
                    StepSeconds(work, speed, boundary),
                    args.latency_ms / 1e3,
                    requests,
                    concurrency,
                )
                print(
                    f"{num_servers:7}  {num_stages:6}  {router:6}  {sizes.num_blocks:8}  "
                    + shown(requests, cluster, seconds),
                    flush=True,
                )


def machine_of(args: argparse.Namespace, model: PlannedModel) -> tuple[SecondsByKind, int]:
    """The speed and the memory of each server.

    Raises:
        ValueError: nothing is known of this machine.
    """
    if args.machine != "this":
        machine = KNOWN_MACHINES[args.machine]
        ceilings = machine.bandwidth_bytes_per_second, machine.flops_per_second
        share = args.share_of_ceilings
        return (
            seconds_at_ceilings(*(share * each for each in ceilings)),
            int(machine.memory_bytes),
        )
    speed, memory = (
        speed_of_this_machine(model),
        model.models.model.backend.available_memory(),
    )
    if speed is None or memory is None:
        raise ValueError(
            "--machine this: run `pellucid bench` with these formats first, which measures its speed"
        )
    return speed, memory


def traffic_of(args: argparse.Namespace, num_servers: int) -> list[SimulatedRequest]:
    """As many requests for each server, at a rate for each, whatever their number."""
    num_requests = args.requests * num_servers
    if args.trace is not None:
        return list(islice(recorded(args.trace), num_requests))
    return drawn(
        Traffic(
            num_requests,
            Lengths.parse("--prompts", args.prompts),
            Lengths.parse("--outputs", args.outputs),
            None if args.concurrency else args.rate * num_servers,
            prefix_tokens=args.prefix_tokens,
            num_prefixes=args.prefixes * num_servers,
            seed=args.seed,
        )
    )


def numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("model", nargs="?")
    add("--shape", help="a known shape instead of MODEL")
    add("--quantization", default="none")
    add("--kv-cache-dtype", default="bf16")
    add("--num-kv-blocks", type=int, help="of each replica; left out, what its memory holds")
    add("--max-model-len", type=int)
    add("--max-num-seqs", type=int, default=64)
    add("--machine", default="this", choices=["this", *KNOWN_MACHINES], help="each server")
    add("--share-of-ceilings", type=float, default=0.6, help="that steps reach of a known machine")
    add("--servers", type=numbers, default=[2], help="machines, for example 2,16")
    add("--stages", type=numbers, default=[1], help="machines for each replica")
    add("--routers", type=lambda text: text.split(","), default=[*ROUTERS])
    add("--latency-ms", type=float, default=0.2, help="between the front and a replica, one way")
    add("--boundary-ms", type=float, default=1.0, help="a message to a stage, and its reply")
    add("--network-gbit", type=float, default=10.0, help="between stages")
    add("--requests", type=int, default=200, help="for each server")
    add("--rate", type=float, default=1.0, help="requests a second, for each server")
    add("--concurrency", type=int, help="requests at a time for each server, instead of a rate")
    add("--prompts", default="100-400", help="tokens, as in bench-serve, behind the prefix")
    add("--outputs", default="64-192", help="tokens")
    add("--prefix-tokens", type=int, default=1000, help="of each shared prefix")
    add("--prefixes", type=int, default=20, help="shared prefixes for each server")
    add("--trace", type=Path, help="recorded requests, instead of drawn ones")
    add("--seed", type=int, default=0)
    add("--measure", type=numbers, help="compare with so many replicas here, for example 2,3")
    return parser


if __name__ == "__main__":
    main()
