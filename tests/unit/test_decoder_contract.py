"""Decoders use arrays only by addition, slicing and reshaping, and ops for everything else.

That is what lets a backend trace a forward, or keep its arrays where Python cannot look.
"""

import numpy as np
import pytest

from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.facts.kv_groups import kv_groups
from pellucid.facts.model_config import RopeConfig
from pellucid.models.registry import decoder_class
from support.batches import Share, forward_batch
from support.fake_parameters import FakeParameters
from support.uniform_model import uniform_model


class OpaqueArray:
    """An array that can do nothing but what the contract allows."""

    __slots__ = ("_hidden",)

    def __init__(self, array):
        self._hidden = array

    def __add__(self, other):
        return OpaqueArray(self._hidden + other._hidden)

    def __getitem__(self, key):
        return OpaqueArray(self._hidden[key])

    def reshape(self, *shape):
        return OpaqueArray(self._hidden.reshape(*shape))


class OpaqueOps:
    """The NumPy ops on opaque arrays."""

    def __init__(self):
        self._ops = NumpyBackend().ops

    def __getattr__(self, name):
        op = getattr(self._ops, name)

        def on_opaque_arrays(*args):
            result = op(*(arg._hidden if isinstance(arg, OpaqueArray) else arg for arg in args))
            return OpaqueArray(result) if isinstance(result, np.ndarray) else result

        return on_opaque_arrays


FACTS = {
    "LlamaForCausalLM": {"attention": {"qk_norm": "head", "qkv_bias": True}},
    "Gemma2ForCausalLM": {
        "attention": {"softcap": 5.0},
        "logits_softcap": 3.0,
        "embedding_scale": 4.0,
    },
    "GPT2LMHeadModel": {
        "rope": None,
        "mlp": {"gated": False, "bias": True},
        "attention": {"qkv_bias": True},
    },
}


@pytest.mark.parametrize("architecture", FACTS)
def test_decoders_only_add_slice_and_reshape(architecture):
    facts = {"rope": RopeConfig(theta=10000.0, dim=8), "tie_word_embeddings": True}
    config = uniform_model(
        architecture=architecture,
        vocab_size=40,
        hidden_size=24,
        intermediate_size=36,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        norm_eps=1e-5,
        activation="gelu_tanh",
        scale=0.35,
        windows=(None, 6),
        **(facts | FACTS[architecture]),
    )
    num_groups = len(kv_groups(config))
    shares = [Share(range(20), 0, 20, [1, 0]), Share([7], 0, 1, [2])]
    batch = forward_batch(shares, 16, [19, 20], num_groups)
    backend = NumpyBackend()
    plain, opaque = (
        decoder_class(architecture)(config, FakeParameters(backend.weights), ops).forward(
            batch, backend.make_kv_cache(config, 3 * num_groups, 16, "f32")
        )
        for ops in (backend.ops, OpaqueOps())
    )
    assert plain.shape == (2, 40)
    assert np.isfinite(plain).all()
    assert (opaque._hidden == plain).all()
