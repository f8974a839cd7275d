"""BlockTransfer and SwapFile: block contents copied, swapped, saved and loaded."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

from pellucid.execution.block_transfer import MOST_TOGETHER, BlockTransfer, SwapFile
from pellucid.scheduling.block_ops import Copy, Load, Save, Slot, SlotKind, SwapIn, SwapOut
from support.fake_model import FakeKVCache

BLOCK_SIZE = 16


def block(number: int) -> np.ndarray:
    return np.full(BLOCK_SIZE, number, np.uint8)


def cache_of(*numbers: int) -> FakeKVCache:
    cache = FakeKVCache(len(numbers), BLOCK_SIZE)
    cache.token_ids[:] = np.repeat(numbers, BLOCK_SIZE)
    return cache


def numbers(cache: FakeKVCache) -> list[int]:
    return cache.token_ids[::BLOCK_SIZE].tolist()


class RecordingStore:
    def __init__(self, max_blocks: int = 100) -> None:
        self.max_blocks = max_blocks
        self.saved: dict[bytes, tuple[tuple[int, ...], list[int]]] = {}

    def wants(self, block_hash: bytes, num_blocks: int = 1, num_before: int = 0) -> bool:
        has_room = len(self.saved) + num_before + num_blocks <= self.max_blocks
        return has_room and block_hash not in self.saved

    def save(self, block_hash: bytes, token_ids: tuple[int, ...], data: np.ndarray) -> None:
        assert self.wants(block_hash)
        self.saved[block_hash] = (token_ids, data.tolist())


def test_ops_are_done_in_their_order() -> None:
    """A block is copied, saved and swapped before it is filled for somebody else."""
    cache, saver = cache_of(1, 2, 3, 4), RecordingStore()
    transfer = BlockTransfer(cache, saver, SwapFile(2, cache.bytes_per_block))
    transfer.run(
        [
            Copy(Slot(SlotKind.BLOCK, 0), Slot(SlotKind.BLOCK, 1)),
            Save(Slot(SlotKind.BLOCK, 0), b"one", (5, 6)),
            SwapOut(Slot(SlotKind.BLOCK, 0), (1,)),
            Load(Slot(SlotKind.BLOCK, 0), block(9)),
            SwapOut(Slot(SlotKind.BLOCK, 0), (0,)),
            Save(Slot(SlotKind.BLOCK, 3), b"one", (5, 6)),  # not wanted: it is there
            SwapIn((1,), Slot(SlotKind.BLOCK, 2)),
            Copy(Slot(SlotKind.BLOCK, 2), Slot(SlotKind.BLOCK, 3)),
            SwapIn((0,), Slot(SlotKind.BLOCK, 2)),
        ]
    )
    assert numbers(cache) == [9, 1, 9, 1]
    assert saver.saved == {b"one": ((5, 6), block(1).tolist())}


def test_a_saved_block_is_a_copy() -> None:
    cache, saver = cache_of(1, 2), RecordingStore()
    transfer = BlockTransfer(cache, saver)
    kept: list[np.ndarray] = []
    saver.save = lambda block_hash, token_ids, data: kept.append(data)  # type: ignore[method-assign]
    transfer.run(
        [
            Save(Slot(SlotKind.BLOCK, 0), b"one", ()),
            Copy(Slot(SlotKind.BLOCK, 1), Slot(SlotKind.BLOCK, 0)),
        ]
    )
    assert kept[0].tolist() == block(1).tolist()


def test_a_copy_of_a_copy_comes_after_it() -> None:
    cache, calls = cache_of(1, 2, 3, 4), []
    copy_blocks = cache.copy_blocks
    cache.copy_blocks = lambda *ids: calls.append(ids) or copy_blocks(*ids)  # type: ignore[func-returns-value,method-assign]
    pairs = [(0, 1), (1, 2), (3, 0), (2, 3)]
    BlockTransfer(cache).run(
        [Copy(Slot(SlotKind.BLOCK, a), Slot(SlotKind.BLOCK, b)) for a, b in pairs]
    )
    assert numbers(cache) == [4, 1, 1, 1]
    assert calls == [([0], [1]), ([1, 3], [2, 0]), ([2], [3])]


def test_neighbours_move_together() -> None:
    """A step that swaps many blocks reads a few at a time, and a block that is filled twice has the later contents."""
    cache = cache_of(*range(40))
    calls: list[int] = []
    read_blocks = cache.read_blocks
    cache.read_blocks = lambda ids: calls.append(len(ids)) or read_blocks(ids)  # type: ignore[func-returns-value,method-assign]
    transfer = BlockTransfer(cache, None, SwapFile(40, cache.bytes_per_block))
    slots = [Slot(SlotKind.BLOCK, number) for number in range(40)]
    transfer.run([SwapOut(slot, (slot.id,)) for slot in slots])
    assert calls == [MOST_TOGETHER, MOST_TOGETHER, 40 - 2 * MOST_TOGETHER]
    transfer.run([SwapIn((39 - slot.id,), slot) for slot in slots])
    assert numbers(cache) == [*range(39, -1, -1)]
    transfer.run([Load(slots[0], block(7)), Load(slots[0], block(8))])
    assert numbers(cache)[0] == 8


def test_saves_of_a_step_count_together() -> None:
    cache, saver = cache_of(1, 2, 3), RecordingStore(max_blocks=2)
    hashes = (b"one", b"one", b"two", b"three")
    saves = [Save(Slot(SlotKind.BLOCK, n % 3), each, ()) for n, each in enumerate(hashes)]
    BlockTransfer(cache, saver).run(saves)
    assert {each: data[0] for each, (_, data) in saver.saved.items()} == {b"one": 1, b"two": 3}


def test_swap_slots_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the system reads and writes a part of what it is asked for."""
    write, read = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: write(fd, data[:300], offset))
    monkeypatch.setattr(os, "preadv", lambda fd, data, offset: read(fd, [data[0][:300]], offset))
    swap_file = SwapFile(3, 1000)
    rng = np.random.default_rng(0)
    expected = {slot: rng.integers(0, 256, 1000, np.uint8) for slot in (2, 0, 1, 2)}
    for slot, data in expected.items():
        swap_file.write(slot, data)
    for slot, data in expected.items():
        assert (swap_file.read(slot) == data).all()
    with pytest.raises(AssertionError):
        swap_file.read(3)


def test_a_swap_file_has_its_room_at_once_and_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    swap_file = SwapFile(4, 1 << 20)
    assert list(tmp_path.iterdir()) == []
    status = os.fstat(swap_file._fd)
    assert status.st_blocks * 512 >= status.st_size == 4 << 20
    assert (swap_file.read(3) == 0).all()
    assert not swap_file.close.atexit  # a step may be under way then
    swap_file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        swap_file.read(3)


def test_too_little_room_is_said_at_once() -> None:
    room = 1 << 62  # more than any file system gives
    with pytest.raises(OSError, match=r"too large|No space|Invalid"):
        SwapFile(1, room)
