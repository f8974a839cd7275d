"""KV events: what a router learns of the prefix index, in vLLM's wire format."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import zmq

from pellucid.async_engine import AsyncLLMEngine, BlockKey
from pellucid.cli import main
from pellucid.cluster.block_labels import label
from pellucid.engine import LLMEngine
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.scheduling.block import CacheSalt
from pellucid.scheduling.prefix_index import PrefixIndex
from pellucid.server.config import KVEventsConfig
from pellucid.server.kv_events import publisher as publisher_module
from pellucid.server.kv_events.event_log import Change, EventLog
from pellucid.server.kv_events.publisher import END, KVEventPublisher
from support.fake_model import fake_engine
from support.http_server import TIMEOUT
from support.kv_event_reader import KVEventReader

ANY_PORT = KVEventsConfig(
    endpoint="tcp://127.0.0.1:*", replay_endpoint="tcp://127.0.0.1:*", topic="kv@pod@model"
)
BLOCK_SIZE = 16


def found(index: PrefixIndex) -> dict[int, tuple[int, ...]]:
    """The text of each block whose beginning can be found too, by label."""
    keys = {block.key.block_hash: block.key for block in index._blocks.values() if block.key}
    chains: dict[int, tuple[int, ...]] = {}
    for key in keys.values():
        chain: list[int] = []
        each: BlockKey | None = key
        while each is not None:
            chain[:0] = each.token_ids
            if each.index == 0:
                chains[label(key.block_hash)] = tuple(chain)
                break
            each = keys.get(each.parent_hash)
    return chains


def draw_texts(seed: int) -> Iterator[list[int]]:
    """Texts that begin alike."""
    rng = random.Random(seed)
    texts = [[rng.randrange(5) for _ in range(160)]]
    while True:
        known = rng.choice(texts)
        text = known[: rng.randrange(len(known))] + [rng.randrange(5) for _ in range(80)]
        texts = [*texts[-20:], text[:240]]
        yield text[:240]


def run(engine: LLMEngine) -> None:
    while engine.has_unfinished_requests:
        engine.step()


class Recorder:
    """A listener that keeps the changes of a step."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def added(self, key: BlockKey) -> None:
        self.changes.append(Change(key, is_added=True))

    def removed(self, key: BlockKey) -> None:
        self.changes.append(Change(key, is_added=False))


class Reading:
    """Readers of a log that keeps so many batches: one always reads, one sometimes, and one begins after each step."""

    def __init__(self, max_batches: int) -> None:
        self.log = EventLog(BLOCK_SIZE, time.time, max_batches)
        self.always, self.sometimes, self.late = (KVEventReader() for _ in range(3))
        self.always.read(*self.log.first())

    def read(self, changes: list[Change], index: PrefixIndex, reads_missed: bool) -> None:
        """Each reader then knows at least what the index has, and nothing that it has not."""
        expected, labels = found(index), set(map(label, index._blocks))
        batch = self.log.add(changes)
        self.always.read(*batch)
        self.late = KVEventReader()
        for missed in self.log.since(0):
            self.late.read(*missed)
        if reads_missed:  # as readers do where numbers have a gap
            for missed in self.log.since((self.sometimes.last_number or 0) + 1):
                self.sometimes.read(*missed)
        assert self.late.last_number == self.always.last_number == batch.number
        assert self.late.chains == expected
        for reader in (self.always, *([self.sometimes] if reads_missed else [])):
            assert reader.chains.items() >= expected.items()
            assert reader.chains.keys() <= labels


def test_a_reader_knows_the_index_whenever_it_begins_and_whatever_it_misses() -> None:
    """A pool of few blocks, so that beginnings of texts are evicted and come again."""
    engine = fake_engine(block_size=BLOCK_SIZE, num_kv_blocks=40, max_model_len=256)
    recorder = Recorder()
    engine.watch_prefixes(recorder)
    index = engine.scheduler.kv_cache_manager.block_pool.index
    readings = [Reading(max_batches) for max_batches in (1, 8, 100_000)]
    rng, num_orphans = random.Random(5), 0
    for number, text in zip(range(50), draw_texts(3), strict=False):
        salt = "mine" if number % 7 == 0 else None
        # Both compute the same blocks, and one block of each pair is found; those behind it may be the other's.
        for num_tokens in (3, 30):
            params = SamplingParams(max_tokens=min(num_tokens, 256 - len(text)), ignore_eos=True)
            engine.add_request(text, params, cache_salt=salt)
        run(engine)
        num_orphans += len(index) - len(found(index))
        reads_missed = rng.random() < 0.2
        for reading in readings:
            reading.read(recorder.changes, index, reads_missed)
        recorder.changes.clear()
    assert num_orphans
    assert all(set(each.late.salts.values()) == {"mine", None} for each in readings)


def test_the_latest_batches_are_kept() -> None:
    log = EventLog(2, time.time, max_batches=2)
    numbers = [log.first().number, log.add([]).number, log.add([]).number]
    assert [len([*log.since(number)]) for number in numbers] == [1, 2, 1]


def test_blocks_of_a_text_are_one_event_and_an_idle_batch_is_empty() -> None:
    log = EventLog(2, lambda: 12.5)
    keys = [
        BlockKey(bytes([n + 1]) * 32, bytes([n]) * 32, n, (n, n), 0, "", CacheSalt("s"))
        for n in range(3)
    ]
    number, _ = log.first()
    assert number == 12_500_000
    reader = KVEventReader()
    batch = log.add(Change(key, is_added=True) for key in keys)
    assert batch.number == 12_500_001 and batch.payload.count(b"BlockStored") == 1
    reader.read(*batch)
    assert max(reader.chains.values(), key=len) == (0, 0, 1, 1, 2, 2)
    batch = log.add([Change(keys[2], is_added=False), Change(keys[1], is_added=False)])
    assert batch.payload.count(b"BlockRemoved") == 1
    reader.read(*batch)
    assert list(reader.chains.values()) == [(0, 0)]
    assert log.add([]).payload == b"\x93\xcb@)\x00\x00\x00\x00\x00\x00\x90\x00"
    assert [it.number for it in log.since(number)] == [number, number + 1, number + 2, number + 3]


@contextmanager
def published(**knobs: object) -> Iterator[tuple[LLMEngine, KVEventPublisher]]:
    engine = fake_engine(block_size=BLOCK_SIZE, num_kv_blocks=64, max_model_len=256, **knobs)
    publisher = KVEventPublisher.of(AsyncLLMEngine(engine), ANY_PORT)
    try:
        yield engine, publisher
    finally:
        publisher.close()


def receive(socket: "zmq.Socket[bytes]") -> list[bytes]:
    assert socket.poll(TIMEOUT * 1000)
    return socket.recv_multipart()


def test_events_arrive_and_a_late_reader_catches_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "HEARTBEAT_SECONDS", 0.05)
    context, reader = zmq.Context(), KVEventReader()
    with published() as (engine, publisher), context:
        index = engine.scheduler.kv_cache_manager.block_pool.index
        engine.add_request([1, 2, 3, 4] * 20, SamplingParams(max_tokens=20, ignore_eos=True))
        run(engine)
        subscriber = context.socket(zmq.SUB)
        subscriber.subscribe("kv@pod@")
        subscriber.connect(publisher.endpoint)
        topic, number, _ = receive(subscriber)  # a heartbeat, which shows that others were missed
        assert topic == b"kv@pod@model" and int.from_bytes(number, "big") > 1e15
        asker = context.socket(zmq.DEALER)
        asker.connect(publisher.replay_endpoint)
        asker.send_multipart([b"", (0).to_bytes(8, "big")])
        answer = [receive(asker)[1:]]
        while answer[-1][0] != END:
            answer.append(receive(asker)[1:])
        for number, payload in answer[:-1]:
            reader.read(int.from_bytes(number, "big"), payload)
        assert reader.chains == found(index) and len(reader.chains) == 6
        engine.add_request([1, 2, 3, 4] * 36, SamplingParams(max_tokens=1))
        run(engine)
        expected = found(index)
        while reader.chains != expected:
            _, number, payload = receive(subscriber)
            if int.from_bytes(number, "big") > (reader.last_number or 0):
                reader.read(int.from_bytes(number, "big"), payload)
        subscriber.close(0)
        asker.close(0)


def test_changes_are_published_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "HEARTBEAT_SECONDS", 1e6)
    context = zmq.Context()
    with published() as (engine, publisher), context:
        subscriber = context.socket(zmq.SUB)
        subscriber.subscribe("kv@pod@")
        subscriber.connect(publisher.endpoint)
        for _, text in zip(range(100), draw_texts(1), strict=False):  # until it is connected
            engine.add_request(text, SamplingParams(max_tokens=1))
            run(engine)
            if subscriber.poll(100):
                break
        assert b"BlockStored" in receive(subscriber)[2]
        subscriber.close(0)


def test_a_request_for_a_replay_that_is_none_is_ignored() -> None:
    context = zmq.Context()
    with published() as (_, publisher), context:
        asker = context.socket(zmq.DEALER)
        asker.connect(publisher.replay_endpoint)
        for frames in ([b"what"], [b"", b"1"], [b"", b"\0" * 9], [b"", b"", b"\0" * 8]):
            asker.send_multipart(frames)
        asker.send_multipart([b"", (2**63).to_bytes(8, "big")])  # nothing is missing
        assert receive(asker) == [b"", END, b""]
        asker.close(0)


def test_an_address_in_use_is_refused() -> None:
    with published() as (_, publisher):
        config = KVEventsConfig(endpoint=publisher.endpoint)
        with pytest.raises(ValueError, match=r"kv_events='tcp://.*': Address already in use"):
            KVEventPublisher(config, 16, 0)


@pytest.mark.parametrize("name", ["endpoint", "replay_endpoint"])
def test_an_address_of_another_kind_is_refused(name: str) -> None:
    addresses = {"endpoint": "tcp://*:1", name: "http://localhost:1"}
    with pytest.raises(ValueError, match=r"kv_events.*='http://localhost:1': must be tcp://"):
        KVEventsConfig(**addresses)


@pytest.mark.parametrize(
    "words", [["--kv-events-replay", "tcp://*:1"], ["--kv-events-topic", "tcp://*:1"]]
)
def test_further_options_need_an_address(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *words]) == 2
    assert "='tcp://*:1': needs kv_events" in " ".join(capsys.readouterr().err.split())


def test_a_listener_comes_before_the_first_request() -> None:
    engine = fake_engine(block_size=BLOCK_SIZE)
    engine.add_request([1, 2, 3, 4, 5] * BLOCK_SIZE, SamplingParams(max_tokens=1))
    run(engine)
    with pytest.raises(ValueError, match="must come before the first request"):
        engine.watch_prefixes(Recorder())
