"""Decoders, compared live with transformers: the same logits and greedy tokens for every family."""

import numpy as np
import pytest

from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.facts.model_config import LongRopeScaling
from support.checkpoints import FAMILIES, write_checkpoint
from support.decoders import load_decoder
from support.decoding import greedy_tokens, prompt_logits
from support.golden_prompts import golden_prompts

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
theirs = pytest.importorskip("support.transformers_models")

OPS = NumpyBackend()
NUM_TOKENS = 24


def save_anew(directory, family):
    """A checkpoint that transformers itself initialises and writes, with weights large enough to matter."""
    config = transformers.AutoConfig.from_pretrained(write_checkpoint(directory / "facts", family))
    config.get_text_config().initializer_range = 0.25
    torch.manual_seed(0)
    theirs.make_theirs(config).save_pretrained(directory / "model")
    return directory / "model"


@pytest.fixture(scope="module", params=["ours", "theirs"])
def writer(request):
    return {"ours": write_checkpoint, "theirs": save_anew}[request.param]


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request, writer, tmp_path_factory):
    return writer(tmp_path_factory.mktemp(request.param), request.param)


def test_logits_of_every_row(checkpoint):
    decoder, config = load_decoder(checkpoint, OPS)
    for prompt in golden_prompts():
        with torch.no_grad():
            expected = theirs.load_theirs(checkpoint)(torch.tensor([prompt])).logits[0].numpy()
        actual = prompt_logits(decoder, config, OPS, prompt)
        assert np.abs(actual - expected).max() <= 1e-4 * np.abs(expected).max()


def test_greedy_tokens(checkpoint):
    decoder, config = load_decoder(checkpoint, OPS)
    for prompt in golden_prompts():
        num_tokens = num_comparable_tokens(config, prompt)
        expected = generate(theirs.load_theirs(checkpoint), prompt)
        actual = greedy_tokens(decoder, config, OPS, prompt, NUM_TOKENS)
        assert actual[:num_tokens] == expected[:num_tokens]


def num_comparable_tokens(config, prompt):
    """All, but where LongRoPE changes its factors within the output.

    There transformers throws Phi-3's cache away and computes the whole text again with the long factors. We
    keep what is cached, so that a token's key depends on its own request and position alone.
    """
    scalings = [rope.scaling for rope in config.ropes]
    if not scalings or not isinstance(scalings[0], LongRopeScaling):
        return NUM_TOKENS
    trained_length = scalings[0].original_max_position
    return NUM_TOKENS if len(prompt) > trained_length else trained_length - len(prompt) + 1


def generate(model, prompt):
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        output = model.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=NUM_TOKENS, pad_token_id=0
        )
    return output[0, len(prompt) :].tolist()
