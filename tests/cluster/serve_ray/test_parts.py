"""What an application is built from, without Ray's processes."""

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs pellucid[ray]; `make test-cluster` installs it")

from pellucid.serve_ray import build
from pellucid.serve_ray.autoscaling import ReplicasNeeded
from pellucid.serve_ray.destinations import KnownReplica, NewReplica
from pellucid.serve_ray.settings import Settings, parse


def test_arguments_are_those_of_engines_and_of_the_application() -> None:
    config, settings = parse({"block_size": "16", "num_cpus": "3", "allow_anyone": "true"})
    assert (config.block_size, config.num_threads) == (16, 3)
    assert settings == Settings(num_cpus=3, allow_anyone=True)
    assert parse({"num_threads": 1, "num_cpus": 3})[0].num_threads == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"blocksize": 16}, r"blocksize: there is no such argument; there are .*block_size"),
        ({"block_size": 17}, "block_size"),
        ({"block_size": "many"}, "block_size"),
        ({"num_replicas": 0}, "num_replicas=0: must be at least 1"),
        ({"num_replicas": 3, "max_replicas": 2}, "max_replicas=2: must be at least num_replicas=3"),
        ({"target_kv_usage": 0}, "target_kv_usage=0.*: must be above 0"),
        ({"num_gpus": -1}, "num_gpus=-1.*: must be at least 0"),
        ({"stages": "a:1", "stages_key": "k"}, "stages='a:1': compute for one engine"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size=2: MPI starts the processes"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(arguments)


def test_a_call_waits_for_its_destination() -> None:
    known = KnownReplica("c1", "b")
    assert known.choose({"a", "b"}) == "b" and known.choose({"a"}) is None
    seen: list[frozenset[str]] = []

    def unknown(names: frozenset[str]) -> set[str]:
        seen.append(names)
        return set(names - {"a"})

    new = NewReplica("c2", unknown)
    assert new.choose({"a"}) is None and new.choose({"a", "b"}) == "b"
    assert seen == [{"a"}, {"a", "b"}]
    assert [pickle.loads(pickle.dumps(each)) for each in (known, new)] == ["c1", "c2"]


@pytest.mark.parametrize(
    ("requests", "kv_usage", "needed"),
    [([3, 1], [0.1, 0.1], 1), ([9, 8], [0.1, 0.1], 3), ([1, 1], [0.9, 0.9], 4), ([], [], 2)],
)
def test_the_number_of_engines_follows_requests_and_blocks(
    requests: list[float], kv_usage: list[float], needed: int
) -> None:
    metrics: dict[str, Any] = {
        "requests": dict(enumerate(requests)),
        "kv_usage": dict(enumerate(kv_usage)),
    }
    context = SimpleNamespace(aggregated_metrics=metrics, target_num_replicas=2)
    assert ReplicasNeeded(target_requests=8, target_kv_usage=0.5)(context) == (needed, {})
