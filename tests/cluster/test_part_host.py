"""What a stage does with messages that an engine would not send: each gets a reply, and none harms the process."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from pellucid.backends.ops import ForwardBatch
from pellucid.inputs.config import EngineConfig
from pellucid.loaded_model import load_model
from pellucid.stages.messages import (
    Allocate,
    Compute,
    Contents,
    CopyBlocks,
    CopyState,
    Done,
    Failed,
    Free,
    Load,
    Loaded,
    Prepare,
    Prepared,
    ReadBlocks,
    ReadState,
    Rows,
    ToStage,
    WriteBlocks,
    WriteState,
    compute_message,
)
from pellucid.stages.part_host import OwnSettings, PartHost
from support.batches import Share, forward_batch
from support.checkpoints import write_checkpoint

NUM_BLOCKS, NUM_SLOTS, BLOCK = 8, 2, 16
FORMAT = BLOCK, "f32"
SETTINGS = EngineConfig(backend="cpu", block_size=BLOCK, kv_cache_dtype="f32", max_model_len=64)


@pytest.fixture
def host(tmp_path: Path) -> PartHost:
    """The first four of eight layers, one of them with attention, the others recurrent."""
    model = write_checkpoint(
        tmp_path,
        "lfm2",
        config_overrides={
            "num_hidden_layers": 8,
            "layer_types": 2 * ["conv", "full_attention", "conv", "conv"],
        },
    )
    host = PartHost(OwnSettings(str(model), num_threads=1))
    assert isinstance(host.answer(Prepare(SETTINGS)), Prepared)
    assert isinstance(host.answer(Load(0, 4)), Loaded)
    assert host.answer(Allocate(0, NUM_BLOCKS, NUM_SLOTS, *FORMAT)) == Done()
    return host


def step(num_tokens: int = 20) -> Compute:
    """Tokens of one request from its first on, in blocks 3 and 5."""
    share = Share(list(range(4, 4 + num_tokens)), 0, num_tokens, [3, 5], state_slot=1)
    return compute_message(forward_batch([share], BLOCK), [0], None, 0)


ARRAYS = (
    *("token_ids", "positions", "rope_lens", "slot_mapping", "query_start"),
    *("seq_lens", "block_tables", "logits_indices", "state_slots"),
)
EXTREMES = (-(2**31), -2, -1, 0, 1, 7, 8, 19, 20, 21, 127, 128, 255, 1 << 20, 2**31 - 1)


@pytest.mark.parametrize("name", ARRAYS)
def test_numbers_out_of_range(host: PartHost, name: str) -> None:
    """Each step with some other numbers gets rows or an error; the right step then gets what it got at first."""
    expected = host.answer(step())
    assert isinstance(expected, Rows)
    rng = random.Random(name)
    dtype = np.int64 if name == "slot_mapping" else np.int32
    num_refused = 0
    for _ in range(150):
        message = step()
        numbers = np.frombuffer(getattr(message, name), dtype).copy()
        for index in rng.sample(range(len(numbers)), rng.randint(1, min(3, len(numbers)))):
            numbers[index] = rng.choice(EXTREMES)
        setattr(message, name, numbers.tobytes())
        reply = host.answer(message)
        assert isinstance(reply, Rows | Failed), reply
        num_refused += isinstance(reply, Failed)
    assert num_refused or name in ("rope_lens", "logits_indices")
    assert host.answer(step()) == expected


def test_messages_in_another_order_and_of_other_sizes(host: PartHost) -> None:
    expected = host.answer(step())
    [block] = contents(host, ReadBlocks(0, [3]))
    [state] = contents(host, ReadState(0, 1))
    wrong: list[ToStage] = [
        Load(0, 4),
        Allocate(0, 0, 1, *FORMAT),
        Allocate(0, 1, 0, *FORMAT),
        Allocate(1, 1, 1, 7, "f32"),
        Allocate(1, 1, 1, BLOCK, "int5"),
        ReadBlocks(0, [NUM_BLOCKS]),
        ReadBlocks(0, [-1]),
        WriteBlocks(0, [3], [block[:-1]]),
        WriteBlocks(0, [3], []),
        WriteBlocks(0, [NUM_BLOCKS], [block]),
        CopyBlocks(0, [0], [NUM_BLOCKS]),
        CopyBlocks(0, [0, 1], [2]),
        CopyState(0, 0, NUM_SLOTS),
        ReadState(0, -1),
        WriteState(0, NUM_SLOTS, state),
        WriteState(0, 1, state + b"\0"),
        compute_message(two_groups(), [0, 1], None, 0),
        compute_message(two_groups(), [0], memoryview(bytes(4 * 64)), 0),
        ReadBlocks(1, [3]),
    ]
    for message in wrong:
        assert isinstance(host.answer(message), Failed), message
    assert host.answer(WriteBlocks(0, [3], [block])) == Done()
    assert host.answer(WriteState(0, 1, state)) == Done()
    assert host.answer(step()) == expected
    host.close()
    for message in (step(), ReadBlocks(0, [0]), Load(0, 4), Allocate(0, 1, 1, *FORMAT)):
        assert isinstance(host.answer(message), Failed)


def test_caches_beside_each_other(host: PartHost) -> None:
    """Each has its own contents and format; a number that is free again names none."""
    expected, state = host.answer(step()), contents(host, ReadState(0, 1))
    beside = structs.replace(step(), cache=7)
    assert host.answer(Allocate(7, NUM_BLOCKS, NUM_SLOTS, 32, "int8")) == Done()
    assert isinstance(host.answer(beside), Rows)
    assert contents(host, ReadState(0, 1)) == state and contents(host, ReadState(7, 0)) != state
    assert len(contents(host, ReadBlocks(7, [3]))[0]) < 2 * len(
        contents(host, ReadBlocks(0, [3]))[0]
    )
    assert host.answer(Free(7)) == host.answer(Free(7)) == Done()
    assert isinstance(host.answer(beside), Failed)
    assert host.answer(step()) == expected


def test_rows_that_come_and_go_are_planned(tmp_path: Path) -> None:
    """Beside the program: a piece that goes, as numbers and as a frame; all rows of a step, where they come."""
    model = write_checkpoint(tmp_path, "llama", config_overrides={"num_hidden_layers": 6})
    settings = replace(SETTINGS, max_model_len=128, max_num_seqs=8)  # at most 1,024 tokens
    host = PartHost(OwnSettings(str(model), num_threads=1))
    sizes, programs = [], []
    for layers in ((0, 2), (2, 4), (4, 6)):
        host.answer(Prepare(settings))
        reply = host.answer(Load(*layers))
        assert isinstance(reply, Loaded)
        part = load_model(replace(settings, model=str(model), num_threads=1), layers=range(*layers))
        sizes.append(reply.scratch_bytes)
        programs.append(part.decoder.scratch_bytes(1024))
    row = 4 * part.config.hidden_size
    rows = [taken - program for taken, program in zip(sizes, programs, strict=True)]
    assert rows == [2 * 512 * row, (1024 + 2 * 512) * row, 1024 * row]


@pytest.mark.parametrize("layers", [(0, 0), (4, 3), (-1, 4), (0, 9), (2, 4), (0, 1)])
def test_layers_that_are_no_part(host: PartHost, layers: tuple[int, int]) -> None:
    assert isinstance(host.answer(Prepare(SETTINGS)), Prepared)
    reply = host.answer(Load(*layers))
    assert isinstance(reply, Failed) and reply.error.startswith("layers ")


def contents(host: PartHost, message: ToStage) -> list[bytes]:
    reply = host.answer(message)
    assert isinstance(reply, Contents)
    return reply.contents


def two_groups() -> ForwardBatch:
    return forward_batch([Share([4], 0, 1, [0])], BLOCK, num_groups=2)
