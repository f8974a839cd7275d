"""benchmarks/quantization_quality.py on the bundled model: the quality of each weight format."""

import numpy as np
import pytest

from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.loading.hub import BUNDLED_MODEL
from pellucid.text.tokenizer import Tokenizer
from support.decoders import load_decoder
from support.decoding import prompt_logits

# From documents that were held out of its training.
TEXTS = (
    (
        "The KV cache is cut into blocks. Each block has room for the keys and values of a fixed number "
        "of tokens, for example 32. A request gets a new block when its last one is full, and gives them "
        "back when it is done. A block table says which blocks belong to which request."
    ),
    (
        "It was Friday, and snow fell without a sound. Thea, the forgetful pirate, was peeling potatoes "
        "in Quill Island. Thea lived beside the greenhouse and looked after the yellow lantern there."
    ),
    (
        "<|user|>Can you count from 22 to 31<|end_of_turn|><|assistant|>22 23 24 25 26 27 28 29 30 31."
        "<|end_of_turn|><|user|>17 - 7<|end_of_turn|><|assistant|>17 - 7 = 10<|end_of_turn|>"
    ),
)
LARGEST_DIVERGENCE = {"int8": 1e-3, "int8-channel": 2e-3, "int4": 2e-2, "int4-zp": 2e-2}  # nats


def log_probs(quantization: str) -> np.ndarray:
    backend = NumpyBackend()
    decoder, config = load_decoder(BUNDLED_MODEL, backend, quantization=quantization)
    tokenizer = Tokenizer.load(BUNDLED_MODEL, config.vocab_size)
    logits = np.concatenate(
        [prompt_logits(decoder, config, backend, tokenizer.encode(text)) for text in TEXTS]
    )
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


@pytest.fixture(scope="module")
def reference() -> np.ndarray:
    return log_probs("none")


@pytest.mark.parametrize("quantization", LARGEST_DIVERGENCE)
def test_next_token_distributions_hardly_move(quantization: str, reference: np.ndarray) -> None:
    moved = log_probs(quantization)
    divergence = float((np.exp(reference) * (reference - moved)).sum(axis=-1).mean())
    assert 0 < divergence <= LARGEST_DIVERGENCE[quantization]
