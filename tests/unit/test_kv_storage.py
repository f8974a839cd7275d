import pytest

from pellucid.config import EngineConfig
from support.fake_model import fake_engine


@pytest.mark.parametrize(
    "knobs",
    [{"enable_prefix_caching": False}, {"use_kv_cache": False}],
)
def test_a_prefix_cache_on_disk_needs_one_in_memory(knobs: dict[str, bool]) -> None:
    with pytest.raises(ValueError, match="prefix_cache_dir='there': needs enable_prefix_caching"):
        EngineConfig(prefix_cache_dir="there", **knobs)


@pytest.mark.parametrize("swap_space", [-1, 0.5, "1"])
def test_swap_space_is_bytes(swap_space: object) -> None:
    with pytest.raises(ValueError, match=r"swap_space=.*must be a whole number of at least 0"):
        EngineConfig(swap_space=swap_space)


def test_swap_space_for_less_than_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match=r"swap_space=3: one block takes \d+ bytes"):
        fake_engine(swap_space=3)


def test_swap_space_that_the_disk_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"swap_space=\d+: .*TMPDIR names another directory"):
        fake_engine(swap_space=1 << 60)
