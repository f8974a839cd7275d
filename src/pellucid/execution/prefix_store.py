"""The prefix store: blocks on disk or on a server, which outlive the pool and the process; threads read and write."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pellucid.backends.ops import BlockBytes
from pellucid.execution.block_file import BlockFileFormat, DamagedBlockError, ForeignBlockError
from pellucid.execution.block_store import BlockStore
from pellucid.execution.fetch_policy import FetchPolicy
from pellucid.execution.state_pieces import piece_hashes
from pellucid.scheduling.block_ops import Read, ReadSnapshot, SnapshotKey

# The contents of a block, or None; after the blocks, a snapshot of recurrent states as a list of its pieces.
Payload: TypeAlias = BlockBytes | ReadSnapshot | None

# Without an answer of the store for as long, prompts are computed, and nothing is read until it answers; `close`
# does not wait any longer for what is being written.
MAX_DISK_SECONDS = 10.0

_log = logging.getLogger(__name__)


@dataclass
class PrefixStoreCounts:
    """Blocks, since the store was made."""

    found: int = 0
    saved: int = 0
    # Not saved, because too many waited for the disk, or waited when it was closed.
    dropped: int = 0
    damaged: int = 0  # files that had changed since they were written; removed
    foreign: int = 0  # files with other contents; kept


class _TooSlowError(Exception):
    """By now the prefix would have been computed."""


class PrefixStore:
    """Reads and saves blocks in the background. The caller's thread never waits for the disk, not even for a look at
    a directory: a network drive may not answer.

    A reading and a writing thread live only while there is work for them. So the process can end without
    `close`, and the blocks that were saved until then are still written.

    Args:
        store: the files.
        file_format: their layout.
        max_pending: most blocks that may wait to be written; further blocks are dropped.
        report: called, from any thread, with a warning for people.
        pieces_per_state: pieces of the size of a block into which a snapshot of recurrent states is cut.
        policy: what is fetched and what is computed; None: whatever is there is read.
    """

    def __init__(
        self,
        store: BlockStore,
        file_format: BlockFileFormat,
        max_pending: int,
        report: Callable[[str], None],
        pieces_per_state: int,
        policy: FetchPolicy | None = None,
    ) -> None:
        assert store.file_bytes == file_format.file_bytes
        self.counts = PrefixStoreCounts()
        self._store = store
        self._format = file_format
        self._max_pending = max_pending
        self._report = report
        self._pieces_per_state = pieces_per_state
        self._policy = policy
        self._clock = time.monotonic
        self._lock = threading.Condition()  # for everything below
        self._pending: dict[bytes, tuple[tuple[int, ...], BlockBytes]] = {}  # by hash, oldest first
        self._is_writing = False
        self._saves = True
        self._is_closed = False
        self._to_read: deque[Read] = deque()
        self._is_reading = False
        self._being_read: int | None = None  # read_id
        self._asked_at: float  # while it reads: when the reading thread last asked the disk
        self._is_stuck = False  # the disk has not answered, and nobody waits for what is being read
        self._read: list[tuple[int, list[Payload]]] = []  # read_id and what was found
        self._num_calls, self._fetch_until = 0, math.inf  # of the reading thread alone

    def find(self, block_hash: bytes, token_ids: tuple[int, ...]) -> BlockBytes | None:
        """The verified contents of a block; None if there is no undamaged file of it.

        Args:
            block_hash: of the block and all before it.
            token_ids: of the block.
        """
        with self._lock:
            if (waiting := self._pending.get(block_hash)) is not None:
                return waiting[1] if waiting[0] == token_ids else None
        try:
            if (file := self._store.read(block_hash)) is None:
                return None
            data = self._format.decode(file, block_hash, token_ids)
        except DamagedBlockError as error:
            self.counts.damaged += 1
            self._report(f"{self._store.name(block_hash)}: {error}: removed")
            self._store.remove(block_hash)
        except (ForeignBlockError, OSError) as error:
            self.counts.foreign += 1
            self._report(f"{self._store.name(block_hash)}: {error}: ignored")
        else:
            self.counts.found += 1
            return data
        return None

    def start_reading(self, read: Read) -> None:
        """Begins to read what the longest prefix needs of which everything is there and sound. `take_read` gives it."""
        with self._lock:
            if self._is_closed or self._is_stuck:
                self._read.append((read.read_id, []))
                return
            self._to_read.append(read)
            if not self._is_reading:
                self._is_reading, self._asked_at = True, self._clock()
                threading.Thread(target=self._read_all, name="pellucid-prefix-reader").start()

    def take_read(self, max_seconds: float) -> list[tuple[int, list[Payload]]]:
        """The results of reads since the last call: read_id, and what was found, as `Read` says.

        Args:
            max_seconds: how long to wait, if something is being read and nothing is there yet.
        """
        with self._lock:
            self._lock.wait_for(lambda: self._read or not self._is_reading, max_seconds)
            gives_up = self._give_up_reading()
            taken, self._read = self._read, []
        if gives_up:
            self._report(
                f"no answer for {MAX_DISK_SECONDS:g} s: nothing is read until the store answers"
            )
        return taken

    def _give_up_reading(self) -> bool:
        """Ends all reads, with nothing found, if the disk has not answered for too long. Returns whether it did so
        now."""
        if not self._is_reading or self._is_stuck:
            return False
        if self._clock() - self._asked_at < MAX_DISK_SECONDS:
            return False
        self._is_stuck = True
        if self._being_read is not None:
            self._read.append((self._being_read, []))
        self._drop_waiting_reads()
        return True

    def _drop_waiting_reads(self) -> None:
        self._read += [(each.read_id, []) for each in self._to_read]
        self._to_read.clear()

    def wants(self, block_hash: bytes, num_blocks: int = 1, num_before: int = 0) -> bool:
        """Whether to call `save` for so many blocks, of which this is the first: they do not wait to be written yet,
        and there is room. Counts dropped blocks.

        Args:
            num_before: blocks that the store wants, too, and that are saved before these.
        """
        with self._lock:
            if not self._saves or block_hash in self._pending:
                return False
            if len(self._pending) + num_before + num_blocks > self._max_pending:
                self.counts.dropped += num_blocks
                return False
        return True

    def save(self, block_hash: bytes, token_ids: tuple[int, ...], data: BlockBytes) -> None:
        """Queues a block for writing. The caller has asked `wants`, and must not change `data` afterwards."""
        with self._lock:
            self._pending[block_hash] = (token_ids, data)
            if not self._is_writing:
                self._is_writing = True
                threading.Thread(target=self._write_pending, name="pellucid-prefix-store").start()

    def flush(self) -> None:
        """Waits until everything is written."""
        with self._lock:
            self._lock.wait_for(lambda: not self._is_writing)

    def close(self) -> None:
        """Writes what is waiting, unless the disk takes no block for `MAX_DISK_SECONDS`; from now on nothing is saved
        or read."""
        with self._lock:
            self._saves, self._is_closed = False, True
            self._drop_waiting_reads()
            while self._is_writing and self._wait_for_a_write():
                pass
            num_lost = len(self._pending)
            self.counts.dropped += num_lost
            self._pending.clear()
        if num_lost:
            self._report(f"no answer for {MAX_DISK_SECONDS:g} s: {num_lost} blocks are not saved")
        self._store.close()

    def _wait_for_a_write(self) -> bool:
        """Returns whether a block was written, in time."""
        num_waiting = len(self._pending)
        return self._lock.wait_for(
            lambda: not self._is_writing or len(self._pending) < num_waiting, MAX_DISK_SECONDS
        )

    def _read_all(self) -> None:
        while True:
            with self._lock:
                if not self._to_read:
                    self._is_reading = self._is_stuck = False
                    self._lock.notify_all()
                    return
                read = self._to_read.popleft()
                self._being_read, self._asked_at = read.read_id, self._clock()
            found: list[Payload] = []
            try:
                found = self._fetch_prefix(read)
            except Exception:
                _log.exception("blocks of the prefix cache could not be looked for")
            with self._lock:
                if not self._is_stuck:
                    self._read.append((read.read_id, found))
                self._being_read, self._is_stuck = None, False
                self._lock.notify_all()

    def note_computed(self, num_tokens: int, seconds: float) -> None:
        """A step has computed so many tokens: with a policy, that is what fetching competes with."""
        if self._policy is not None:
            self._policy.note_computed(num_tokens, seconds)

    def _fetch_prefix(self, read: Read) -> list[Payload]:
        """As `_find_prefix`; with a policy empty if that is expected to take longer than computing the prefix, or does
        so."""
        if (policy := self._policy) is None:
            return self._find_prefix(read)
        longest = read.prefixes[-1]
        num_blocks = longest.num_blocks - read.keys[0].key.index
        num_tokens = num_blocks * self._format.block_size
        num_files = longest.num_keys + (self._pieces_per_state if longest.snapshot else 0)
        if not policy.pays(num_tokens, 2 * num_files):  # is it there; what is it
            return []
        started = self._clock()
        self._num_calls, self._fetch_until = 0, started + policy.compute_seconds(num_tokens)
        try:
            return self._find_prefix(read)
        except _TooSlowError:
            return []
        finally:
            policy.note_fetched(self._num_calls, self._clock() - started)

    def _find_prefix(self, read: Read) -> list[Payload]:
        """What the longest prefix needs of which everything is there and sound; empty if there is none.

        Looks for all files of a prefix before it reads one of them.
        """
        contents: dict[int, BlockBytes | None] = {}  # by index of the key; None: not sound
        prefixes = list(read.prefixes)
        while prefixes:
            prefix = prefixes.pop()
            needed = read.needed(prefix)
            missing = self._first_missing(read, needed, contents)
            if missing is not None:
                until = read.keys[missing].needed_until
                prefixes = [
                    each for each in prefixes if each.num_keys <= missing or each.num_blocks > until
                ]
                continue
            found: list[Payload] = [None] * prefix.num_keys
            for index in needed:
                found[index] = contents[index]
            if prefix.snapshot is None:
                return found
            if (pieces := self._find_snapshot(prefix.snapshot)) is not None:
                return [*found, ReadSnapshot(prefix.snapshot.block_hash, pieces)]
        return []

    def _first_missing(
        self, read: Read, needed: Sequence[int], contents: dict[int, BlockBytes | None]
    ) -> int | None:
        """The first of the needed keys whose block is not there, or not sound. If there is none, `contents` has all of
        them."""
        for index in needed:
            if index not in contents and not self._has(read.keys[index].key.block_hash):
                return index
        for index in needed:
            if index not in contents:
                key = read.keys[index].key
                contents[index] = self._ask(key.block_hash, key.token_ids)
            if contents[index] is None:
                return index
        return None

    def _find_snapshot(self, snapshot: SnapshotKey) -> list[BlockBytes] | None:
        """The pieces of a snapshot; None if one is missing."""
        hashes = piece_hashes(snapshot.block_hash, self._pieces_per_state)
        if not all(map(self._has, hashes)):
            return None
        pieces: list[BlockBytes] = []
        for piece_hash in hashes:
            if (piece := self._ask(piece_hash, snapshot.token_ids)) is None:
                return None
            pieces.append(piece)
        return pieces

    def _has(self, block_hash: bytes) -> bool:
        """Whether there is a file of a block, or the block waits to be written."""
        self._begin_call()
        with self._lock:
            if block_hash in self._pending:
                return True
        return self._store.has(block_hash)

    def _begin_call(self) -> None:
        """Raises a _TooSlowError if by now the prefix would have been computed."""
        self._asked_at = self._clock()
        if self._asked_at > self._fetch_until:
            raise _TooSlowError
        self._num_calls += 1

    def _ask(self, block_hash: bytes, token_ids: tuple[int, ...]) -> BlockBytes | None:
        """`find`, for the reading thread: if it fails, the waiting request computes the block."""
        self._begin_call()
        try:
            return self.find(block_hash, token_ids)
        except Exception:
            _log.exception("a block of the prefix cache could not be read")
            return None

    def _write_pending(self) -> None:
        while (block := self._next_pending()) is not None:
            block_hash, token_ids, data = block
            is_new = False
            try:
                if not self._store.has(block_hash):
                    parts = self._format.encode(block_hash, token_ids, data)
                    is_new = self._store.write(block_hash, parts)
            except (OSError, MemoryError) as error:
                self._give_up(error)
            with self._lock:
                if self._pending.pop(block_hash, None) is not None:
                    self.counts.saved += is_new
                self._lock.notify_all()

    def _next_pending(self) -> tuple[bytes, tuple[int, ...], BlockBytes] | None:
        """The oldest block that waits; None ends the thread."""
        with self._lock:
            if self._pending:
                block_hash, (token_ids, data) = next(iter(self._pending.items()))
                return block_hash, token_ids, data
            self._is_writing = False
            self._lock.notify_all()
            return None

    def _give_up(self, error: OSError | MemoryError) -> None:
        """Stops saving: a disk that is full or gone would fail for the next block as well."""
        with self._lock:
            self._saves = False
            self._pending.clear()
        self._report(f"{error}: no more blocks are saved")
