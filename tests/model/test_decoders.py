"""Decoders of every family: the same logits however they are scheduled, equal to transformers'."""

from pathlib import Path

import numpy as np
import pytest

from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.facts.kv_groups import kv_groups
from support.batches import Share, forward_batch
from support.checkpoints import FAMILIES, write_checkpoint
from support.decoders import load_decoder
from support.decoding import logits_in_steps, prompt_logits
from support.golden_prompts import ROWS, golden_prompts
from support.steps import chunks, random_steps, whole

GOLDEN = Path(__file__).parents[1] / "golden"
LENGTHS = (49, 9, 33, 1)
# Of a text; what follows was generated, across the tiny models' 32 positions.
NUM_PROMPT_TOKENS = 30
OPS = NumpyBackend()


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    """family, decoder, config"""
    directory = write_checkpoint(tmp_path_factory.mktemp(request.param), request.param)
    return request.param, *load_decoder(directory, OPS)


@pytest.fixture(scope="module")
def texts():
    rng = np.random.default_rng(3)
    return [rng.integers(0, 320, length).tolist() for length in LENGTHS]


def test_logits_are_those_of_transformers(model):
    family, decoder, config = model
    golden = np.load(GOLDEN / f"{family}.npz")
    for i, prompt in enumerate(golden_prompts()):
        expected = golden[f"prompt_{i}"]
        actual = prompt_logits(decoder, config, OPS, prompt)[list(ROWS)]
        assert np.abs(actual - expected).max() <= 1e-4 * np.abs(expected).max()


def test_logits_do_not_depend_on_chunks_batch_or_block_size(model, texts):
    _, decoder, config = model

    def run(texts, steps, block_size=16):
        return logits_in_steps(
            decoder,
            config,
            OPS,
            texts,
            steps,
            block_size=block_size,
            kv_dtype="bf16",  # rounded as it is stored
            num_prompt_tokens=NUM_PROMPT_TOKENS,
        )

    alone = [run([text], whole([len(text)]))[0] for text in texts]
    one_by_one = [[(0, at, at + 1)] for at in range(NUM_PROMPT_TOKENS, LENGTHS[0])]
    decoded = run(texts[:1], [*whole([NUM_PROMPT_TOKENS]), *one_by_one])
    assert (decoded[0] == alone[0]).all()
    assert (run(texts[:1], chunks(LENGTHS[0], 7), block_size=128)[0] == alone[0]).all()
    for block_size, seed in ((64, 1), (16, 2)):
        mixed = run(texts, random_steps(LENGTHS, np.random.default_rng(seed)), block_size)
        for one, other in zip(alone, mixed, strict=True):
            assert (one == other).all()


def test_only_the_rows_asked_for_get_logits(model, texts):
    _, decoder, config = model
    text = texts[2]
    all_rows = prompt_logits(decoder, config, OPS, text)
    for wanted in ([], [5], [32, 0, 7]):
        num_groups = len(kv_groups(config))
        share = Share(text, 0, len(text), [2, 0, 1])
        batch = forward_batch([share], 16, wanted, num_groups)
        logits = decoder.forward(batch, OPS.make_kv_cache(config, 3 * num_groups, 16, "f32"))
        assert logits.shape == (len(wanted), config.vocab_size)
        assert (logits == all_rows[wanted]).all()
