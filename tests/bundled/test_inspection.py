"""Inspection of a running engine: logits, attention, block contents and the prefix tree are those of its
steps."""

from dataclasses import replace

import numpy as np
import pytest

from pellucid.engine import LLMEngine
from pellucid.engine.inspection import AnswerSoFar, NoBlocksError
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.outputs import RequestOutput
from support.bundled import bundled_engine
from support.kept_names import names_in

PROMPT = "Once upon a time, Mira went to the market. Mira had a small red key. " * 2
PARAMS = SamplingParams(
    temperature=0.8,
    top_k=40,
    top_p=0.9,
    repetition_penalty=1.1,
    seed=5,
    max_tokens=40,
    ignore_eos=True,
)


def run(engine: LLMEngine) -> None:
    while engine.has_unfinished_requests:
        engine.step()


def answer_of(engine: LLMEngine, output: RequestOutput, num_outputs: int) -> AnswerSoFar:
    prepared = engine.prepare(output.prompt_token_ids, PARAMS)
    token_ids = output.outputs[0].token_ids[:num_outputs]
    return AnswerSoFar(prepared, output.seed, 0, token_ids, None)


def test_a_look_reads_only_blocks_of_its_own_salt() -> None:
    engine = bundled_engine()
    output = engine.add_request(list(range(100, 164)), PARAMS, cache_salt="own")
    run(engine)
    looks = [replace(answer_of(engine, output, 1), cache_salt=salt) for salt in ("own", "other")]
    assert [engine.inspector.logits(look).cost.num_cached for look in looks] == [64, 0]


def step_logits(engine: LLMEngine) -> list[np.ndarray]:
    """The row of each sampled token, taken where steps compute it."""
    rows: list[np.ndarray] = []
    execute = engine.model_runner.execute

    def keep(scheduled, block_tables):  # type: ignore[no-untyped-def]
        computed = execute(scheduled, block_tables)
        if scheduled[0].samplers:
            rows.append(computed.rows[-1].copy())
        return computed

    engine.model_runner.execute = keep  # type: ignore[method-assign]
    return rows


@pytest.mark.parametrize("knobs", [{}, {"enable_prefix_caching": False}, {"block_size": 16}])
def test_logits_seen_again_are_those_of_the_step_to_the_last_bit(knobs: dict[str, object]) -> None:
    engine = bundled_engine(**knobs)
    rows = step_logits(engine)
    output = engine.add_request(PROMPT, PARAMS)
    for _ in range(20):
        engine.step()
    for num_outputs in (0, 7, 19):  # while the request runs
        seen = engine.inspector.logits(answer_of(engine, output, num_outputs))
        assert (seen.logits == rows[num_outputs]).all()
        assert seen.drawn == output.outputs[0].token_ids[num_outputs]
    rows_before = len(rows)
    run(engine)
    steps = rows[:20] + rows[rows_before:]
    engine.step()  # tells execution of the end
    for num_outputs in (0, 25, 39):  # and after its end
        seen = engine.inspector.logits(answer_of(engine, output, num_outputs))
        assert (seen.logits == steps[num_outputs]).all()
        cached = seen.cost.num_cached
        assert (cached > 0) == engine.config.enable_prefix_caching
        assert cached + seen.cost.num_computed == len(output.prompt_token_ids) + num_outputs
    engine.scheduler.check_integrity()
    pool = engine.scheduler.kv_cache_manager.block_pool
    assert pool.num_free_blocks == pool.num_blocks
    looks = {f"inspect-{number}{end}" for number in range(6) for end in ("", "/0")}
    names = {output.request_id, f"{output.request_id}/0", *looks}
    assert names_in(engine, names) <= {"DraftPolicy"}


def test_looking_changes_no_answer() -> None:
    answers = []
    for looks in (False, True):
        engine = bundled_engine()
        outputs = [engine.add_request(PROMPT, PARAMS, name) for name in ("a", "b")]
        while engine.has_unfinished_requests:
            engine.step()
            if looks and len(outputs[0].outputs[0].token_ids) % 12 == 1:
                engine.inspector.attention(answer_of(engine, outputs[0], 1))
                engine.inspector.logits(answer_of(engine, outputs[1], 1))
        answers.append([output.outputs[0].token_ids for output in outputs])
    assert answers[0] == answers[1]


def test_stages_are_those_that_the_token_was_drawn_through() -> None:
    engine = bundled_engine()
    output = engine.add_request(PROMPT, PARAMS)
    run(engine)
    stages = engine.inspector.logits(answer_of(engine, output, 10)).stages()
    assert [stage.name for stage in stages] == [
        "logits",
        "repetition_penalty",
        "temperature",
        "top_k",
        "top_p",
    ]
    assert len(stages[3].candidates) == 40 >= len(stages[4].candidates)
    assert stages[4].kept_mass >= 0.9
    assert output.outputs[0].token_ids[10] in stages[4].candidates.token_ids


@pytest.mark.parametrize(
    ("backend", "dtype"), [("cpu", "f32"), ("cpu", "bf16"), ("cpu", "int8"), ("numpy", "bf16")]
)
def test_attention_sums_to_one_and_rebuilds_the_output(backend: str, dtype: str) -> None:
    engine = bundled_engine(kv_cache_dtype=dtype)
    if backend == "numpy":
        engine = LLMEngine.from_config(replace(engine.config, backend="numpy"))
    output = engine.add_request(PROMPT, PARAMS)
    for _ in range(12):
        engine.step()
    seen = engine.inspector.attention(answer_of(engine, output, 9))
    num_positions = len(output.prompt_token_ids) + 9
    config = engine.model_config
    assert len(seen.calls) == config.num_layers
    for layer in range(config.num_layers):
        weights, error = seen.weights(layer)
        assert weights.shape == (config.layers[layer].attention.num_heads, num_positions)
        assert np.allclose(weights.sum(axis=1), 1, rtol=1e-12)
        # Kernels round queries and weights to the arithmetic of the format.
        assert error < {"f32": 1e-4, "bf16": 2e-2, "int8": 5e-2}[dtype]


def test_a_block_holds_the_keys_of_its_tokens_and_no_others() -> None:
    engine = bundled_engine()
    output = engine.add_request(PROMPT, PARAMS)
    for _ in range(3):
        engine.step()
    (request,) = engine.scheduler.running
    table = engine.scheduler.kv_cache_manager.block_tables(request)[0]
    text = output.prompt_token_ids + output.outputs[0].token_ids
    num_computed = request.num_computed_tokens
    for index, block_id in enumerate(table):
        block = engine.inspector.block(block_id, layer=1)
        own = text[index * 32 : min(num_computed, (index + 1) * 32)]
        assert block.token_ids == tuple(own) and block.owners == (request.request_id,)
        assert block.k.shape == block.v.shape == (len(own), *block.k.shape[1:])
        assert (block.block_hash is not None) == (len(own) == 32)
        if own:
            errors = [float(np.abs(block.rounded(bits)[0] - block.k).max()) for bits in (8, 4)]
            assert 0 < errors[0] < errors[1] < float(np.abs(block.k).max())
    for block_id, layer in ((-1, 0), (engine.memory_plan.num_blocks, 0), (0, 99)):
        with pytest.raises(ValueError, match="must be in 0"):
            engine.inspector.block(block_id, layer)


def test_keys_of_a_group_that_is_not_complete_are_shown_as_queries_read_them() -> None:
    blocks = []
    for dtype in ("bf16", "int4"):
        engine = bundled_engine(kv_cache_dtype=dtype)
        engine.add_request(list(range(100, 150)), PARAMS)
        engine.step()
        (request,) = engine.scheduler.running
        table = engine.scheduler.kv_cache_manager.block_tables(request)[0]
        blocks.append(engine.inspector.block(table[1], layer=0))
    assert len(blocks[0].k) == 18 and (blocks[0].k == blocks[1].k).all()


def test_the_prefix_tree_has_each_sealed_block_once_and_its_owners() -> None:
    engine = bundled_engine()
    prompt = list(range(100, 200))
    first = engine.add_request([*prompt, 7], PARAMS, "first")
    engine.step()
    engine.add_request([*prompt[:70], 8, *prompt[71:]], PARAMS, "second")
    engine.step()
    nodes = {node.block_hash: node for node in engine.inspector.prefix_tree()}
    shared = [node for node in nodes.values() if len(node.owners) == 2]
    assert [node.index for node in sorted(shared, key=lambda node: node.index)] == [0, 1]
    for node in nodes.values():
        assert node.index == 0 or nodes[node.parent_hash].index == node.index - 1
        assert set(node.owners) <= {"first/0", "second/0"}
    assert first.outputs[0].token_ids
    run(engine)
    assert all(not node.owners for node in engine.inspector.prefix_tree())


def test_a_look_that_needs_too_much_says_so_and_harms_nobody() -> None:
    engine = bundled_engine(num_kv_blocks=4, max_model_len=128, max_num_batched_tokens=64)
    params = replace(PARAMS, max_tokens=8)
    output = engine.add_request(list(range(100, 215)), params)
    for _ in range(4):
        engine.step()
    with pytest.raises(NoBlocksError, match="needs more free blocks"):
        engine.inspector.logits(
            AnswerSoFar(engine.prepare(list(range(64)), PARAMS), 0, 0, (), None)
        )
    with pytest.raises(ValueError, match="at most 64 are"):
        engine.inspector.logits(
            AnswerSoFar(engine.prepare(list(range(65)), PARAMS), 0, 0, (), None)
        )
    run(engine)
    alone = bundled_engine()
    expected = alone.add_request(list(range(100, 215)), params)
    run(alone)
    assert output.outputs[0].token_ids == expected.outputs[0].token_ids
    engine.scheduler.check_integrity()
