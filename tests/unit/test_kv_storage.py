"""KV storage as an EngineConfig asks for it: the KV cache, the swap file, the prefix store."""

from contextlib import closing
from pathlib import Path

import pytest

from pellucid.inputs.sampling_params import SamplingParams
from pellucid.memory import engine_plan
from support.fake_model import VOCAB_SIZE, fake_engine


def test_swap_space_for_less_than_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match=r"swap_space=3: must hold a block of \d+ bytes"):
        fake_engine(swap_space=3)
    assert fake_engine(swap_space=16, block_size=16).memory_plan.bytes_per_block == 16


@pytest.mark.parametrize("has_store", [False, True])
@pytest.mark.parametrize("num_slots", [0, 2])
def test_a_store_that_is_not_asked_for_holds_nothing(
    has_store: bool, num_slots: int, tmp_path: Path
) -> None:
    store = {"prefix_store": str(tmp_path)} if has_store else {}
    with closing(fake_engine(swap_space=16 * num_slots, block_size=16, **store)) as engine:
        offload = engine.scheduler.kv_cache_manager.offload
        assert (offload is not None) == (has_store or num_slots > 0)
        if offload is not None:
            assert len(offload.swapped._free_slots) == num_slots
            most = engine.plan.max_pending_blocks if has_store else 0
            assert (offload.reads.num_readable_blocks, offload.blocks_per_state) == (most, 0)


def test_a_closed_engine_leaves_no_file_open() -> None:
    before = sorted(Path("/dev/fd").iterdir())
    engine = fake_engine(swap_space=1 << 20)
    assert len(list(Path("/dev/fd").iterdir())) > len(before)
    engine.close()
    assert sorted(Path("/dev/fd").iterdir()) == before


def test_the_blocks_of_the_last_step_are_saved(tmp_path: Path) -> None:
    engine = fake_engine(prefix_store=str(tmp_path), block_size=16)
    engine.add_request([1] * 33, SamplingParams(max_tokens=1))
    while engine.has_unfinished_requests:
        engine.step()
    engine.close()
    assert len(list(tmp_path.rglob("*.kv"))) == 2


def test_swap_space_that_the_disk_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"swap_space=\d+: .*TMPDIR names another directory"):
        fake_engine(swap_space=1 << 60)


@pytest.mark.parametrize(("text", "message"), [("short", "has 5 bytes"), (None, "No such file")])
def test_a_file_without_a_secret_is_refused(text: str | None, message: str, tmp_path: Path) -> None:
    key = tmp_path / "key"
    if text is not None:
        key.write_text(text)
    with pytest.raises(ValueError, match=f"prefix_store_key=.*: {message}"):
        fake_engine(prefix_store=str(tmp_path), prefix_store_key=str(key))


@pytest.mark.parametrize("max_num_seqs", [1, 3])
def test_blocks_that_wait_for_the_disk_are_planned(max_num_seqs: int, tmp_path: Path) -> None:
    """Those that a step fills, and as many that were read: here 64 tokens in blocks of 16, and one more a request."""
    knobs = {"max_num_batched_tokens": 64, "block_size": 16, "max_num_seqs": max_num_seqs}
    plain = fake_engine(**knobs).memory_plan
    with closing(fake_engine(prefix_store=str(tmp_path), **knobs)) as engine:
        waiting = engine.memory_plan.scratch - plain.scratch
    assert waiting == 2 * (4 + max_num_seqs) * plain.bytes_per_block


def test_the_rows_of_logits_of_a_step_are_bounded_and_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """prompt_logprobs of a long prompt come in several steps, and with the same numbers."""
    prompt, others = [1 + i % 30 for i in range(150)], [[2] * 5, [3] * 40]
    params = SamplingParams(max_tokens=3, temperature=0, prompt_logprobs=1, ignore_eos=True)
    expected = fake_engine()
    whole = expected.add_request(prompt, params)
    while expected.has_unfinished_requests:
        expected.step()

    row_bytes = VOCAB_SIZE * engine_plan.LOGIT_BYTES
    monkeypatch.setattr(engine_plan, "MAX_EXTRA_LOGITS_BYTES", 10 * row_bytes)
    engine = fake_engine(max_num_seqs=4, block_size=16)
    outputs = [engine.add_request(own, params) for own in (prompt, *others)]
    plain = engine.add_request([4] * 60, SamplingParams(max_tokens=2))
    while engine.has_unfinished_requests:
        engine.step()
        engine.scheduler.check_integrity()
    batches = engine.model_runner.decoder.batches
    assert max(len(batch.logits_indices) for batch in batches) <= 4 + 10
    assert outputs[0].prompt_logprobs == whole.prompt_logprobs
    assert outputs[0].outputs == whole.outputs
    assert plain.metrics.first_scheduled_time is not None
    monkeypatch.setattr(engine_plan, "MAX_EXTRA_LOGITS_BYTES", 110 * row_bytes)
    larger = fake_engine(max_num_seqs=4, block_size=16)
    assert larger.memory_plan.scratch - engine.memory_plan.scratch == 100 * row_bytes
