"""What a stage does with messages that an engine would not send: each gets a reply, and none harms the process."""

import random
from pathlib import Path

import numpy as np
import pytest

from pellucid.backends.ops import ForwardBatch
from pellucid.inputs.config import EngineConfig
from pellucid.stages.messages import (
    Allocate,
    Compute,
    Contents,
    CopyBlocks,
    CopyState,
    Done,
    Failed,
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
    assert host.answer(Allocate(NUM_BLOCKS, NUM_SLOTS)) == Done()
    return host


def step(num_tokens: int = 20) -> Compute:
    """Tokens of one request from its first on, in blocks 3 and 5."""
    share = Share(list(range(4, 4 + num_tokens)), 0, num_tokens, [3, 5], state_slot=1)
    return compute_message(forward_batch([share], BLOCK), [0], None)


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
    [block] = contents(host, ReadBlocks([3]))
    [state] = contents(host, ReadState(1))
    wrong: list[ToStage] = [
        Load(0, 4),
        Allocate(0, 1),
        Allocate(1, 0),
        ReadBlocks([NUM_BLOCKS]),
        ReadBlocks([-1]),
        WriteBlocks([3], [block[:-1]]),
        WriteBlocks([3], []),
        WriteBlocks([NUM_BLOCKS], [block]),
        CopyBlocks([0], [NUM_BLOCKS]),
        CopyBlocks([0, 1], [2]),
        CopyState(0, NUM_SLOTS),
        ReadState(-1),
        WriteState(NUM_SLOTS, state),
        WriteState(1, state + b"\0"),
        compute_message(two_groups(), [0, 1], None),
        compute_message(two_groups(), [0], bytes(4 * 64)),
    ]
    for message in wrong:
        assert isinstance(host.answer(message), Failed), message
    assert host.answer(WriteBlocks([3], [block])) == Done()
    assert host.answer(WriteState(1, state)) == Done()
    assert host.answer(step()) == expected
    host.close()
    for message in (step(), ReadBlocks([0]), Load(0, 4), Allocate(1, 1)):
        assert isinstance(host.answer(message), Failed)


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
