"""Frames between an engine and a stage: nobody without the key can add, change, repeat or reorder one."""

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from pellucid.backends.ops import ForwardBatch
from pellucid.stages.messages import (
    Alive,
    Hello,
    Rows,
    batch_of,
    compute_message,
    decode_from_stage,
    decode_to_stage,
    encode,
)
from pellucid.stages.wire import MAX_FIRST_BYTES, Wire, WireError, shake_hands

KEY = b"a secret of 16 bytes or more"


def connect(engine_key: bytes = KEY, stage_key: bytes = KEY) -> tuple[Wire, Wire, socket.socket]:
    """The wires of an engine and of a stage, and the socket of the stage."""
    engine_end, stage_end = socket.socketpair()
    for end in (engine_end, stage_end):
        end.settimeout(10.0)
    found: list[Wire] = []
    thread = threading.Thread(
        target=lambda: found.append(shake_hands(stage_end, stage_key, is_engine=False))
    )
    thread.start()
    engine = shake_hands(engine_end, engine_key, is_engine=True)
    thread.join()
    return engine, found[0], stage_end


@pytest.fixture
def wires() -> Iterator[tuple[Wire, Wire, socket.socket]]:
    engine, stage, end = connect()
    with closing(engine), closing(stage):
        yield engine, stage, end


@pytest.fixture(autouse=True)
def tcp_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs of sockets have none."""
    monkeypatch.setattr(socket.socket, "setsockopt", lambda *_: None)


def test_frames_arrive_in_both_directions(wires: tuple[Wire, Wire, socket.socket]) -> None:
    engine, stage, _ = wires
    for content in (b"first", b"", b"x" * 100_000):
        thread = threading.Thread(target=engine.send, args=(content,))
        thread.start()
        assert stage.receive() == content
        thread.join()
        stage.send(content[:1000])
        assert engine.receive() == content[:1000]


@pytest.mark.parametrize("change", range(40))
def test_a_changed_frame_is_refused(change: int) -> None:
    engine, stage, end = connect()
    with closing(engine), closing(stage):
        engine.send(b"blocks 1, 2, 3")
        frame = bytearray(end.recv(1000))
        rng = random.Random(change)
        frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
        engine._end.sendall(frame)
        engine.close()
        with pytest.raises(WireError, match=r"not made with this key|at most|ended"):
            stage.receive()


@pytest.mark.parametrize("order", ["twice", "swapped", "skipped", "echoed"])
def test_frames_in_another_order_are_refused(order: str) -> None:
    engine, stage, end = connect()
    with closing(engine), closing(stage):
        engine.send(b"first")
        first = end.recv(1000)
        engine.send(b"other")
        other = end.recv(1000)
        stage.send(b"reply")
        reply = engine._end.recv(1000)
        wanted = {"twice": first + first, "swapped": other, "skipped": other, "echoed": reply}
        engine._end.sendall(wanted[order])
        if order == "twice":
            assert stage.receive() == b"first"
        with pytest.raises(WireError, match="not made with this key"):
            stage.receive()


def test_another_key_is_refused() -> None:
    engine, stage, _ = connect(stage_key=b"another secret of 16 bytes")
    with closing(engine), closing(stage):
        engine.send(b"load")
        with pytest.raises(WireError, match="both sides need the same one"):
            stage.receive()


def test_a_frame_of_another_connection_is_refused(wires: tuple[Wire, Wire, socket.socket]) -> None:
    _, stage, _ = wires
    other_engine, other_stage, other_end = connect()
    with closing(other_engine), closing(other_stage):
        other_engine.send(b"load")
        wires[0]._end.sendall(other_end.recv(1000))
    with pytest.raises(WireError, match="not made with this key"):
        stage.receive()


def test_no_memory_is_taken_for_who_has_not_shown_the_key(
    wires: tuple[Wire, Wire, socket.socket],
) -> None:
    engine, stage, _ = wires
    engine._end.sendall((MAX_FIRST_BYTES + 1).to_bytes(4, "big") + bytes(32))
    with pytest.raises(WireError, match=f"at most {MAX_FIRST_BYTES}"):
        stage.receive()


def test_who_is_no_pellucid_is_refused() -> None:
    ours, others = socket.socketpair()
    with closing(ours), closing(others):
        others.sendall(b"GET / HTTP/1.1\r\nHost: stage\r\n\r\n" + bytes(100))
        with pytest.raises(WireError, match="no pellucid"):
            shake_hands(ours, KEY, is_engine=False)


# ---- messages


def batch() -> ForwardBatch:
    """Two requests of 3 and 1 rows, in three groups of layers."""
    return ForwardBatch(
        token_ids=np.array([4, 5, 6, 7], np.int32),
        positions=np.array([0, 1, 2, 40], np.int32),
        rope_lens=np.array([3, 3, 3, 41], np.int32),
        slot_mapping=np.arange(12).reshape(3, 4),
        query_start=np.array([0, 3, 4], np.int32),
        seq_lens=np.array([3, 41], np.int32),
        block_tables=np.arange(12, dtype=np.int32).reshape(3, 2, 2) - 1,
        logits_indices=np.array([2, 3], np.int32),
        state_slots=np.array([1, 0], np.int32),
    )


def test_a_step_survives_its_message() -> None:
    """With the block tables of some groups, and the rows of the stage before."""
    rows = np.arange(8, dtype=np.float32)
    message = compute_message(batch(), [0, 2], memoryview(rows.tobytes()), 0)
    found = batch_of(decode_to_stage(encode(message)), hidden_size=2)
    expected = batch()
    for name in ("token_ids", "positions", "rope_lens", "query_start", "seq_lens", "state_slots"):
        assert (getattr(found, name) == getattr(expected, name)).all(), name
    assert (found.slot_mapping == expected.slot_mapping[[0, 2]]).all()
    assert (found.block_tables == expected.block_tables[[0, 2]]).all()
    assert (found.logits_indices == expected.logits_indices).all()
    assert found.received is not None
    assert (found.received[:] == rows.reshape(4, 2)).all()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("token_ids", b"\0" * 12),
        ("token_ids", b""),
        ("positions", b"\0" * 15),
        ("slot_mapping", b"\0" * 8),
        ("query_start", np.array([0, 4, 4], np.int32).tobytes()),
        ("query_start", np.array([1, 3, 4], np.int32).tobytes()),
        ("query_start", np.array([0, 3, 5], np.int32).tobytes()),
        ("seq_lens", b""),
        ("block_tables", b"\0" * 4),
        ("state_slots", b"\0" * 4),
        ("rows", b"\0" * 4),
        ("num_groups", 0),
        ("num_groups", -1),
        ("num_groups", 2),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(field: str, value: object) -> None:
    message = compute_message(batch(), [0, 1, 2], memoryview(bytes(32)), 0)
    setattr(message, field, value)
    with pytest.raises(ValueError, match=r"must"):
        batch_of(decode_to_stage(encode(message)), hidden_size=2)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x80",
        b"\xc1",
        b"\x81\xa4type\xa3Run",
        encode(Hello("1")),
        encode(Rows(memoryview(b""), 0)),
    ],
)
def test_other_messages_are_refused(frame: bytes) -> None:
    with pytest.raises(ValueError, match="no message of an engine"):
        decode_to_stage(frame)
    assert decode_from_stage(encode(Alive())) == Alive()
