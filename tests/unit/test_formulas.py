"""Formulas for bytes and operations, against numbers computed by hand."""

from dataclasses import replace

import pytest

from pellucid.facts import formulas
from pellucid.facts.model_config import ExpertsConfig, MLPConfig
from pellucid.shapes import SHAPES
from support.fake_model import fake_model_config


@pytest.mark.parametrize("window", [None, 1, 3, 100])
def test_attention_pairs_counts_every_visible_key(window: int | None) -> None:
    for start in range(6):
        for end in range(start, 9):
            counted = sum(min(p + 1, window or p + 1) for p in range(start, end))
            assert formulas.attention_pairs(start, end, window) == counted


def test_flops_do_not_depend_on_chunks() -> None:
    shape = fake_model_config()
    whole = formulas.forward_flops(shape, 0, 20, 1)
    chunks = [(0, 7, 0), (7, 8, 0), (8, 20, 1)]
    assert whole == sum(formulas.forward_flops(shape, *chunk) for chunk in chunks)


def test_flops_of_one_token_by_hand() -> None:
    # One layer: q, k, v, o are 4x4 each, gate, up, down 4x8; 3 keys seen; head 4x32.
    by_hand = 2 * (4 * 16 + 3 * 32) + 4 * 4 * 3 + 2 * 4 * 32
    assert formulas.forward_flops(fake_model_config(), 2, 3, 1) == by_hand


def test_worked_example_of_the_lesson() -> None:
    assert formulas.token_passes(50, 200, use_kv_cache=False) == 29_900
    assert formulas.token_passes(50, 200, use_kv_cache=True) == 249
    assert [formulas.token_passes(50, 0, use_kv_cache=it) for it in (False, True)] == [0, 0]


def test_matrices_of_a_layer_by_hand() -> None:
    # Llama 3.2 1B: 32 query heads and 8 kv-heads of 64, hidden 2048, inner 8192.
    shape = SHAPES["llama-3.2-1b"]
    assert tuple(formulas.layer_matrices(shape.layers[0], shape.hidden_size)) == (
        (3072, 2048, 1, 1),
        (2048, 2048, 1, 1),
        (16_384, 2048, 1, 1),
        (2048, 8192, 1, 1),
    )


def test_an_mlp_without_a_gate_has_one_matrix_less() -> None:
    [layer] = fake_model_config().layers
    ungated = replace(layer, mlp=MLPConfig(8, "silu", gated=False))
    assert tuple(formulas.layer_matrices(ungated, 4))[2:] == ((8, 4, 1, 1), (4, 8, 1, 1))


def test_a_token_passes_the_chosen_experts_and_the_shared_one() -> None:
    # Attention has 4 x 16 weights, the shared expert 3 x 32; 8 experts have 3 x 4 x 2 each.
    [layer] = fake_model_config().layers
    shape = replace(
        fake_model_config(), layers=(replace(layer, experts=ExpertsConfig(8, 3, 2, "silu")),)
    )
    router, expert = 8 * 4, 3 * 4 * 2
    assert formulas.matrix_parameters(shape) == 64 + 96 + router + 8 * expert
    assert formulas.active_matrix_parameters(shape) == 64 + 96 + router + 3 * expert
    assert formulas.forward_flops(shape, 2, 3, 1) == (
        2 * (64 + 96 + router + 3 * expert) + 4 * 4 * 3 + 2 * 4 * 32
    )


def test_a_layer_that_shares_keys_and_values_projects_queries_alone() -> None:
    [layer] = fake_model_config().layers
    sharing = replace(layer, attention=replace(layer.attention, shared_kv_layer=0))
    shape = replace(fake_model_config(), layers=(layer, sharing))
    assert formulas.matrix_parameters(shape) == 2 * (64 + 96) - 2 * 16
    # One layer's K and V of 4 numbers take 16 bytes; two layers read them.
    assert formulas.KVBytes(shape, 16)(9, 10) == 2 * 10 * 16


def test_a_step_reads_each_matrix_once_in_its_format() -> None:
    shape = fake_model_config()  # the four matrices have 4 x 12, 4 x 4, 4 x 16 and 8 x 4 weights

    def bytes_of_rows(num_outputs: int, num_inputs: int) -> int:
        return 10 * num_outputs + num_inputs

    layer = (120 + 4) + (40 + 4) + (160 + 4) + (40 + 8)
    assert formulas.weight_bytes(shape, bytes_of_rows, with_head=False) == layer
    assert formulas.weight_bytes(shape, bytes_of_rows) == layer + (320 + 4)


def test_experts_that_no_token_chooses_are_not_read() -> None:
    [layer] = fake_model_config().layers
    experts = replace(layer, mlp=None, experts=ExpertsConfig(8, 2, 3, "silu"))
    shape = replace(fake_model_config(), layers=(layer, experts, experts))
    of_all = 2 * 8 * (6 * 4 + 4 * 3)  # two layers of 8 experts, each with 6 x 4 and 4 x 3 weights

    def unread(num_tokens: int) -> float:
        return formulas.unread_expert_bytes(shape, lambda rows, columns: rows * columns, num_tokens)

    assert unread(1) == of_all * 6 / 8
    assert unread(2) == of_all * (6 / 8) ** 2
    assert unread(1000) < 1e-100
    assert formulas.unread_expert_bytes(fake_model_config(), lambda rows, columns: 1, 1) == 0


def test_an_embedding_apart_from_the_head_takes_memory_and_is_not_read_whole() -> None:
    def bf16(num_outputs: int, num_inputs: int) -> int:
        return 2 * num_outputs * num_inputs

    apart, tied = SHAPES["phi-3-mini"], SHAPES["llama-3.2-1b"]
    assert formulas.stored_weight_bytes(apart, bf16) == 2 * (
        formulas.matrix_parameters(apart) + formulas.embedding_parameters(apart)
    )
    assert formulas.stored_weight_bytes(tied, bf16) == formulas.weight_bytes(tied, bf16)


@pytest.mark.parametrize("window", [None, 1, 3, 100])
def test_kv_positions_counts_what_queries_see_and_their_own(window: int | None) -> None:
    for start in range(6):
        for end in range(start + 1, 9):
            seen = {
                key
                for p in range(start, end)
                for key in range(max(0, p + 1 - (window or 99)), p + 1)
            }
            assert formulas.kv_positions(start, end, window) == len(seen)


def test_kv_bytes_of_a_decode_step_by_hand() -> None:
    # Qwen2.5 0.5B at depth 512 in bf16: 24 layers, 513 positions, K and V of 2 heads of 64.
    shape = SHAPES["qwen2.5-0.5b"]
    kv_bytes = formulas.KVBytes(shape, 24 * 2 * 2 * 64 * 2)
    assert kv_bytes(512, 513) == 24 * 513 * 512


def test_prompt_rows_without_logits_do_not_pass_layers_that_keep_nothing() -> None:
    shape = SHAPES["gemma-4-e2b"]
    assert shape.first_without_kv == 15
    assert SHAPES["llama-3.2-1b"].first_without_kv == 16
    front = replace(shape, layers=shape.layers[:15])
    prompt = formulas.forward_flops(shape, 0, 512, 0)
    assert prompt == formulas.forward_flops(front, 0, 512, 0)
    last = formulas.forward_flops(shape, 511, 512, 1)
    assert prompt + last == formulas.forward_flops(shape, 0, 512, 1) + formulas.forward_flops(
        front, 511, 512, 0
    )
    assert last > 2 * formulas.active_matrix_parameters(shape)

    def bf16(num_outputs: int, num_inputs: int) -> int:
        return 2 * num_outputs * num_inputs

    without_head = formulas.weight_bytes(shape, bf16, with_head=False)
    assert without_head == formulas.weight_bytes(front, bf16, with_head=False)
