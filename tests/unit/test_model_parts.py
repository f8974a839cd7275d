"""Where a model can be cut, and how its layers are divided among machines."""

import itertools
import random
from dataclasses import replace

import pytest

from pellucid.facts.kv_groups import groups_of_part, kv_groups
from pellucid.facts.model_config import LayerConfig, ModelConfig, ShortConvolutionConfig
from pellucid.facts.model_parts import PartMemory, divide_layers, part_of, possible_cuts
from support.tiny_shape import TINY_SHAPE


def model(kinds: str) -> ModelConfig:
    """A layer for each letter: f full attention, w with a window, s that shares the last f before it, r recurrent."""
    config = TINY_SHAPE
    plain = config.layers[0]
    assert plain.attention is not None
    layers: list[LayerConfig] = []
    for index, kind in enumerate(kinds):
        attention = plain.attention
        if kind == "w":
            attention = replace(attention, window=8)
        if kind == "s":
            attention = replace(attention, shared_kv_layer=kinds.rindex("f", 0, index))
        if kind == "r":
            convolution = ShortConvolutionConfig(config.hidden_size, 3, False)
            layers.append(LayerConfig(None, plain.mlp, recurrence=convolution))
        else:
            layers.append(LayerConfig(attention, plain.mlp))
    return replace(config, layers=tuple(layers))


@pytest.mark.parametrize(
    ("kinds", "cuts"),
    [("ffff", [1, 2, 3]), ("ffsf", [1, 3]), ("fwsswf", [4, 5]), ("rfrr", [1, 2, 3]), ("f", [])],
)
def test_layers_that_share_keys_stay_together(kinds: str, cuts: list[int]) -> None:
    assert possible_cuts(model(kinds)) == cuts


def test_a_part_counts_its_own_layers() -> None:
    whole = model("ffsfs")
    part = part_of(whole, range(1, 5))
    assert (part.first_layer, part.num_layers, part.is_first, part.is_last) == (1, 4, False, True)
    shared = [layer.attention and layer.attention.shared_kv_layer for layer in part.layers]
    assert shared == [None, 0, None, 2]
    assert part.whole is whole and whole.whole is whole
    assert whole.is_first and whole.is_last


@pytest.mark.parametrize("kinds", ["fwfwwf", "ffff", "wwfrwf", "fwwwwwwwwf"])
def test_a_part_has_the_groups_of_the_whole(kinds: str) -> None:
    """Block tables of the whole model fit its parts."""
    whole = model(kinds)
    groups = kv_groups(whole)
    for first, end in itertools.combinations(range(len(kinds) + 1), 2):
        if not set(kinds[first:end]) - {"r"}:
            continue
        found = {
            number: [first + layer for layer in group.layers]
            for number, group in groups_of_part(part_of(whole, range(first, end)))
        }
        expected = {
            number: [layer for layer in group.layers if first <= layer < end]
            for number, group in enumerate(groups)
        }
        assert found == {number: layers for number, layers in expected.items() if layers}


@pytest.mark.parametrize(
    ("layers", "problem"),
    [
        (range(2, 2), "the model has 5 layers"),
        (range(1, 6), "the model has 5 layers"),
        (range(2, 5), "no cut is possible before layer 2"),
        (range(4), "no cut is possible before layer 4"),
        (range(1), "all are recurrent"),
    ],
)
def test_what_is_no_part(layers: range, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        part_of(model("rfsfs"), layers)


@pytest.mark.parametrize("seed", range(40))
def test_the_fullest_memory_is_as_empty_as_possible(seed: int) -> None:
    rng = random.Random(seed)
    kinds = "f" + "".join(rng.choice("fffwsr") for _ in range(6))
    config, num_parts = model(kinds), rng.choice([2, 3])
    sizes = [rng.randrange(10, 100) for _ in kinds]
    ends = rng.randrange(300), rng.randrange(300)
    parts = [PartMemory(rng.choice([100, 200, 1000])) for _ in range(num_parts)]

    def load(division: list[range]) -> float:
        bytes_of = [sum(sizes[each.start : each.stop]) for each in division]
        bytes_of[0] += ends[0]
        bytes_of[-1] += ends[1]
        return max(size / part.available for size, part in zip(bytes_of, parts, strict=True))

    possible = []
    for cuts in itertools.combinations(possible_cuts(config), num_parts - 1):
        division = [range(*each) for each in itertools.pairwise((0, *cuts, len(kinds)))]
        if all(set(kinds[each.start : each.stop]) - {"r"} for each in division):
            possible.append(division)
    if not possible:
        with pytest.raises(ValueError, match="cannot be divided"):
            divide_layers(config, sizes, ends, parts)
        return
    found = divide_layers(config, sizes, ends, parts)
    assert found in possible
    assert load(found) == min(map(load, possible))
    counts = [len(each) for each in rng.choice(possible)]
    asked = [replace(part, num_layers=count) for part, count in zip(parts, counts, strict=True)]
    assert [len(each) for each in divide_layers(config, sizes, ends, asked)] == counts


def test_a_number_of_layers_that_cannot_be() -> None:
    parts = [PartMemory(100, 3), PartMemory(100)]
    with pytest.raises(ValueError, match=r"into 2 parts of 3, any number layers; .* 1, 2"):
        divide_layers(model("fff"), [1, 1, 1], (0, 0), parts)
