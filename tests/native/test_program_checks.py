"""The extension refuses arguments that would make kernels read or write out of bounds, in every build."""

import ast
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pellucid.backends.native import (
    Draw,
    Exchange,
    Indices,
    KVCache,
    LinearWeights,
    Program,
    ProgramAttention,
    ProgramExperts,
    RowSet,
    Texts,
    ThreadPool,
    TokenTable,
    find_kernels,
    merges_of_scores,
    pack_weights,
    pass_strings,
    plan_weights,
)
from support.golden_files import compare

GOLDEN = Path(__file__).parents[1] / "golden"
TOKENS, LOGITS = RowSet.TOKENS, RowSet.LOGITS
MAX_ROWS, HEADS, KV_HEADS, HEAD_DIM = 4, 2, 1, 16
WIDTH = HEADS * HEAD_DIM
VOCAB = 10
MAX_SEQ_LEN = 64

POOL = ThreadPool(2)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def matrix(num_outputs: int = VOCAB, num_inputs: int = WIDTH) -> LinearWeights:
    return pack_weights("f32", np.ones((num_outputs, num_inputs), np.float32), pool=POOL)


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


def ones(size: int) -> np.ndarray:
    return np.ones(size, np.float32)


def convolution(
    program: Program,
    x: tuple[int, int],
    weight: np.ndarray,
    bias: np.ndarray | None,
    **changes: object,
) -> None:
    y = program.add_buffer(TOKENS, WIDTH)
    program.causal_convolution(
        **{"x": x, "weight": weight, "bias": bias, "num_channels": WIDTH, "first": 0, "y": (y, 0)}
        | changes
    )


def delta_net(program: Program, x: tuple[int, int], **changes: object) -> None:
    arguments: dict[str, object] = {
        "qkv": x,
        "b": x,
        "a": x,
        "log_decay": ones(1),
        "step_bias": ones(1),
        "num_key_heads": 1,
        "num_value_heads": 1,
        "key_dim": 8,
        "value_dim": 16,
        "tiled": False,
        "first": 0,
        "y": x,
    }
    program.gated_delta_net(**arguments | changes)


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


# What differs from that step
STEPS: list[dict[str, object]] = [
    five_rows(),
    {"logits_indices": ints(2, 2, 2, 2, 2), "output": np.zeros((5, VOCAB), np.float32)},
    {"kv_cache": None},
    {"kv_cache": lambda: cache(num_kv_heads=2)},
    {"kv_cache": lambda: cache(head_dim=8)},
    {"kv_cache": lambda: cache(head_dim=32)},
    long_text(),
    {"seq_lens": ints(3, 3)},
    {"query_start": ints(0, 2)},
    {"slot_mapping": np.array([[0, 1, 128]])},
    {"slot_mapping": np.array([[0, 1]])},
    {"block_tables": ints(8)[None, None]},
    {"inputs": []},
    {"inputs": [np.ones((2, WIDTH), np.float32)]},
    {"inputs": [np.ones((3, 31), np.float32)]},
    {"frequencies": []},
    {"frequencies": [np.ones((1, 7), np.float32)]},
    {"frequencies": [np.ones((2, 8), np.float32)]},
    {"output": np.zeros((1, VOCAB - 1), np.float32)},
    {"stage_seconds": np.zeros(1)},
]


def program_of(add: Callable[[Program, int, int], None]) -> Program:
    """It has rows of tokens, which it gives, and of logits."""
    program = new_program()
    x, r = program.add_buffer(TOKENS, WIDTH), program.add_buffer(LOGITS, WIDTH)
    add(program, x, r)
    program.finish(x)
    return program


def attend(rows: RowSet) -> Callable[[Program, int, int], None]:
    def add(program: Program, x: int, r: int) -> None:
        view = (x if rows == TOKENS else r, 0)
        plan = attention(program, max_requests=1)
        plan.paged_attention(rows, 0, view, 1.0, None, None, None, view)

    return add


TWO_REQUESTS = {
    "query_start": ints(0, 1, 3),
    "seq_lens": ints(1, 2),
    "block_tables": ints(0, 1)[None, :, None],
}
RECURRENT = {"states": np.zeros((1, WIDTH), np.float32)}


def step(add: Callable[[Program, int, int], None], **changes: object) -> None:
    """Of a program that has one layer."""
    run(program_of(add), output=np.zeros((3, WIDTH), np.float32), **changes)


LAYERS: list[Callable[[], None]] = [
    lambda: step(lambda p, x, r: p.store_kv(1, (x, 0), (x, HEAD_DIM), KV_HEADS, HEAD_DIM)),
    lambda: step(attend(TOKENS), **TWO_REQUESTS),
    lambda: step(attend(LOGITS), logits_indices=ints(1, 2)),
    lambda: step(attend(LOGITS), logits_indices=ints(3)),
    lambda: step(attend(LOGITS), logits_indices=ints(-1)),
    lambda: step(lambda p, x, r: convolution(p, (x, 0), ones(2 * WIDTH), None)),
    lambda: step(lambda p, x, r: convolution(p, (x, 0), ones(2 * WIDTH), None, first=1), **RECURRENT),
]  # fmt: skip


def test_steps_that_do_not_fit() -> None:
    program = small_decoder()

    def refusal_of_step(changes: dict[str, object]) -> str:
        message = refusal(lambda: run(program, **changes))
        run(program)  # and goes on
        return message

    lines = [*map(refusal_of_step, STEPS), *map(refusal, LAYERS)]
    compare_refusals("native_steps", [*texts_of("STEPS"), *texts_of("LAYERS")], lines)


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


# y, x: a buffer of 32 columns; "r": one of rows with logits.
OPERANDS: list[Callable[..., object]] = [
    lambda p, x, r: p.input(0, 33, x(0)),
    lambda p, x, r: p.input(-1, 32, x(0)),
    lambda p, x, r: p.linear(TOKENS, x(0), matrix(), x(0), add_to_y=False, notes_largest=True),
    lambda p, x, r: p.rms_norm(TOKENS, x(0), ones(16), 0.0, 0, x(0)),
    lambda p, x, r: p.layer_norm(TOKENS, x(0), ones(32), ones(31), 0.0, 1, x(0)),
    lambda p, x, r: p.rotations(0, 15, 1.0, 0.0, 1, x(0)),
    lambda p, x, r: p.rotations(0, 16, 1.0, 0.5, 0, x(0)),
    lambda p, x, r: p.rope(TOKENS, x(0), x(0), 2, 16, 18, x(0)),
    lambda p, x, r: p.store_kv(-1, x(0), x(0), 1, 16),
    lambda p, x, r: p.store_kv(0, x(0), x(0), 0, 16),
    lambda p, x, r: p.store_kv(0, x(0), x(0), 1, 0),
    lambda p, x, r: p.scale(TOKENS, x(0), ones(31), 32, x(0)),
    lambda p, x, r: attention(p).paged_attention(TOKENS, -1, x(0), 1.0, None, None, None, x(0)),
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
    lambda p, x, r: p.rms_norm(TOKENS, x(0), ones(16), 0.0, 2**60, x(0)),
    lambda p, x, r: p.rope(TOKENS, x(0), x(0), 2, 16, 0, x(0)),
    lambda p, x, r: p.rotations(-1, 16, 1.0, 0.0, 1, x(0)),
    lambda p, x, r: p.rotations(0, 0, 1.0, 0.0, 1, x(0)),
    lambda p, x, r: p.store_kv(0, x(0), x(0), 1, 16, group=-1),
    lambda p, x, r: p.store_kv(0, x(0), x(0), 2**17, 16),
    lambda p, x, r: p.store_kv(0, x(0), x(0), 1, 513),
    lambda p, x, r: attention(p).paged_attention(TOKENS, 0, x(0), 1.0, None, None, ones(3), x(0)),
    lambda p, x, r: attention(p, max_seq_len=0),
    lambda p, x, r: attention(p, num_heads=2**17),
    lambda p, x, r: attention(p, head_dim=520),
    lambda p, x, r: attention(p, head_dim=0),
    lambda p, x, r: convolution(p, x(0), ones(33), None),
    lambda p, x, r: convolution(p, x(0), ones(0), None),
    lambda p, x, r: convolution(p, x(0), ones(64), ones(31)),
    lambda p, x, r: convolution(p, x(0), ones(64), None, num_channels=0),
    lambda p, x, r: convolution(p, x(0), ones(64), None, first=-1),
    lambda p, x, r: convolution(p, x(0), ones(64), None, y=x(0)),
    lambda p, x, r: delta_net(p, x(0), num_key_heads=0),
    lambda p, x, r: delta_net(p, x(0), num_key_heads=2),
    lambda p, x, r: delta_net(p, x(0), num_value_heads=0),
    lambda p, x, r: delta_net(p, x(0), key_dim=0),
    lambda p, x, r: delta_net(p, x(0), value_dim=0),
    lambda p, x, r: delta_net(p, x(0), value_dim=12),
    lambda p, x, r: delta_net(p, x(0), log_decay=ones(2)),
    lambda p, x, r: delta_net(p, x(0), step_bias=ones(2)),
    lambda p, x, r: delta_net(p, x(0), first=-1),
    lambda p, x, r: p.route(TOKENS, x(0), None, 0, 1, "softmax", True, 1.0, x(0)),
    lambda p, x, r: p.route(TOKENS, x(0), None, 2**20, 1, "softmax", True, 1.0, x(0)),
    lambda p, x, r: p.route(TOKENS, x(0), None, 4, 0, "softmax", True, 1.0, x(0)),
    lambda p, x, r: p.route(TOKENS, x(0), None, 4, 5, "softmax", True, 1.0, x(0)),
    lambda p, x, r: p.route(TOKENS, x(0), ones(3), 4, 2, "softmax", True, 1.0, x(0)),
    lambda p, x, r: ProgramExperts(p, 0, 1),
    lambda p, x, r: ProgramExperts(p, 2**20, 1),
    lambda p, x, r: ProgramExperts(p, 4, 0),
    lambda p, x, r: ProgramExperts(p, 4, 5),
    lambda p, x, r: ProgramExperts(p, 4, 2).expert_mlp(
        TOKENS, x(0), x(0), [], [], [], "silu", x(0), False
    ),
]


ACTIVATION = {"activation": "silu", "width": 32}
MANY = {"is_one": False, "function": "silu", "width": 32}
ONE = {"is_one": True, "function": "silu", "width": 32}
NORM = {"weight": ones(16), "eps": 0.0, "num_vectors": 2}
HEADS_OF_NET = {"num_key_heads": 2, "num_value_heads": 4, "key_dim": 8, "value_dim": 16}
NET = {"log_decay": ones(4), "step_bias": ones(4), **HEADS_OF_NET, "tiled": False, "first": 0}
ROUTER = {"bias": None, "num_experts": 4, "num_chosen": 2, "router": "softmax"}
ALL_EXPERTS = {"gate": [matrix(40)] * 4, "up": [matrix(40)] * 4, "down": [matrix(32, 40)] * 4}
SCALE = {"scale": 1.0, "sliding_window": None, "softcap": None, "sinks": None}
# An op, its arguments, and the columns of its operands.
OPS: list[tuple[str, dict[str, object], dict[str, int]]] = [
    ("embed", {"indices": Indices.TOKEN_IDS, "table": matrix(), "scale": 1.0}, {"y": 32}),
    ("input", {"input": 0, "width": 32}, {"y": 32}),
    ("linear", {"weights": matrix(), "add_to_y": False}, {"x": 32, "y": 10}),
    ("rms_norm", NORM, {"x": 32, "y": 32}),
    ("layer_norm", {"bias": ones(16), **NORM}, {"x": 32, "y": 32}),
    ("rotations", {"index": 0, "dim": 16, "factor": 1.0, "beta": 0.0, "period": 1}, {"y": 16}),
    ("rope", {"num_heads": 2, "head_dim": 16, "dim": 8}, {"x": 32, "rotations": 8, "y": 32}),
    ("activate", ACTIVATION, {"x": 32, "y": 32}),
    ("gated_activate", ACTIVATION, {"x": 64, "y": 32}),
    ("route", {**ROUTER, "normalize": True, "scale": 1.0}, {"x": 4, "y": 4}),
    ("multiply", MANY, {"x": 32, "gate": 32, "y": 32}),
    ("multiply", ONE, {"x": 32, "gate": 1, "y": 32}),
    ("scale", {"factors": ones(32), "width": 32}, {"x": 32, "y": 32}),
    ("causal_convolution", {"weight": ones(64), "bias": None, "num_channels": 32, "first": 0}, {"x": 32, "y": 32}),
    ("gated_delta_net", NET, {"qkv": 96, "b": 4, "a": 4, "y": 64}),
    ("add", {"width": 32}, {"a": 32, "b": 32, "y": 32}),
    ("softcap", {"cap": 1.0, "width": 32}, {"x": 32, "y": 32}),
    ("largest", {"width": 32}, {"x": 32}),
    ("draw", {"width": 32}, {"x": 32}),
    ("gather", {"width": 32}, {"x": 32, "y": 32}),
    ("store_kv", {"layer": 0, "num_kv_heads": 2, "head_dim": 8}, {"k": 16, "v": 16}),
    ("paged_attention", {"layer": 0, **SCALE}, {"q": 32, "y": 32}),
    ("expert_mlp", {**ALL_EXPERTS, "activation": "silu", "add_to_y": False}, {"x": 32, "weights": 4, "y": 32}),
]  # fmt: skip
OF_LOGITS = {("largest", "x"), ("draw", "x"), ("gather", "y")}


@pytest.mark.parametrize(("op", "arguments", "widths"), OPS, ids=[name for name, _, _ in OPS])
def test_every_operand_has_the_rows_and_columns_that_are_read(
    op: str, arguments: dict[str, object], widths: dict[str, int]
) -> None:
    program = new_program()
    owners = {"paged_attention": attention(program), "expert_mlp": ProgramExperts(program, 4, 2)}
    call = getattr(owners.get(op, program), op)
    rows = {name: LOGITS if (op, name) in OF_LOGITS else TOKENS for name in widths}
    if "rows: " in call.__doc__:
        arguments = {"rows": TOKENS, **arguments}
    views = {name: (program.add_buffer(rows[name], width), 0) for name, width in widths.items()}
    call(**arguments, **views)
    for name, width in widths.items():
        other_rows = program.add_buffer(LOGITS if rows[name] == TOKENS else TOKENS, width)
        wrong = [((other_rows, 0), "has other rows than the op")]
        wrong += [((views[name][0], 1), f"has {width} columns, not {width} from 1 on")]
        for view, message in wrong:
            with pytest.raises(ValueError, match=f"^{name}: buffer {view[0]} {message}"):
                call(**arguments, **views | {name: view})


def test_the_limits_themselves_are_allowed() -> None:
    program = new_program()
    x, y, wide = ((program.add_buffer(TOKENS, width), 0) for width in (32, 1024, 2**16))
    program.add_buffer(TOKENS, 2**28)
    program.rms_norm(TOKENS, wide, ones(1), 0.0, 2**16, wide)
    program.store_kv(0, wide, wide, 2**16, 1)
    program.store_kv(0, y, y, 2, 512)
    program.rotations(0, 2, 1.0, 0.5, 1, x)
    program.rope(TOKENS, x, x, 2, 16, 16, x)
    convolution(program, x, ones(32), None)
    delta_net(program, x, key_dim=1)
    program.route(TOKENS, y, None, 1024, 1024, "softmax", True, 1.0, y)
    ProgramExperts(program, 1024, 64)
    attention(program, head_dim=512).paged_attention(TOKENS, 0, y, 1.0, 1, None, None, y)
    program.finish(None)


def bytes_of(size: int) -> np.ndarray:
    return np.zeros(size, np.uint8)


def shaped(*group: int, dtype: str = "f32", block_size: int = 32, **others: int) -> KVCache:
    groups = [group] if group else [(1, 1, 16, 0)]
    return KVCache(dtype, groups, block_size, **{"num_blocks": 8} | others)


def drawn(**arguments: float) -> None:
    values = {"seed": 1, "stream": 0, "position": 0, "sharpness": 1.0} | arguments
    draws = [(0, Draw(**values))]
    run(small_decoder(), draws=draws)


BLOCK = 4 * 2 * 16 * 32  # bytes of a block in f32
SLOT = 2 * 2 * 32 * 32  # of the open keys of a sequence
CALLS: list[Callable[[], object]] = [
    lambda: plan_weights("f32", 0, 1, False),
    lambda: plan_weights("f32", 1, 0, False),
    lambda: plan_weights("f32", -1, 4, False),
    lambda: new_program(0),
    lambda: new_program(-1),
    lambda: new_program(2**40),
    lambda: ThreadPool(0),
    lambda: ThreadPool(-1),
    lambda: ThreadPool(10**6),
    lambda: cache(num_layers=2**60),
    lambda: shaped(dtype="int3"),
    lambda: shaped(block_size=0),
    lambda: shaped(block_size=24),
    lambda: shaped(block_size=2**40),
    lambda: shaped(dtype="int4", block_size=16),
    lambda: KVCache("f32", [], 16, 8),
    lambda: shaped(0, 1, 16, 0),
    lambda: shaped(2**30, 1, 16, 0),
    lambda: shaped(1, 0, 16, 0),
    lambda: shaped(1, 2**30, 16, 0),
    lambda: shaped(1, 1, 0, 0),
    lambda: shaped(1, 1, 12, 0),
    lambda: shaped(1, 1, 520, 0),
    lambda: shaped(1, 1, 16, -1),
    lambda: shaped(1, 1, 16, 2**40),
    lambda: shaped(num_blocks=0),
    lambda: shaped(num_slots=0),
    lambda: shaped(num_slots=2**40),
    lambda: shaped(max_step_tokens=-1),
    lambda: shaped(max_step_tokens=2**40),
    lambda: shaped().copy_block(8, 0),
    lambda: shaped().copy_block(0, -1),
    lambda: shaped().copy_block(1, 1),
    lambda: shaped().read_block(8, bytes_of(BLOCK)),
    lambda: shaped().read_block(0, bytes_of(BLOCK - 1)),
    lambda: shaped().write_block(-1, bytes_of(BLOCK)),
    lambda: shaped().write_block(0, bytes_of(BLOCK + 1)),
    lambda: shaped(dtype="int4").copy_slot(1, 0),
    lambda: shaped(dtype="int4").copy_slot(0, -1),
    lambda: shaped(dtype="int4").read_slot(1, bytes_of(SLOT)),
    lambda: shaped(dtype="int4").read_slot(0, bytes_of(SLOT - 1)),
    lambda: shaped(dtype="int4").write_slot(-1, bytes_of(SLOT)),
    lambda: shaped(dtype="int4").write_slot(0, bytes_of(SLOT + 1)),
    lambda: Exchange(-1, 1, 1, 1, 0, 0),
    lambda: Exchange(1, 1, 1, 1, 0, 0),
    lambda: Exchange(0, 0, 1, 1, 0, 0),
    lambda: Exchange(0, 1, 0, 1, 0, 0),
    lambda: Exchange(0, 1, 1, 0, 0, 0),
    lambda: ProgramExperts(new_program(), 4, 2, Exchange(0, 1, 1, 1, 0, 0), [0, 3]),
    lambda: ProgramExperts(new_program(), 4, 2, Exchange(0, 1, 1, 1, 0, 0), [1, 4]),
    lambda: ProgramExperts(new_program(), 4, 2, Exchange(0, 1, 1, 1, 0, 0), [0, 4, 4]),
    lambda: ProgramExperts(new_program(), 4, 2, Exchange(0, 2, 1, 1, 0, 0), [0, 5, 4]),
    lambda: drawn(num_prompt_tokens=-1),
    lambda: drawn(top_k=-1),
    lambda: drawn(sharpness=-1.0),
    lambda: drawn(top_p=0.0),
    lambda: drawn(typical_p=0.0),
    lambda: POOL.resize(0),
    lambda: POOL.resize(3),
    lambda: merges_of_scores(Texts(["a"]), np.zeros(2), np.zeros(1, bool)),
    lambda: merges_of_scores(Texts(["a"]), np.zeros(1), np.zeros(2, bool)),
    lambda: Texts(["a"]).sizes(np.zeros(2, bool)),
    lambda: TokenTable(Texts(["a"]), np.zeros(0, bool)),
    lambda: Texts.read(np.zeros(8, np.uint8), 9, 0),
    lambda: Texts.read(np.zeros(15, np.uint8), 0, 2),
    lambda: pass_strings(np.zeros(8, np.uint8), 0, 1, 9),
    lambda: pass_strings(np.zeros(8, np.uint8), 2, 1, 1),
]


def texts_of(cases: str) -> list[str]:
    """The calls of a list of this file, as they are written there."""
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    lists = {ast.unparse(it.target): it.value for it in tree.body if isinstance(it, ast.AnnAssign)}
    return [ast.unparse(getattr(it, "body", it)) for it in lists[cases].elts]


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(ValueError, match=r"\w") as refused:
        call()
    return str(refused.value)


def compare_refusals(file: str, texts: list[str], refusals: list[str]) -> None:
    """The golden file has each call and its refusal."""
    lines = [f"{text} -> {message}" for text, message in zip(texts, refusals, strict=True)]
    compare(GOLDEN / f"refusals/{file}.txt", lines)


def test_operands_and_calls_that_do_not_fit() -> None:
    def refusal_of_operands(add: Callable[..., object]) -> str:
        program = new_program()
        x, r = program.add_buffer(TOKENS, WIDTH), program.add_buffer(LOGITS, WIDTH)
        return refusal(lambda: add(program, lambda column: (x, column), lambda column: (r, column)))

    refusals = [*map(refusal_of_operands, OPERANDS), *map(refusal, CALLS)]
    compare_refusals("native", [*texts_of("OPERANDS"), *texts_of("CALLS")], refusals)


# Each at a bound.
ACCEPTED: list[Callable[[Program, int], object]] = [
    lambda p, x: new_program(2**24).add_buffer(TOKENS, 2**28),
    lambda p, x: p.rms_norm(TOKENS, (x, 0), ones(1), 0.0, 2**16, (x, 0)),
    lambda p, x: p.rope(TOKENS, (x, 0), (x, 0), 1, 2, 2, (x, 0)),
    lambda p, x: p.rotations(0, 2, 1.0, 0.0, 1, (x, 0)),
    lambda p, x: p.store_kv(0, (x, 0), (x, 0), 2**16, 1),
    lambda p, x: p.store_kv(0, (x, 0), (x, 0), 1, 512),
    lambda p, x: attention(p, max_requests=1, max_seq_len=1),
    lambda p, x: attention(p, max_seq_len=2**31 - 1, head_dim=8),
    lambda p, x: attention(p, num_heads=2**16, num_kv_heads=2**16, head_dim=512),
    lambda p, x: attention(p).paged_attention(TOKENS, 0, (x, 0), 1.0, 0, None, None, (x, 0)),
    lambda p, x: convolution(p, (x, 0), ones(1), ones(1), num_channels=1),
    lambda p, x: delta_net(p, (x, 0), key_dim=1),
    lambda p, x: p.route(TOKENS, (x, 0), ones(1), 1, 1, "softmax", True, 1.0, (x, 0)),
    lambda p, x: p.route(TOKENS, (x, 0), None, 1024, 1024, "softmax", True, 1.0, (x, 0)),
    lambda p, x: ProgramExperts(p, 1, 1),
    lambda p, x: ProgramExperts(p, 1024, 64),
    lambda p, x: shaped(block_size=16),
    lambda p, x: shaped(1, 1, 8, 0, block_size=2**16),
    lambda p, x: shaped(4096, 1, 8, 0, num_blocks=1),
    lambda p, x: shaped(1, 2**16, 8, 0, num_blocks=1),
    lambda p, x: shaped(1, 1, 512, 2**31 - 1),
    lambda p, x: shaped(num_slots=2**20, max_step_tokens=2**20),
    lambda p, x: shaped().copy_block(0, 7),
    lambda p, x: shaped(dtype="int4", num_slots=2).copy_slot(0, 1),
    lambda p, x: drawn(num_prompt_tokens=0, top_k=0, sharpness=0.0, top_p=1e-9, typical_p=1e-9),
    lambda p, x: POOL.resize(1),
    lambda p, x: POOL.resize(2),
]


def test_sizes_at_their_bounds_are_taken() -> None:
    for add in ACCEPTED:
        program = new_program()
        add(program, program.add_buffer(TOKENS, 2**16))


def test_more_blocks_than_a_cache_may_have() -> None:
    """How many depends on the machine."""
    with pytest.raises(ValueError, match=f"num_blocks={2**60}: allowed are 1 to"):
        KVCache("f32", [(1, 1, 16, 0)], 16, 2**60)
