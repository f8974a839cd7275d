import pytest

from pellucid import formulas
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
