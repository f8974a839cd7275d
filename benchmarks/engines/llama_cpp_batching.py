"""Continuous batching over llama.cpp's C API, as in llama-server: each call has the next token of every
running sequence and, up to the batch size, further prompt tokens."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import llama_cpp
import numpy as np
from engines.traffic import Served, TrafficRequest
from engines.worker import Stopwatch


@dataclass
class _Sequence:
    """One request in its slot."""

    slot: int
    request: TrafficRequest
    num_computed: int = 0  # tokens in the cache
    last_token_id: int = -1
    token_times: list[float] = field(default_factory=list)

    @property
    def num_prompt_left(self) -> int:
        return max(0, len(self.request.prompt_token_ids) - self.num_computed)


class _Batch:
    """A `llama_batch` on arrays of ours: filled by rows, not by calls."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._token_ids, self._positions, self._slots = np.zeros((3, capacity), np.int32)
        self._counts = np.ones(capacity, np.int32)
        self._wanted = np.zeros(capacity, np.int8)
        addresses = np.arange(capacity, dtype=np.uintp) * self._slots.itemsize
        self._slot_pointers = addresses + np.uintp(self._slots.ctypes.data)
        self.size = 0

    def clear(self) -> None:
        self.size = 0

    def add(self, token_ids: Sequence[int], sequence: _Sequence, wants_logits: bool) -> int:
        """Appends the next rows of a sequence; returns the last one's index."""
        rows = slice(self.size, self.size + len(token_ids))
        self._token_ids[rows] = token_ids
        self._positions[rows] = np.arange(len(token_ids)) + sequence.num_computed
        self._slots[rows] = sequence.slot
        self._wanted[rows] = 0
        self._wanted[rows.stop - 1] = wants_logits
        self.size = rows.stop
        return rows.stop - 1

    def as_llama_batch(self) -> object:
        int_pointer = ctypes.POINTER(ctypes.c_int32)

        def pointer(array: np.ndarray, kind: type = int_pointer) -> object:
            return array.ctypes.data_as(kind)

        return llama_cpp.llama_batch(
            n_tokens=self.size,
            token=pointer(self._token_ids),
            pos=pointer(self._positions),
            n_seq_id=pointer(self._counts),
            seq_id=pointer(self._slot_pointers, ctypes.POINTER(int_pointer)),
            logits=pointer(self._wanted, ctypes.POINTER(ctypes.c_int8)),
        )


def serve_requests(
    context: object, vocab_size: int, batch_size: int, requests: Sequence[TrafficRequest]
) -> Served:
    """Answers all requests, each in a slot of its own, greedily.

    Args:
        context: with a sequence for each request, all empty.
        vocab_size: V.
        batch_size: tokens in a call, `n_batch`.
    """
    sequences = [_Sequence(slot, request) for slot, request in enumerate(requests)]
    memory = llama_cpp.llama_get_memory(context)
    batch = _Batch(batch_size)
    running = list(sequences)
    stopwatch = Stopwatch()
    while running:
        sampled = _fill(batch, running)
        status = llama_cpp.llama_decode(context, batch.as_llama_batch())
        if status != 0:
            raise RuntimeError(f"llama_decode: {status}")
        for sequence, row in sampled:
            logits = llama_cpp.llama_get_logits_ith(context, row)
            sequence.last_token_id = int(np.ctypeslib.as_array(logits, (vocab_size,)).argmax())
        now = stopwatch.seconds
        for sequence, _ in sampled:
            sequence.token_times.append(now)
            if len(sequence.token_times) == sequence.request.num_output_tokens:
                running.remove(sequence)
                llama_cpp.llama_memory_seq_rm(memory, sequence.slot, -1, -1)
    return Served([sequence.token_times for sequence in sequences])


def _fill(batch: _Batch, running: Sequence[_Sequence]) -> list[tuple[_Sequence, int]]:
    """Puts the next call together; which sequences get a token, from which row."""
    batch.clear()
    sampled = []
    for sequence in running:
        if sequence.token_times:
            sampled.append((sequence, batch.add([sequence.last_token_id], sequence, True)))
            sequence.num_computed += 1
    for sequence in running:
        if count := min(sequence.num_prompt_left, batch.capacity - batch.size):
            start = sequence.num_computed
            chunk = sequence.request.prompt_token_ids[start : start + count]
            is_last = count == sequence.num_prompt_left
            row = batch.add(chunk, sequence, is_last)
            sequence.num_computed += count
            if is_last:
                sampled.append((sequence, row))
    return sampled
