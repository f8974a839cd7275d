"""The registry: which architectures have a decoder."""

import pytest

from pellucid.loading.hf_config import supported_architectures
from pellucid.models.registry import decoder_class


@pytest.mark.parametrize("architecture", supported_architectures())
def test_everything_that_loads_has_a_decoder(architecture):
    assert callable(decoder_class(architecture))


def test_an_unknown_architecture_is_refused_with_those_that_are_known():
    with pytest.raises(ValueError, match=r"architecture='BertModel'.*LlamaForCausalLM"):
        decoder_class("BertModel")
