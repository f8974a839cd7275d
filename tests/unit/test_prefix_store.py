"""The prefix store: block files written, found, checked and deleted."""

import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.execution import prefix_store
from pellucid.execution.block_directory import BlockDirectory
from pellucid.execution.block_file import BlockFileFormat, DamagedBlockError, ForeignBlockError
from pellucid.execution.fetch_policy import FetchPolicy
from pellucid.execution.prefix_store import PrefixStore, PrefixStoreCounts
from pellucid.scheduling.block import NO_SALT, BlockKey
from pellucid.scheduling.block_ops import KeyToRead, PrefixToRead, Read, SnapshotKey

BLOCK_SIZE, BLOCK_BYTES = 16, 1000
FINGERPRINT = hashlib.sha256(b"a model").digest()
FORMAT = BlockFileFormat(FINGERPRINT, BLOCK_SIZE, BLOCK_BYTES)
MAX_BYTES = 100 * FORMAT.file_bytes


def block_hash(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest()


def token_ids(number: int) -> tuple[int, ...]:
    return tuple(range(number, number + BLOCK_SIZE))


def key(number: int) -> BlockKey:
    return BlockKey(block_hash(number), b"", 0, token_ids(number), 0, "", NO_SALT)


def read(read_id: int, *numbers: int) -> Read:
    """Reads blocks up to the first that is not there."""
    keys = tuple(KeyToRead(key(number), len(numbers)) for number in numbers)
    prefixes = tuple(PrefixToRead(length, length) for length in range(1, len(numbers) + 1))
    return Read(read_id, keys, prefixes)


def contents(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, BLOCK_BYTES, np.uint8)


class Store(PrefixStore):
    """Blocks by number, and what was reported."""

    def __init__(
        self,
        root: Path,
        *,
        file_format: BlockFileFormat = FORMAT,
        max_pending: int = 1000,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.reports: list[str] = []
        self.directory = BlockDirectory(
            root, file_format.fingerprint, file_format.file_bytes, max_bytes
        )
        super().__init__(self.directory, file_format, max_pending, self.reports.append, 0)

    def put(self, *numbers: int) -> None:
        for number in numbers:
            if self.wants(block_hash(number)):
                self.save(block_hash(number), token_ids(number), contents(number))
        self.flush()

    def holds(self, number: int) -> bool:
        """Whether a block is found; it is the right one then."""
        found = self.find(block_hash(number), token_ids(number))
        assert found is None or (found == contents(number)).all()
        return found is not None

    def path(self, number: int) -> Path:
        return self.directory.path(block_hash(number))


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


# -- what it is for --------------------------------------------------------------------------------


def test_another_store_finds_what_was_saved(tmp_path: Path) -> None:
    Store(tmp_path).put(1, 2)
    store = Store(tmp_path)
    assert [store.holds(number) for number in (1, 2, 3)] == [True, True, False]
    store.put(1)  # it is there already
    store.directory.remove(block_hash(3))  # another process was quicker
    assert store.counts == PrefixStoreCounts(found=2)
    assert store.reports == []


def test_what_waits_for_the_disk_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, goes_on = Store(tmp_path), threading.Event()
    write = store.directory.write

    def slow_write(*args: object) -> bool:
        goes_on.wait()
        return write(*args)

    monkeypatch.setattr(store.directory, "write", slow_write)
    store.save(block_hash(1), token_ids(1), contents(1))
    assert store.holds(1) and not store.wants(block_hash(1))
    assert "pellucid-prefix-store" in {thread.name for thread in threading.enumerate()}
    goes_on.set()
    store.flush()
    assert Store(tmp_path).holds(1)


def test_more_than_the_disk_can_take_is_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, goes_on = Store(tmp_path, max_pending=3), threading.Event()
    monkeypatch.setattr(store.directory, "write", lambda *args: goes_on.wait())
    assert store.wants(block_hash(9), 2, 1) and not store.wants(block_hash(9), 2, 2)
    for number in range(5):
        if store.wants(block_hash(number)):
            store.save(block_hash(number), token_ids(number), contents(number))
    goes_on.set()
    store.flush()
    assert store.counts == PrefixStoreCounts(saved=3, dropped=2 + 2)


def test_nothing_is_saved_after_close_and_no_thread_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, closed = Store(tmp_path), threading.Event()
    monkeypatch.setattr(store.directory, "close", closed.set)
    store.put(1)
    store.save(block_hash(2), token_ids(2), contents(2))
    store.close()
    assert closed.is_set()
    assert store.holds(1) and store.holds(2)
    store.put(3)
    assert not store.holds(3)
    assert not [t for t in threading.enumerate() if t.name == "pellucid-prefix-store"]


def test_a_disk_that_takes_nothing_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_store, "MAX_DISK_SECONDS", 0.05)
    store, answers = Store(tmp_path), threading.Event()
    monkeypatch.setattr(store.directory, "write", lambda *args: answers.wait())
    for number in range(3):
        store.save(block_hash(number), token_ids(number), contents(number))
    store.close()
    assert store.reports == ["no answer for 0.05 s: 3 blocks are not saved"]
    answers.set()
    store.flush()
    assert store.counts == PrefixStoreCounts(dropped=3)


def test_a_process_that_ends_writes_what_it_has_saved(tmp_path: Path) -> None:
    """Without flush or close."""
    save = "\n".join(
        (
            "import sys; from pathlib import Path; from unit.test_prefix_store import *",
            "store = Store(Path(sys.argv[1]))",
            "for n in range(50): store.save(block_hash(n), token_ids(n), contents(n))",
        )
    )
    in_another_process(save, tmp_path).wait()
    store = Store(tmp_path)
    assert all(store.holds(number) for number in range(50))


# -- files that are not what they should be --------------------------------------------------------


KEYED = replace(FORMAT, key=b"a secret of all servers")


@pytest.mark.parametrize("file_format", [FORMAT, KEYED], ids=["plain", "with a secret"])
@pytest.mark.parametrize("seed", range(20))
def test_a_file_that_was_changed_is_never_believed(
    tmp_path: Path, seed: int, file_format: BlockFileFormat
) -> None:
    rng = np.random.default_rng(seed)
    store = Store(tmp_path, file_format=file_format)
    store.put(1, 2)
    path, other = store.path(1), store.path(2)
    sound = path.read_bytes()
    damaged = bytearray(sound)
    match seed % 5:
        case 0:  # cut off
            damaged = damaged[: int(rng.integers(len(sound)))]
        case 1:  # grown
            damaged += rng.bytes(int(rng.integers(1, 50)))
        case 2:  # a bit
            damaged[int(rng.integers(len(sound)))] ^= 1 << int(rng.integers(8))
        case 3:  # a piece of it
            start, size = int(rng.integers(len(sound) - 40)), int(rng.integers(1, 40))
            damaged[start : start + size] = bytes(255 - b for b in damaged[start : start + size])
        case 4:  # anything
            damaged = bytearray(rng.bytes(len(sound) if seed % 2 else int(rng.integers(3000))))
    path.write_bytes(damaged)
    assert not store.holds(1)
    assert not path.exists()
    assert store.counts.damaged == 1
    assert len(store.reports) == 1 and str(path) in store.reports[0]
    assert store.holds(2) and other.exists()
    store.put(1)
    assert store.holds(1)


def test_sound_files_of_something_else_are_ignored_and_left_alone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(1)
    for file_format in (
        BlockFileFormat(hashlib.sha256(b"another model").digest(), BLOCK_SIZE, BLOCK_BYTES),
        BlockFileFormat(FINGERPRINT, BLOCK_SIZE - 1, BLOCK_BYTES + 8),  # just as long
    ):
        parts = file_format.encode(
            block_hash(1),
            token_ids(1)[: file_format.block_size],
            np.zeros(file_format.bytes_per_block, np.uint8),
        )
        store.path(1).write_bytes(b"".join(parts))
        assert not store.holds(1)
        assert store.path(1).exists()
    store.put(2)
    store.path(2).replace(store.path(1))  # another block under this name
    assert not store.holds(1) and store.path(1).exists()
    store.put(3)
    assert store.find(block_hash(3), token_ids(1)) is None and store.path(3).exists()
    assert store.counts.foreign == 4 and len(store.reports) == 4


def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(1)
    elsewhere = tmp_path / "elsewhere"
    store.path(1).replace(elsewhere)
    store.path(1).symlink_to(elsewhere)  # even to a sound one
    store.path(2).mkdir()
    os.mkfifo(store.path(3))
    before = open_descriptors()
    for number in (1, 2, 3):
        assert not store.holds(number)
        assert os.path.lexists(store.path(number))
    assert elsewhere.exists()
    assert not open_descriptors() - before
    assert (store.counts.foreign, store.counts.damaged) == (3, 0)


def open_descriptors() -> set[str]:
    return {path.name for path in Path("/dev/fd").iterdir()}


def test_blocks_are_read_in_the_background_up_to_the_first_that_is_not_there(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    store.put(1, 2, 4)
    store.start_reading(read(7, 1, 2, 3, 4))
    store.start_reading(read(8, 4))
    store.start_reading(read(9, 3))
    results = {}
    while len(results) < 3:
        results.update(store.take_read(max_seconds=60))
    assert {read_id: len(found) for read_id, found in results.items()} == {7: 2, 8: 1, 9: 0}
    assert (results[7][1] == contents(2)).all() and (results[8][0] == contents(4)).all()
    assert store.take_read(max_seconds=60) == []  # nothing is on its way: it does not wait


def test_blocks_outside_of_the_window_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two groups: blocks 1 to 4 of one that sees all, 11 to 14 of one that sees one block."""
    store = Store(tmp_path)
    store.put(1, 2, 3, 4, 11, 12, 13)
    keys = tuple(
        KeyToRead(key(number), until)
        for index in (1, 2, 3, 4)
        for number, until in ((index, 4), (index + 10, index))
    )
    prefixes = tuple(PrefixToRead(length, 2 * length) for length in (1, 2, 3, 4))
    asked, read_file = [], store.directory.read
    monkeypatch.setattr(
        store.directory, "read", lambda each: (asked.append(each), read_file(each))[1]
    )
    store.start_reading(Read(1, keys, prefixes))
    [(_, found)] = store.take_read(max_seconds=60)
    assert [payload is not None for payload in found] == [1, 0, 1, 0, 1, 1]
    assert asked == [block_hash(number) for number in (1, 2, 3, 13)]
    # Without block 13 there is a shorter prefix, and of it what was not read yet.
    store.path(13).unlink()
    store.start_reading(Read(2, keys, prefixes))
    [(_, found)] = store.take_read(max_seconds=60)
    assert [payload is not None for payload in found] == [1, 0, 1, 1]


def test_what_waits_to_be_read_when_it_is_closed_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, is_asked, answers = Store(tmp_path), threading.Event(), threading.Event()
    monkeypatch.setattr(store.directory, "has", lambda _: is_asked.set() or answers.wait(60))
    store.start_reading(read(1, 1))
    assert is_asked.wait(60)
    assert "pellucid-prefix-reader" in {thread.name for thread in threading.enumerate()}
    store.start_reading(read(2, 1))
    store.close()
    assert store.take_read(max_seconds=0) == [(2, [])]
    answers.set()
    assert store.take_read(max_seconds=60) == [(1, [])]
    store.start_reading(read(3, 1))  # nobody waits for it
    assert store.take_read(max_seconds=60) == [(3, [])]
    assert store.reports == []


def test_a_reader_that_fails_gives_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    store.put(1, 2)
    read_file, asked = store.directory.read, []

    def fail(wanted: bytes) -> np.ndarray | None:
        asked.append(wanted)
        if wanted == block_hash(2):
            raise MemoryError
        return read_file(wanted)

    monkeypatch.setattr(store.directory, "read", fail)
    store.start_reading(read(1, 1, 2))
    store.start_reading(read(2, 1))
    results = {}
    while len(results) < 2:
        results.update(store.take_read(max_seconds=60))
    assert [len(results[1]), len(results[2])] == [1, 1]
    assert asked == [block_hash(number) for number in (1, 2, 1)]
    assert "could not be read" in caplog.text


def test_formats_say_what_is_wrong() -> None:
    data = b"".join(FORMAT.encode(block_hash(1), token_ids(1), contents(1)))
    # Another layout has another version.
    assert hashlib.sha256(data).hexdigest().startswith("9838a872a36023c9")
    data = np.frombuffer(data, np.uint8)
    with pytest.raises(DamagedBlockError, match="has 5 bytes instead of"):
        FORMAT.decode(data[:5], block_hash(1), token_ids(1))
    with pytest.raises(ForeignBlockError, match="another version, model or prefix"):
        FORMAT.decode(data, block_hash(2), token_ids(1))


# -- the directory ---------------------------------------------------------------------------------


def test_what_was_used_least_recently_goes_first(tmp_path: Path) -> None:
    store = Store(tmp_path, max_bytes=16 * FORMAT.file_bytes)
    for number in range(16):
        store.put(number)
        past = time.time_ns() - (100 - number) * 10**9
        os.utime(store.path(number), ns=(past, past))
    assert store.holds(0)  # used now
    store.put(16)
    kept = [number for number in range(17) if store.path(number).exists()]
    assert kept == [0, *range(4, 17)]  # down to seven eighths


def test_what_was_written_since_files_were_counted_counts(tmp_path: Path) -> None:
    store = Store(tmp_path, max_bytes=47 * FORMAT.file_bytes)
    for number in range(60):
        store.put(number)
        assert len(files(tmp_path)) <= 47
    other = Store(tmp_path, max_bytes=47 * FORMAT.file_bytes)
    for number in range(60, 180):
        (store, other)[number % 2].put(number)
        assert len(files(tmp_path)) <= 47 + 2 * 47 // 16


def test_the_bound_is_for_all_formats_together(tmp_path: Path) -> None:
    other_format = BlockFileFormat(hashlib.sha256(b"other").digest(), BLOCK_SIZE, BLOCK_BYTES)
    Store(tmp_path, file_format=other_format, max_bytes=16 * FORMAT.file_bytes).put(*range(16))
    store = Store(tmp_path, max_bytes=16 * FORMAT.file_bytes)
    store.put(1)
    assert store.holds(1)
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 14 * FORMAT.file_bytes


def test_nothing_that_is_not_ours_is_removed(tmp_path: Path) -> None:
    store = Store(tmp_path, max_bytes=8 * FORMAT.file_bytes)
    foreign = [tmp_path / "notes.txt", store.path(0).parent / "notes.txt"]
    foreign += [tmp_path / "folder" / store.path(0).name]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(10 * FORMAT.file_bytes))
    (tmp_path / ("0" * 32)).symlink_to(tmp_path / "folder")
    store.path(99).symlink_to(tmp_path / "notes.txt")  # whose size does not count
    store.put(*range(40))
    assert all(path.exists() for path in foreign)
    assert 0 < len(files(tmp_path)) - len(foreign) <= 8


def test_partial_files_of_the_dead_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 10_000.0)
    store = Store(tmp_path)
    abandoned, fresh = (
        store.path(0).parent / f".{block_hash(number).hex()}.{number}-7.partial"
        for number in (1, 2)
    )
    for path in (abandoned, fresh):
        path.write_bytes(b"half a blo")
    os.utime(abandoned, (6399, 6399))
    os.utime(fresh, (6400, 6400))  # an hour ago
    store.put(3)
    assert (abandoned.exists(), fresh.exists()) == (False, True)


def test_what_has_the_name_of_a_partial_file_is_overwritten_and_a_link_not_followed(
    tmp_path: Path,
) -> None:
    directory = Store(tmp_path).directory
    path, elsewhere = directory.path(block_hash(1)), tmp_path / "elsewhere"
    partial = path.with_name(
        f".{block_hash(1).hex()}.{os.getpid()}-{threading.get_ident()}.partial"
    )
    partial.write_bytes(bytes(10 * FORMAT.file_bytes))
    directory.write(block_hash(1), [bytes(FORMAT.file_bytes)])
    assert path.stat().st_size == FORMAT.file_bytes
    partial.symlink_to(elsewhere)
    with pytest.raises(OSError, match="symbolic links"):
        directory.write(block_hash(1), [bytes(FORMAT.file_bytes)])
    assert not elsewhere.exists() and not os.path.lexists(partial)


def test_the_directory_is_ours_alone(tmp_path: Path) -> None:
    root = tmp_path / "new" / "cache"
    Store(root).put(1)
    assert root.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in root.rglob("*"))
    for mode in (0o770, 0o702):
        root.chmod(mode)
        with pytest.raises(ValueError, match=rf"prefix_store=.*mode {mode:o}; it must be yours"):
            Store(root)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"prefix_store='.*/file': is not a directory"):
        Store(tmp_path / "file")


def test_a_bound_below_one_block_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=rf"prefix_cache_bytes=\d+: must hold a block of {FORMAT.file_bytes} bytes"
    ):
        Store(tmp_path, max_bytes=FORMAT.file_bytes - 1)
    store = Store(tmp_path, max_bytes=FORMAT.file_bytes)
    store.put(1)
    assert store.holds(1)


def test_a_disk_that_fails_ends_saving_and_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, goes_on = Store(tmp_path), threading.Event()
    store.put(1)

    def fail(*args: object) -> None:
        goes_on.wait()
        raise OSError(28, "No space left on device", "there")

    monkeypatch.setattr(store.directory, "write", fail)
    for number in (2, 3, 4):
        store.save(block_hash(number), token_ids(number), contents(number))
    goes_on.set()
    store.flush()
    assert store.reports == [
        "[Errno 28] No space left on device: 'there': no more blocks are saved"
    ]
    assert store.holds(1) and not store.holds(2) and not store.wants(block_hash(5))


def test_a_directory_that_vanishes_is_a_cold_cache(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(1)
    for path in files(tmp_path):
        path.unlink()
    store.path(1).parent.rmdir()
    assert not store.holds(1)
    store.put(2)
    assert len(store.reports) == 1 and "no more blocks are saved" in store.reports[0]


def test_two_processes_share_a_directory(tmp_path: Path) -> None:
    """Both write, find and remove the same blocks in a directory far too small for them."""
    script = "\n".join(
        (
            "import sys; from pathlib import Path; from unit.test_prefix_store import *",
            "store = Store(Path(sys.argv[1]), max_bytes=20 * FORMAT.file_bytes)",
            "rng = np.random.default_rng(int(sys.argv[2]))",
            "found = 0",
            "for _ in range(150):",
            "    number = int(rng.integers(60))",
            "    found += store.holds(number)",
            "    store.put(number)",
            "assert found and not store.reports, (found, store.reports)",
        )
    )
    processes = [in_another_process(script, tmp_path, str(seed)) for seed in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    store = Store(tmp_path)
    assert sum(store.holds(number) for number in range(60)) == len(files(tmp_path)) <= 24
    assert store.reports == []


def in_another_process(script: str, *arguments: object) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", script, *map(str, arguments)], env=environment
    )


# -- a secret --------------------------------------------------------------------------------------


def test_a_block_that_was_written_without_the_secret_is_not_used(tmp_path: Path) -> None:
    for number, writer in enumerate((FORMAT, replace(FORMAT, key=b"another secret......"), KEYED)):
        writing = Store(tmp_path, file_format=writer)
        writing.put(number)
        store = Store(tmp_path, file_format=KEYED)
        assert store.holds(number) == (writer is KEYED)
        assert store.counts.damaged == (writer is not KEYED)
        assert writing.path(number).exists() == (writer is KEYED)
    assert not Store(tmp_path).holds(2), "nor is one with a secret by those who have none"


# -- a store that may be slower than computing -----------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class SlowStore(Store):
    """A store each of whose calls takes some seconds."""

    def __init__(self, root: Path, clock: Clock, seconds: float) -> None:
        super().__init__(root)
        self.clock, self.seconds, self.num_calls = clock, seconds, 0
        self._clock, self._policy = clock, FetchPolicy(clock)
        directory = self.directory

        def slow(method: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                self.num_calls += 1
                clock.now += self.seconds
                return method(*args)

            return call

        directory.has, directory.read = slow(directory.has), slow(directory.read)  # type: ignore[method-assign]

    def fetched(self, *numbers: int) -> int:
        """How many of these blocks, which begin a prompt, were fetched."""
        self._read.clear()
        self.start_reading(read(1, *numbers))
        ((_, found),) = self.take_read(60)
        return len(found)


def test_steps_of_few_tokens_say_nothing_about_prompts() -> None:
    policy = FetchPolicy(Clock())
    policy.note_computed(31, 1e-9)
    policy.note_fetched(2, 50.0)
    policy.note_fetched(0, 50.0)  # its time was up before the first call
    assert policy.pays(100, 200)
    policy.note_computed(32, 1e-9)
    assert not policy.pays(100, 200)


def test_a_step_that_takes_longer_than_others_moves_the_mean_by_a_quarter() -> None:
    policy = FetchPolicy(Clock())
    policy.note_computed(100, 100 * 1.0)
    policy.note_computed(100, 100 * 5.0)
    assert policy.compute_seconds(10) == 20.0
    policy.note_fetched(10, 10 * 1.0)
    policy.note_fetched(10, 10 * 5.0)
    assert [policy.pays(20, num_calls) for num_calls in (19, 20)] == [True, False]


@pytest.mark.parametrize(("seconds", "num_fetched"), [(0.079, 3), (0.081, 0)])
def test_two_calls_for_a_block_are_compared_with_computing_its_tokens(
    seconds: float, num_fetched: int, tmp_path: Path
) -> None:
    store = SlowStore(tmp_path, Clock(), seconds)
    store.put(1, 2, 3)
    assert store.fetched(1, 2, 3) == 3, "nothing is known yet"
    store.note_computed(100, 1.0)  # 0.16 s for a block
    assert store.fetched(1, 2, 3) == num_fetched


def test_only_what_is_missing_of_a_prompt_is_compared(tmp_path: Path) -> None:
    store, asked = SlowStore(tmp_path, Clock(), 1.0), []
    store._policy.pays = lambda *sizes: asked.append(sizes)
    store._pieces_per_state = 5
    keys = tuple(KeyToRead(replace(key(n), index=n), 4) for n in (2, 3))
    for snapshot, num_files in ((None, 2), (SnapshotKey(block_hash(3), token_ids(3)), 2 + 5)):
        store.start_reading(Read(1, keys, (PrefixToRead(3, 1), PrefixToRead(4, 2, snapshot))))
        assert store.take_read(60) == [(1, [])]
        assert asked.pop() == (2 * BLOCK_SIZE, 2 * num_files)


def test_a_store_that_was_slow_is_tried_again_after_a_while(tmp_path: Path) -> None:
    clock = Clock()
    store = SlowStore(tmp_path, clock, seconds=5.0)
    store.put(1, 2)
    store.note_computed(1000, 1.0)
    assert store.fetched(1, 2) == 0, "gives up when the prefix would have been computed"
    assert store.num_calls - 2 <= 2  # two of them when the blocks were written
    num_calls = store.num_calls
    assert store.fetched(1, 2) == 0 and store.num_calls == num_calls, "is not asked"
    clock.now += 30.0
    store.seconds = 1e-6
    assert store.fetched(1, 2) == 2, "a trial"
    assert store.fetched(1, 2) == 2, "what was measured before the trial is forgotten"


def test_a_store_of_its_own_is_always_read(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(1)
    store.note_computed(1000, 1e-9)
    store.start_reading(read(1, 1))
    assert [len(found) for _, found in store.take_read(60)] == [1]
