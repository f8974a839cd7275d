"""Known shapes, compared with the facts that their publishers give."""

import math
from dataclasses import replace

import pytest

from pellucid.backends.ops import Parameters, Weight
from pellucid.models.registry import decoder_class
from pellucid.shapes import SHAPES, find_shape

# Parameters, to the last one, as the safetensors of each model on its publisher's page count them.
PUBLISHED_PARAMETERS = {
    "smollm2-135m": 134_515_008,
    "qwen2.5-0.5b": 494_032_768,
    "qwen3-0.6b": 596_049_920,
    "qwen3-4b": 4_022_468_096,
    "llama-3.2-1b": 1_235_814_400,
    "phi-3-mini": 3_821_079_552,
    "mistral-7b": 7_248_023_552,
    "llama-3.1-8b": 8_030_261_248,
    "gemma-3-270m": 268_098_176,
    "gemma-3-1b": 999_885_952,
    # Of the text models, in transformers: layers that share keys and values have no matrices for them.
    "gemma-4-e2b": 4_628_569_379,
    "gemma-4-e4b": 7_463_013_418,
    "gemma-4-26b-a4b": 25_233_141_790,
    "smollm3-3b": 3_075_098_624,
    "olmo-2-1b": 1_484_916_736,
    "granite-3.3-2b": 2_533_539_840,
    "olmoe-1b-7b": 6_919_161_856,
    "qwen3-30b-a3b": 30_532_122_624,
    "mixtral-8x7b": 46_702_792_704,
    "lfm2-1.2b": 1_170_340_608,
    # With the bias of each expert's choice, which transformers counts as no parameter.
    "lfm2-8b-a1b": 8_339_929_856 + 22 * 32,
    "qwen3.5-0.8b": 752_393_024,  # of the text model
    "gpt-oss-20b": 20_914_757_184,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-235b-a22b": 235_093_634_560,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "phi-4": 14_659_507_200,
    "mistral-nemo-12b": 12_247_782_400,
    "mistral-small-24b": 23_572_403_200,
    "mixtral-8x22b": 140_620_634_112,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-4b": 3_880_263_168,  # of the text model
    "gemma-3-12b": 11_766_034_176,  # of the text model
    "gemma-3-27b": 27_009_346_304,  # of the text model
    "granite-3.3-8b": 8_170_864_640,
    "qwen3.5-27b": 26_895_998_464,  # of the text model
    "qwen3.5-35b-a3b": 34_660_610_688,  # of the text model
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "granite-3.1-1b-a400m": 1_334_628_352,
    "qwen3-next-80b-a3b": 79_674_391_296,  # without its drafting layer
    "gpt-oss-120b": 116_829_156_672,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "gpt-3": 174_604_259_328,  # by the sizes of its paper, table 2.1
}
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
