"""The extension refuses arguments that would make kernels read or write out of bounds, in every build."""

from collections.abc import Callable

import numpy as np
import pytest

from pellucid.backends.native import (
    Indices,
    KVCache,
    LinearWeights,
    Program,
    ProgramAttention,
    RowSet,
    ThreadPool,
    find_kernels,
    pack_weights,
    plan_weights,
)

TOKENS, LOGITS = RowSet.TOKENS, RowSet.LOGITS
MAX_ROWS, HEADS, KV_HEADS, HEAD_DIM = 4, 2, 1, 16
WIDTH = HEADS * HEAD_DIM
VOCAB = 10
MAX_SEQ_LEN = 64

POOL = ThreadPool(2)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def matrix(num_outputs: int = VOCAB) -> LinearWeights:
    return pack_weights("f32", np.ones((num_outputs, WIDTH), np.float32), pool=POOL)


def new_program(max_rows: int = MAX_ROWS) -> Program:
    return Program(find_kernels(), POOL, max_rows, 0)


def small_decoder() -> Program:
    """Embeds, rotates, attends and gives logits, with every array of a step in use."""
    program = new_program()
    x = program.add_buffer(TOKENS, WIDTH)
    rotations = program.add_buffer(TOKENS, HEAD_DIM)
    given = program.add_buffer(TOKENS, WIDTH)
    last, logits = program.add_buffer(LOGITS, WIDTH), program.add_buffer(LOGITS, VOCAB)
    program.embed(Indices.TOKEN_IDS, matrix(), 1.0, (x, 0))
    program.input(0, WIDTH, (given, 0))
    program.add(TOKENS, (x, 0), (given, 0), WIDTH, (x, 0))
    program.rotations(0, HEAD_DIM, 1.0, 0.0, 1, (rotations, 0))
    program.rope(TOKENS, (x, 0), (rotations, 0), HEADS, HEAD_DIM, HEAD_DIM, (x, 0))
    program.store_kv(0, (x, 0), (x, HEAD_DIM), KV_HEADS, HEAD_DIM)
    attention(program).paged_attention(TOKENS, 0, (x, 0), 1.0, None, None, None, (x, 0))
    program.gather((x, 0), WIDTH, (last, 0))
    program.linear(LOGITS, (last, 0), matrix(), (logits, 0), add_to_y=False)
    program.finish(logits)
    return program


def attention(program: Program, **changes: int) -> ProgramAttention:
    shape = {
        "max_requests": MAX_ROWS,
        "max_seq_len": MAX_SEQ_LEN,
        "num_heads": HEADS,
        "num_kv_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
    }
    return ProgramAttention(program, **{**shape, **changes})


def cache(num_layers: int = 1, num_kv_heads: int = KV_HEADS, head_dim: int = HEAD_DIM) -> KVCache:
    return KVCache("f32", [(num_layers, num_kv_heads, head_dim, 0)], 16, 8)


def run(program: Program, **changes: object) -> None:
    """A step of three tokens of one request, and what `changes` make of it.

    Args:
        changes: arguments of `Program.run`; a cache is made when it is called.
    """
    arguments: dict[str, object] = {
        "output": np.zeros((1, VOCAB), np.float32),
        "token_ids": ints(1, 2, 3),
        "positions": ints(0, 1, 2),
        "slot_mapping": np.array([[0, 1, 2]], np.int64),
        "query_start": ints(0, 3),
        "seq_lens": ints(3),
        "block_tables": ints(0)[None, None],
        "logits_indices": ints(2),
        "state_slots": ints(0),
        "frequencies": [np.ones((1, HEAD_DIM // 2), np.float32)],
        "inputs": [np.ones((3, WIDTH), np.float32)],
    }
    kv_cache = changes.get("kv_cache", cache)
    changes["kv_cache"] = kv_cache() if callable(kv_cache) else kv_cache
    program.run(**{**arguments, **changes})


def five_rows() -> dict[str, object]:
    return {
        "token_ids": ints(1, 2, 3, 4, 5),
        "positions": ints(0, 1, 2, 3, 4),
        "slot_mapping": np.arange(5)[None],
        "query_start": ints(0, 5),
        "seq_lens": ints(5),
        "inputs": [np.ones((5, WIDTH), np.float32)],
    }


def long_text() -> dict[str, object]:
    return {"seq_lens": ints(MAX_SEQ_LEN + 1), "block_tables": ints(0, 1, 2, 3, 4)[None, None]}


def test_the_step_that_others_differ_from_runs() -> None:
    run(small_decoder())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (five_rows(), "token_ids: has 5 rows, the program was made for 4"),
        (
            {
                "logits_indices": ints(2, 2, 2, 2, 2),
                "output": np.zeros((5, VOCAB), np.float32),
            },
            "logits_indices: has 5 rows, the program was made for 4",
        ),
        ({"kv_cache": None}, "kv_cache: the program has attention and needs one"),
        ({"kv_cache": lambda: cache(num_kv_heads=2)}, "kv_cache: has 2 kv-heads, the program 1"),
        ({"kv_cache": lambda: cache(head_dim=8)}, "kv_cache: head_dim=8, the program has 16"),
        (
            {"kv_cache": lambda: cache(head_dim=32)},
            "kv_cache: head_dim=32, the program has 16",
        ),
        (long_text(), "seq_lens: 65 tokens, the program was made for 64"),
        ({"seq_lens": ints(3, 3)}, "query_start, block_tables"),
        ({"query_start": ints(0, 2)}, "query_start: must go from 0"),
        ({"slot_mapping": np.array([[0, 1, 128]])}, "slot_mapping: 128 is not in the cache"),
        ({"slot_mapping": np.array([[0, 1]])}, "slot_mapping: must be as long"),
        ({"block_tables": ints(8)[None, None]}, "block_tables: 8 is not in the cache"),
        ({"inputs": []}, "inputs: has no array 0"),
        ({"inputs": [np.ones((2, WIDTH), np.float32)]}, r"inputs: array 0 must be \[3, 32\]"),
        ({"inputs": [np.ones((3, 31), np.float32)]}, r"inputs: array 0 must be \[3, 32\]"),
        ({"frequencies": []}, "frequencies: has no array 0"),
        ({"frequencies": [np.ones((1, 7), np.float32)]}, "frequencies: array 0 must be"),
        ({"frequencies": [np.ones((2, 8), np.float32)]}, "frequencies: array 0 must be"),
        ({"output": np.zeros((1, VOCAB - 1), np.float32)}, "output: must be"),
        ({"stage_seconds": np.zeros(1)}, "stage_seconds"),
    ],
)
def test_steps_that_do_not_fit(changes: dict[str, object], message: str) -> None:
    program = small_decoder()
    with pytest.raises(ValueError, match=message):
        run(program, **changes)
    run(program)  # and goes on


def test_a_layer_that_the_cache_lacks() -> None:
    program = new_program()
    x = program.add_buffer(TOKENS, WIDTH)
    program.store_kv(1, (x, 0), (x, HEAD_DIM), KV_HEADS, HEAD_DIM)
    program.finish(x)
    with pytest.raises(ValueError, match="kv_cache: has 1 layers, the program uses 2"):
        run(program, output=np.zeros((3, WIDTH), np.float32))


def test_a_program_runs_when_it_is_finished_and_is_finished_once() -> None:
    program = new_program()
    x = program.add_buffer(TOKENS, WIDTH)
    with pytest.raises(ValueError, match="the program is not finished"):
        run(program, output=np.zeros((3, 0), np.float32))
    program.finish(None)
    for addition in (
        lambda: program.finish(None),
        lambda: program.add_buffer(TOKENS, 1),
        lambda: program.input(0, WIDTH, (x, 0)),
        lambda: program.linear(TOKENS, (x, 0), matrix(WIDTH), (x, 0), add_to_y=False),
        lambda: program.store_kv(0, (x, 0), (x, 0), 1, HEAD_DIM),
    ):
        with pytest.raises(ValueError, match="the program is finished: nothing can be added"):
            addition()


def test_a_program_of_weights_without_memory_is_planned_and_does_not_run() -> None:
    sizes = []
    for weights in (matrix(), plan_weights("f32", VOCAB, WIDTH, False)):
        program = new_program()
        x, y = program.add_buffer(TOKENS, WIDTH), program.add_buffer(TOKENS, VOCAB)
        program.input(0, WIDTH, (x, 0))
        program.linear(TOKENS, (x, 0), weights, (y, 0), add_to_y=False)
        program.finish(None)
        sizes.append(program.scratch_bytes)
    assert sizes[0] == sizes[1]
    with pytest.raises(ValueError, match="only a plan: its weights have no memory"):
        run(program, output=np.zeros((3, 0), np.float32))
    for wrong in ((0, 1), (1, 0), (-1, 4)):
        with pytest.raises(ValueError, match=r"num_(out|in)puts=-?\d: must be at least 1"):
            plan_weights("f32", *wrong, False)


# y, x: a buffer of 32 columns; "r": one of rows with logits.
@pytest.mark.parametrize(
    "add",
    [
        lambda p, x, r: p.embed(Indices.TOKEN_IDS, matrix(), 1.0, x(1)),
        lambda p, x, r: p.embed(Indices.TOKEN_IDS, matrix(), 1.0, r(0)),
        lambda p, x, r: p.input(0, 33, x(0)),
        lambda p, x, r: p.input(-1, 32, x(0)),
        lambda p, x, r: p.linear(TOKENS, x(0), matrix(33), x(0), add_to_y=False),
        lambda p, x, r: p.linear(TOKENS, x(1), matrix(), x(0), add_to_y=False),
        lambda p, x, r: p.linear(LOGITS, x(0), matrix(), r(0), add_to_y=False),
        lambda p, x, r: p.linear(TOKENS, x(0), matrix(), x(0), add_to_y=False, notes_largest=True),
        lambda p, x, r: p.rms_norm(TOKENS, x(0), np.ones(33, np.float32), 0.0, 1, x(0)),
        lambda p, x, r: p.rms_norm(TOKENS, x(0), np.ones(16, np.float32), 0.0, 3, x(0)),
        lambda p, x, r: p.rms_norm(TOKENS, x(0), np.ones(16, np.float32), 0.0, 0, x(0)),
        lambda p, x, r: p.layer_norm(
            TOKENS, x(0), np.ones(32, np.float32), np.ones(31, np.float32), 0.0, 1, x(0)
        ),
        lambda p, x, r: p.rotations(0, 34, 1.0, 0.0, 1, x(0)),
        lambda p, x, r: p.rotations(0, 15, 1.0, 0.0, 1, x(0)),
        lambda p, x, r: p.rotations(0, 16, 1.0, 0.5, 0, x(0)),
        lambda p, x, r: p.rope(TOKENS, x(0), x(0), 3, 16, 16, x(0)),
        lambda p, x, r: p.rope(TOKENS, x(0), x(0), 2, 16, 18, x(0)),
        lambda p, x, r: p.rope(TOKENS, x(0), x(17), 2, 16, 16, x(0)),
        lambda p, x, r: p.activate(TOKENS, x(0), "silu", 33, x(0)),
        lambda p, x, r: p.gated_activate(TOKENS, x(0), "silu", 17, x(0)),
        lambda p, x, r: p.add(TOKENS, x(0), r(0), 32, x(0)),
        lambda p, x, r: p.softcap(LOGITS, x(0), 1.0, 32, x(0)),
        lambda p, x, r: p.largest(x(0), 32),
        lambda p, x, r: p.gather(x(0), 32, x(0)),
        lambda p, x, r: p.store_kv(-1, x(0), x(0), 1, 16),
        lambda p, x, r: p.store_kv(0, x(32), x(0), 1, 16),
        lambda p, x, r: p.store_kv(0, x(0), x(0), 0, 16),
        lambda p, x, r: p.store_kv(0, x(0), x(0), 1, 0),
        lambda p, x, r: p.store_kv(0, x(0), x(17), 1, 16),
        lambda p, x, r: p.scale(TOKENS, x(0), np.ones(31, np.float32), 32, x(0)),
        lambda p, x, r: p.scale(TOKENS, x(1), np.ones(1, np.float32), 32, x(0)),
        lambda p, x, r: attention(p).paged_attention(TOKENS, -1, x(0), 1.0, None, None, None, x(0)),
        lambda p, x, r: attention(p).paged_attention(TOKENS, 0, x(1), 1.0, None, None, None, x(0)),
        lambda p, x, r: attention(p).paged_attention(TOKENS, 0, x(0), 1.0, -1, None, None, x(0)),
        lambda p, x, r: attention(p, num_kv_heads=0),
        lambda p, x, r: attention(p, num_heads=3, num_kv_heads=2),
        lambda p, x, r: attention(p, head_dim=12),
        lambda p, x, r: attention(p, max_requests=0),
        lambda p, x, r: attention(p, max_seq_len=2**40),
        lambda p, x, r: p.input(0, 32, (2, 0)),
        lambda p, x, r: p.input(0, 32, (-1, 0)),
        lambda p, x, r: p.input(0, 1, x(-1)),
        lambda p, x, r: p.finish(2),
        lambda p, x, r: p.add_buffer(TOKENS, 0),
        lambda p, x, r: p.add_buffer(TOKENS, 2**40),
    ],
)
def test_operands_that_do_not_fit(add: Callable[..., None]) -> None:
    program = new_program()
    x, r = program.add_buffer(TOKENS, WIDTH), program.add_buffer(LOGITS, WIDTH)
    with pytest.raises(ValueError, match=r"\w: |\w=-?\d+: "):
        add(program, lambda column: (x, column), lambda column: (r, column))


def test_sizes_that_no_memory_has() -> None:
    for max_rows in (0, -1, 2**40):
        with pytest.raises(ValueError, match="max_rows="):
            new_program(max_rows)
    for num_threads in (0, -1, 10**6):
        with pytest.raises(ValueError, match=f"num_threads={num_threads}: allowed are 1 to 1024"):
            ThreadPool(num_threads)
    with pytest.raises(ValueError, match=f"num_blocks={2**60}: allowed are 1 to"):
        KVCache("f32", [(1, 1, 16, 0)], 16, 2**60)
    with pytest.raises(ValueError, match="num_layers, num_kv_heads: must be at least 1, at most"):
        cache(num_layers=2**60)
