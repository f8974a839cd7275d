"""Known shapes, compared with the facts that their publishers give."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from pellucid.backends.ops import Parameters, Weight
from pellucid.models.registry import decoder_class
from pellucid.shapes import SHAPES, find_shape

FILE = Path(__file__).parents[1] / "published/num_parameters.txt"  # name, number, what it counts
ROWS = [line.split() for line in FILE.read_text().splitlines()[1:]]
PUBLISHED_PARAMETERS = {name: int(number) for name, number, *_ in ROWS}
# Of no model: fewer layers of one.
CUT = {"qwen3-30b-a3b-24-layers": ("qwen3-30b-a3b", 24)}


class CountingParameters(Parameters):
    """Gives a decoder nothing, and counts what it asked for."""

    def __init__(self) -> None:
        self.num_parameters = 0

    def make(self, weight: Weight) -> None:
        self.num_parameters += math.prod(weight.shape)
        if weight.has_bias:
            self.num_parameters += math.prod(weight.bias.shape)


def test_all_are_published() -> None:
    assert SHAPES.keys() == PUBLISHED_PARAMETERS.keys() | CUT.keys()


@pytest.mark.parametrize("name", CUT)
def test_a_cut_shape_is_the_published_one_with_fewer_layers(name: str) -> None:
    whole, num_layers = CUT[name]
    published = find_shape(whole)
    assert find_shape(name) == replace(published, layers=published.layers[:num_layers])


@pytest.mark.parametrize(("name", "expected"), PUBLISHED_PARAMETERS.items())
def test_a_decoder_of_the_shape_has_the_published_parameters(name: str, expected: int) -> None:
    config, counting = find_shape(name), CountingParameters()
    decoder_class(config.architecture)(config, counting, None)  # type: ignore[arg-type]
    assert counting.num_parameters == expected


def test_an_unknown_shape_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ValueError, match=r"shape='gpt-5': known are smollm2-135m, qwen2\.5-0\.5b"):
        find_shape("gpt-5")
