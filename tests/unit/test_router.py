"""The router of replicas, without replicas: who gets which request, and how often prefixes are found."""

import pytest

from pellucid.cluster.block_labels import label, prompt_labels
from pellucid.cluster.router import Router
from pellucid.facts.cores import core_shares
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.scheduling.block import NO_SALT
from support.fake_model import fake_engine

BLOCK = 32


def router_of(num_replicas: int) -> Router:
    router = Router(BLOCK)
    for replica in range(num_replicas):
        router.join(replica)
    return router


def test_without_prefixes_requests_are_spread_evenly() -> None:
    router = router_of(3)
    found = [router.place(f"r{index}", [], 100).replica for index in range(6)]
    assert found == [0, 1, 2, 0, 1, 2]
    router.ended("r1")
    assert router.place("next", [], 100).replica == 1
    assert [router.num_requests(replica) for replica in range(3)] == [2, 2, 2]


def test_idle_replicas_take_turns() -> None:
    router = router_of(2)
    found = []
    for index in range(4):
        found.append(router.place(f"r{index}", [], 10).replica)
        router.ended(f"r{index}")
    assert found == [0, 1, 0, 1]


def test_the_longest_prefix_decides_until_the_wait_is_longer_than_computing_it() -> None:
    router = router_of(2)
    for block in (1, 2, 3):
        router.added(1, block)
    assert router.place("a", [1, 2, 3, 4], 4 * BLOCK) == (1, 3 * BLOCK)
    router.removed(1, 2)  # what is behind a gap cannot be found
    assert router.place("b", [9], 10 * BLOCK).replica == 0
    router.ended("a")
    assert router.place("c", [1, 2, 3, 4], 4 * BLOCK) == (1, BLOCK)

    router.place("long", [1, 20], 200 * BLOCK)
    assert router.place("d", [1, 30], 2 * BLOCK).replica == 0  # its block is sooner computed again


def test_prompts_that_are_under_way_count_as_cached() -> None:
    """Requests that arrive together and begin alike go to one replica, unless it has too much to do."""
    router = router_of(2)
    prefix = [*range(50)]
    first = router.place("a", prefix, 51 * BLOCK)
    other = router.place("other", [100], 60 * BLOCK)
    assert other.replica != first.replica
    assert router.place("b", [*prefix, 60], 52 * BLOCK) == (first.replica, 50 * BLOCK)
    router.ended("a")
    router.ended("b")  # neither has left a block
    assert router.place("c", prefix, 51 * BLOCK).num_cached_tokens == 0


def test_a_prompt_that_has_been_computed_is_no_load_any_more() -> None:
    router = router_of(2)
    router.place("a", [], 1000)
    router.computed("a")
    router.place("b", [], 1000)
    assert router.place("c", [], 10).replica == 0
    router.computed("unknown")
    router.ended("unknown")


def test_a_replica_that_leaves_takes_its_blocks_and_requests_along() -> None:
    router = router_of(2)
    router.added(0, 7)
    assert router.place("a", [7, 8], 3 * BLOCK).replica == 0
    router.leave(0)
    assert router.place("a", [7, 8], 3 * BLOCK) == (1, 0)
    router.join(0)
    assert router.blocks(0) == set() and router.num_requests(0) == 0
    router.ended("a")
    assert router.num_requests(1) == 0
    router.leave(0)
    router.leave(1)
    with pytest.raises(LookupError, match="no replica"):
        router.place("b", [], 1)


def test_labels_are_those_of_the_engine() -> None:
    engine = fake_engine(block_size=32, num_kv_blocks=64)
    told: list[int] = []

    class Listener:
        def added(self, key):  # type: ignore[no-untyped-def]
            told.append(label(key.block_hash))

        def removed(self, key): ...  # type: ignore[no-untyped-def]

    engine.watch_prefixes(Listener())
    prompt = [index % 31 for index in range(100)]
    engine.add_request(prompt, SamplingParams(max_tokens=1), cache_salt="mine")
    while engine.has_unfinished_requests:
        engine.step()
    salt = engine._request_maker.salt("mine", len(prompt))
    assert prompt_labels(prompt, 32, salt) == told and len(told) == 3
    assert (
        len(prompt_labels(prompt[:96], 32, salt)) == 2
    )  # the block with the last token is computed
    assert prompt_labels(prompt, 32, NO_SALT) != told


def test_shares_of_cores() -> None:
    two_sockets = [(socket, core, socket * 4 + core) for socket in (0, 1) for core in range(4)]
    assert core_shares(two_sockets, 2) == [frozenset(range(4)), frozenset(range(4, 8))]
    assert core_shares(two_sockets, 3) == [{0, 1}, {2, 3, 4}, {5, 6, 7}]
    threads = [(0, 0, 0), (0, 1, 1), (0, 0, 2), (0, 1, 3)]  # two of each core
    assert core_shares(threads, 2) == [{0, 2}, {1, 3}]
    assert core_shares(threads[:1], 3) == [{0}, {0}, {0}]
