"""`pellucid serve`: serves a model over HTTP, in OpenAI's, Anthropic's and Ollama's protocols."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pellucid.cli.output.summary import memory_facts, note_memory
from pellucid.cli.output.terminal import note, note_all, note_facts
from pellucid.cli.output.units import describe_bytes
from pellucid.cli.parsing.model_and_prompt import ModelName
from pellucid.cli.parsing.options import (
    ModelOptions,
    PrefixCacheOptions,
    SpeculationOptions,
    StagesOptions,
)
from pellucid.cli.parsing.panels import MODEL, Options, Panel
from pellucid.inputs.config import EngineConfig
from pellucid.progress import progress

if TYPE_CHECKING:
    from pellucid.async_engine import AsyncLLMEngine
    from pellucid.cluster.replica_pool import ReplicaPool
    from pellucid.server.config import KVEventsConfig, ServerConfig

LISTENING, ACCESS = Panel("Address and model name"), Panel("Access")
NEEDED = ("httptools", "msgspec", "prometheus_client", "starlette", "uvicorn", "uvloop")


@dataclass(frozen=True)
class ListeningOptions(Options):
    """Fields of `ServerConfig`, with its defaults."""

    host: str = LISTENING.option(
        "ADDRESS", "Address to listen on; 0.0.0.0 means all addresses.", default="127.0.0.1"
    )
    port: int = LISTENING.option("PORT", "Port to listen on; 0 takes a free one.", default=8000)
    model_name: list[str] | None = LISTENING.option(
        "NAME",
        "Name by which clients call the model; * stands for any characters. May be repeated.",
        show_default="the model's own name",
    )
    max_queue: int = LISTENING.option(
        "N", "Most unfinished completions; further requests get HTTP status 429.", default=1024
    )
    max_connections_per_client: int = LISTENING.option(
        "N",
        "Most open connections of one address. A proxy needs as many as its clients have together.",
        default=1024,
    )
    log_calls: bool = LISTENING.flag(
        "Write a line of JSON on stderr for each call: its id, caller, status and time, no text.",
        "--log-calls",
    )
    otlp_endpoint: str | None = LISTENING.option(
        "URL",
        "OpenTelemetry collector that gets a span for each call, such as http://127.0.0.1:4318.",
    )
    replicas: int = LISTENING.option(
        "N",
        "Processes with an engine each. They share the cores and the memory that is free; a request whose process"
        " ends goes on in another one, to the same answer.",
        default=1,
    )
    kv_events: str | None = LISTENING.option(
        "ADDRESS",
        "Publish which blocks can be found, for routers: vLLM's KV events on a ZeroMQ address such as tcp://*:5557."
        " Who reaches it can read the tokens of all prompts.",
    )
    kv_events_replay: str | None = LISTENING.option(
        "ADDRESS", "Where routers ask for KV events that they missed, such as tcp://*:5558."
    )
    kv_events_topic: str = LISTENING.option(
        "TEXT", "Topic of KV events; llm-d reads kv@POD@MODEL.", default="", show_default="none"
    )
    keep_billing_block: bool = LISTENING.flag(
        "Keep the block of Claude Code's system prompt that changes with every request. The prefix"
        " cache then never finds these prompts.",
        "--keep-billing-block",
    )


@dataclass(frozen=True)
class AccessOptions(Options):
    """Fields of `ServerConfig`, with its defaults."""

    api_keys: Path | None = ACCESS.option(
        "FILE",
        "File with a line 'inference NAME KEY' or 'admin NAME KEY' for each key. 'weight=W' at the end of"
        " a line gives its caller W shares of the engine instead of 1. The keys in PELLUCID_API_KEY and"
        " PELLUCID_ADMIN_KEY are accepted too.",
    )
    api_key: list[str] | None = ACCESS.option(
        "KEY",
        "A key for inference, as in --api-keys; may be repeated. Other users of this machine can see it"
        " in the list of processes: PELLUCID_API_KEY and a file keep it.",
    )
    isolate_keys: bool = ACCESS.flag(
        "Callers learn nothing of the requests of other keys: no ids, no counts, no events.",
        "--isolate-keys",
    )
    allow_anyone: bool = ACCESS.flag("Serve other machines without API keys.", "--allow-anyone")
    allowed_host: list[str] | None = ACCESS.option(
        "NAME", "Host name that clients may use; may be repeated."
    )
    allowed_origin: list[str] | None = ACCESS.option(
        "URL", "Web page that may call from a browser; may be repeated."
    )


def serve(
    words: ModelName,
    *,
    listening_options: ListeningOptions,
    access_options: AccessOptions,
    max_num_seqs: int = MODEL.option(
        "N", "Most requests computed in one step.", default=EngineConfig.max_num_seqs
    ),
    model_options: ModelOptions,
    prefix_cache_options: PrefixCacheOptions,
    stages_options: StagesOptions,
    speculation_options: SpeculationOptions,
) -> None:
    """Serve a model over HTTP.

    Runs until Ctrl-C. Unfinished requests then run to their ends; a second Ctrl-C aborts them.
    """
    missing = [package for package in NEEDED if find_spec(package) is None]
    if missing:
        raise ValueError(f"serve needs {', '.join(missing)}: pip install 'pellucid[server]'")
    from pellucid.server.api_keys import ApiKeys
    from pellucid.server.config import Limits, ServerConfig
    from pellucid.server.run import run_server

    model, num_replicas = words.name(), listening_options.replicas
    stages = groups_of_stages(stages_options.stages, num_replicas)
    engine_config = EngineConfig(
        model=model,
        **words.settings(
            *(model_options, prefix_cache_options, speculation_options),
            replace(stages_options, stages=next(iter(stages), None)),
        ),
        max_num_seqs=max_num_seqs,
    )
    config = ServerConfig(
        host=listening_options.host,
        port=listening_options.port,
        model_names=tuple(listening_options.model_name or words.short_name()),
        keep_billing_block=listening_options.keep_billing_block,
        otlp_endpoint=listening_options.otlp_endpoint,
        kv_events=_kv_events_config(listening_options),
        api_keys=ApiKeys.read(access_options.api_keys, given=access_options.api_key or ()),
        isolate_keys=access_options.isolate_keys,
        allow_anyone=access_options.allow_anyone,
        allowed_hosts=tuple(access_options.allowed_host or ()),
        allowed_origins=tuple(access_options.allowed_origin or ()),
        limits=Limits(
            max_unfinished_completions=listening_options.max_queue,
            max_connections_per_client=listening_options.max_connections_per_client,
        ),
    )
    _set_up_logs(listening_options.log_calls)
    if num_replicas == 1:
        engine: AsyncLLMEngine | ReplicaPool = _one_engine(engine_config, config)
        what = " and the live page"
    else:
        engine = _replicas(num_replicas, engine_config, stages, config)
        what = f" on {num_replicas} replicas"
    name = (*config.model_names, engine.model_name)[0]
    run_server(engine, config, lambda url: note(f"serving {name}{what} at {url}"))


def _one_engine(engine_config: EngineConfig, config: "ServerConfig") -> "AsyncLLMEngine":
    """Loads the model, and shows what it takes."""
    from pellucid.async_engine import AsyncLLMEngine
    from pellucid.engine import LLMEngine
    from pellucid.engine.crash_report import write_crash_report

    with progress("load", describe_bytes) as show:
        notes: list[str] = []
        engine = LLMEngine.from_config(engine_config, show, on_note=notes.append)
    note_all(notes)
    note_memory(engine.plan)
    return AsyncLLMEngine(engine, config.limits.max_unfinished_completions, write_crash_report)


def groups_of_stages(stages: str | None, num_replicas: int) -> list[str]:
    """The stages of each replica: groups of addresses with semicolons between. Empty: there are none.

    Raises:
        ValueError: there are more or fewer groups than replicas.
    """
    if stages is None:
        return []
    groups = [each.strip() for each in stages.split(";")]
    if len(groups) != num_replicas:
        raise ValueError(
            f"stages={stages!r}: has the stages of {len(groups)} replicas, but replicas={num_replicas}; those of each"
            " replica are a group, with semicolons between the groups: 'a:7000,b:7000;c:7000,d:7000'"
        )
    return groups


def _replicas(
    num: int, engine_config: EngineConfig, stages: Sequence[str], config: "ServerConfig"
) -> "ReplicaPool":
    """Starts the processes, and shows what each of them takes."""
    from pellucid.cluster.replica_pool import (
        ReplicaPool,
        check_num_replicas,
        plan_replica,
        plan_replica_of_stages,
    )
    from pellucid.loaded_model import load_without_weights

    check_num_replicas(num)
    if config.kv_events is not None:
        raise ValueError(
            f"replicas={num}: have a router of their own, and publish no KV events; leave kv_events out"
        )
    if (num_ranks := engine_config.tensor_parallel_size) > 1:
        raise ValueError(
            f"tensor_parallel_size={num_ranks}: the processes are one engine; leave replicas out"
        )
    with progress("download", describe_bytes) as show:
        model = load_without_weights(engine_config, show)
    note_all(list(model.notes))
    if stages:
        plan, what = plan_replica_of_stages(engine_config, model), "each replica and its stages"
    else:
        plan, what = plan_replica(engine_config, num, model), "each replica"
    note_facts(f"memory of {what}", memory_facts(plan.memory))
    return ReplicaPool.of_processes(
        engine_config, model, plan, num, config.limits.max_unfinished_completions, stages
    )


def _kv_events_config(options: ListeningOptions) -> "KVEventsConfig | None":
    from pellucid.server.config import KVEventsConfig

    if options.kv_events is not None:
        return KVEventsConfig(
            endpoint=options.kv_events,
            replay_endpoint=options.kv_events_replay,
            topic=options.kv_events_topic,
        )
    for name in ("kv_events_replay", "kv_events_topic"):
        if value := getattr(options, name):
            raise ValueError(f"{name}={value!r}: needs kv_events")
    return None


def _set_up_logs(log_calls: bool) -> None:
    """Warnings and errors as lines of text, calls as lines of JSON."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if log_calls:
        calls = logging.getLogger("pellucid.calls")
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        calls.addHandler(handler)
        calls.setLevel(logging.INFO)
        calls.propagate = False
