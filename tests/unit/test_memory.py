"""The memory plan: the size of each part, and settings that do not fit."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pellucid.backends.quantization.formats import INT4
from pellucid.inputs.config import EngineConfig
from pellucid.memory.memory_plan import (
    MemoryNeeds,
    PlannedWeights,
    Room,
    check_weights_fit,
    in_gib,
    plan_memory,
    plan_weights,
)


class Tensors(dict[str, tuple[int, ...]]):
    """The shapes of tensors of int4; of one of them rows are read, of the others all."""

    def info(self, name: str) -> Any:
        return SimpleNamespace(shape=self[name])

    def matrix_format(self, name: str) -> object:
        return INT4

    def reads_rows(self, name: str) -> bool:
        return name == "wide"


INPUTS = 32 << 10
INT4_ROW, INT8_ROW, BF16_ROW = 18 << 10, 34 << 10, 64 << 10  # bytes of an output
TENSORS = Tensors(
    norm=(33,),
    wide=(96, INPUTS),
    narrow=(63, INPUTS),
    experts=(5, 16, INPUTS),
    table=(999, INPUTS),
    unused=(999, INPUTS),
)
NAMES = SimpleNamespace(
    is_unused="unused".__eq__, is_table="table".__eq__, is_expert="experts".__eq__
)


def stored(weight_format: object = None) -> Any:
    return SimpleNamespace(path="m", tensors=TENSORS, names=NAMES, weight_format=weight_format)


@pytest.mark.parametrize(
    ("itemsize", "quantization", "more", "total", "largest"),
    [
        (None, "none", {}, (96 + 63 + 80) * INT4_ROW, 96 * INT4_ROW),
        (None, "int8", {}, (96 + 63 + 80) * INT8_ROW, 96 * INT8_ROW),
        (2, "int8", {}, (96 + 63 + 80) * BF16_ROW, 96 * BF16_ROW),
        (2, "none", {"with_experts": False}, (96 + 63) * BF16_ROW, 96 * BF16_ROW),
        # Ranks divide experts, and matrices of 32 outputs for each; only of some they read a part.
        (2, "none", {"num_ranks": 2}, (48 + 63 + 40) * BF16_ROW, 80 * BF16_ROW),
        (2, "none", {"num_ranks": 3}, (32 + 63) * BF16_ROW + 80 * BF16_ROW // 3, 80 * BF16_ROW),
        (2, "none", {"num_ranks": 2, "with_experts": False}, 111 * BF16_ROW, 63 * BF16_ROW),
    ],
)
def test_weights_byte_by_byte(
    itemsize: int | None, quantization: str, more: dict[str, Any], total: int, largest: int
) -> None:
    planned = plan_weights(stored(), itemsize, quantization, **more)
    assert planned == PlannedWeights(33 * 4 + total, largest)


@pytest.mark.parametrize(
    ("missing", "is_mapped", "weight_format", "ways"),
    [
        (0, False, None, None),
        (0, True, None, None),
        (None, False, None, None),
        (1, False, None, "quantization='int4' (5.89 MiB) or experts='mapped' (8.47 MiB, and the exp"),
        (80 * INT8_ROW + 1, False, None, "quantization='int4' (5.89 MiB) would fit"),
        (80 * INT8_ROW, False, INT4, "experts='mapped' (8.47 MiB, and the experts on disk) would"),
        (1, True, INT4, "only a smaller model would fit"),
        (335 * (INT8_ROW - INT4_ROW), False, None, "quantization='int4' (5.89 MiB) would fit"),
        (335 * (INT8_ROW - INT4_ROW) + 1, False, None, "only a smaller model would fit"),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_by_a_byte_say_what_would(
    missing: int | None, is_mapped: bool, weight_format: object, ways: str | None
) -> None:
    reads = object() if is_mapped else None
    backend: Any = SimpleNamespace(
        weights=SimpleNamespace(expert_reads=reads, itemsize=None, num_ranks=1)
    )
    needed = 33 * 4 + (96 + (96 + 63 + 80 * (not is_mapped))) * INT8_ROW
    available = None if missing is None else needed - missing
    if ways is None:
        planned = check_weights_fit(stored(weight_format), backend, "int8", available)
        assert planned.while_loading == needed
        return
    with pytest.raises(ValueError, match=r"^m: with quantization='int8' its weights ") as error:
        check_weights_fit(stored(weight_format), backend, "int8", available)
    assert f" of memory are available: {ways}" in str(error.value)
    assert is_mapped or "7.94 MiB, and 3.19 MiB more" in str(error.value)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0.00 MiB"), (107374181, "102.40 MiB"), (107374182, "0.10 GiB"), (3 << 29, "1.50 GiB")],
)
def test_bytes_for_people(num_bytes: int, text: str) -> None:
    assert in_gib(num_bytes) == text


NEEDS = MemoryNeeds(weights=1000, scratch=100, bytes_per_block=10)
CONTEXT = 320  # tokens: 10 blocks of 32


def plan(available: int | None = None, **knobs: object):
    return plan_memory(EngineConfig(max_num_seqs=4, **knobs), NEEDS, CONTEXT, available)


def test_the_users_blocks_win_over_the_users_bytes() -> None:
    assert plan(num_kv_blocks=13, kv_cache_memory=1).num_blocks == 13
    assert plan(kv_cache_memory=239).num_blocks == 23
    assert plan(available=330, kv_cache_memory=239).num_blocks == 23  # no margin is kept then


def test_a_cache_that_memory_cannot_hold_is_refused() -> None:
    available = 2 << 30
    with pytest.raises(ValueError, match=r"20\.00 GiB, but 2\.00 GiB.*: num_kv_blocks=214748354 "):
        plan(available, num_kv_blocks=1 << 31)
    assert plan(available, num_kv_blocks=214748354).num_blocks == 214748354
    with pytest.raises(ValueError, match=r"^kv_cache_memory=1152921504606846976: "):
        plan(available, kv_cache_memory=1 << 60)


def test_memory_utilization_is_the_share_that_the_engine_may_use() -> None:
    assert plan(available=500, memory_utilization=0.5).num_blocks == (500 - 100 - 250) // 10
    assert plan(available=500, memory_utilization=1).num_blocks == 40


def test_the_default_is_what_is_left_after_scratch_and_a_margin() -> None:
    made = plan(available=500)
    assert made.margin == 50
    assert made.num_blocks == (500 - 100 - 50) // 10
    assert made.scratch + made.margin + made.kv_cache <= 500
    assert (made.num_tokens, made.num_contexts, made.kv_cache) == (35 * 32, 3, 350)
    assert made.decided_by == "memory (0.00 MiB available, 0.00 MiB left for the KV cache)"


def test_the_default_is_no_more_than_the_requests_of_a_step_can_use() -> None:
    assert plan().margin == 0
    for available in (None, 556, 10**6):  # 556: nine tenths are just enough
        made = plan(available=available)
        assert (made.num_blocks, made.num_contexts) == (40, 4)
        assert made.decided_by == "max_num_seqs, max_model_len"


GIB = 1 << 30
# A model of 8 B parameters: 128 KiB per token and a context of 131,072.
LARGE = MemoryNeeds(5 * GIB, GIB, 32 << 17, {"int8": 17 << 17, "int4": 9 << 17})


@pytest.mark.parametrize(
    ("available", "knobs", "reason", "settings"),
    [
        (
            8 * GIB,
            {},
            "memory (8.00 GiB available, 6.20 GiB left for the KV cache) gives 6.20 GiB",
            [{"max_model_len": 50784}, {"kv_cache_dtype": "int4"}],
        ),
        (
            17 * GIB - 1,
            {"kv_cache_memory": 17 * GIB // 2},
            f"kv_cache_memory={17 * GIB // 2} gives 8.50 GiB",
            [{"max_model_len": 69632}, {"kv_cache_dtype": "int8"}, {"kv_cache_dtype": "int4"}],
        ),
        (
            17 * GIB,
            {"kv_cache_memory": 17 * GIB // 2 - 1},
            f"kv_cache_memory={17 * GIB // 2 - 1} gives 8.50 GiB",
            [{"max_model_len": 69600}, {"kv_cache_dtype": "int4"}, {"kv_cache_memory": 16 * GIB}],
        ),
        (
            17 * GIB,
            {"num_kv_blocks": 3000},
            "num_kv_blocks=3000 gives 11.72 GiB, which is 96000 tokens",
            [{"max_model_len": 96000}, {"num_kv_blocks": 4096}],
        ),
        (GIB, {}, "which is 0 tokens: only a smaller model would fit", []),
    ],
)
def test_a_context_that_does_not_fit_says_what_would(
    available: int, knobs: dict[str, int], reason: str, settings: list[dict[str, object]]
) -> None:
    context = 131_072
    with pytest.raises(ValueError, match=r"one sequence takes 16\.00 GiB of KV cache") as error:
        plan_memory(EngineConfig(**knobs), LARGE, context, available)
    assert reason in str(error.value)
    for setting in settings:
        [(name, value)] = setting.items()
        assert f"{name}={value!r}" in str(error.value)
        needs = LARGE
        if name == "kv_cache_dtype":
            needs = replace(LARGE, bytes_per_block=LARGE.other_bytes_per_block[value])
        config = EngineConfig(**(knobs | setting))
        plan_memory(config, needs, setting.get("max_model_len", context), available)
    assert str(error.value).count("=") == reason.count("=") + len(settings) + 1


@pytest.mark.parametrize(
    ("available", "there", "own"), [(300, 100, 200), (300, None, 300), (None, 100, None)]
)
def test_this_machine_has_what_others_have_not(
    available: int | None, there: int | None, own: int | None
) -> None:
    other = Room(" of stage 2", there, fixed=20, bytes_per_block=10)
    needs = MemoryNeeds(weights=0, scratch=40, bytes_per_block=30, states=10, elsewhere=(other,))
    assert needs.rooms(available) == [other, Room(" of this machine", own, 30, 20)]
