"""Every family on PyTorch: NumPy's logits within rounding, and the same bits however an engine schedules."""

import numpy as np
import pytest

from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.backends.torch.backend import TorchBackend
from pellucid.backends.torch.memory import to_host
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.llm import LLM
from support.checkpoints import DISTINCT_FAMILIES, write_checkpoint
from support.decoders import load_decoder
from support.decoding import logits_in_steps
from support.host_ops import DEVICE
from support.steps import random_steps, whole

LENGTHS = [75, 20, 1]
TEXTS = [np.random.default_rng(0).integers(3, 300, length).tolist() for length in LENGTHS]
PARAMS = SamplingParams(temperature=0.0, max_tokens=6, logprobs=2, ignore_eos=True)
DRAWN = SamplingParams(temperature=1.0, top_p=0.9, seed=5, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module", params=DISTINCT_FAMILIES)
def checkpoint(request, tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp(request.param), request.param)


class OnHost:
    """A decoder whose logits come to the host, for `logits_in_steps`."""

    def __init__(self, decoder):
        self._decoder = decoder

    def forward(self, batch, kv_cache):
        logits = self._decoder.step(batch, kv_cache)
        rows = to_host(logits.rows.rows)
        assert logits.largest == rows.argmax(axis=1).tolist()
        assert all(
            logits.rows[row, best] == rows[row, best] for row, best in enumerate(logits.largest)
        )
        return rows


def test_logits_are_those_of_numpy_and_the_same_in_any_steps(checkpoint):
    numpy, torch = NumpyBackend(quantize_activations=False), TorchBackend(DEVICE)
    decoder, config = load_decoder(checkpoint, numpy)
    expected = logits_in_steps(decoder, config, numpy, TEXTS, whole(LENGTHS))
    own, _ = load_decoder(checkpoint, torch)
    compiled = OnHost(torch.compile(own, config))
    found = logits_in_steps(compiled, config, torch, TEXTS, whole(LENGTHS))
    for each, wanted in zip(found, expected, strict=True):
        assert np.linalg.norm(each - wanted) <= 1e-5 * np.linalg.norm(wanted)
    steps = random_steps(LENGTHS, np.random.default_rng(1))
    again = logits_in_steps(compiled, config, torch, TEXTS, steps, block_size=32)
    assert all((a == b).all() for a, b in zip(again, found, strict=True))


def test_same_answer(checkpoint):
    """Alone, together, in chunks, after a hit in the prefix cache, after preemption and swap, and with drafts."""
    prompts = [TEXTS[0][:24], TEXTS[0][:33], TEXTS[0]]  # each begins another
    both = [params for params in (PARAMS, DRAWN) for _ in prompts]

    def answers(outputs):
        return [(output.outputs[0].token_ids, output.outputs[0].logprobs) for output in outputs]

    def generate(**knobs):
        llm = LLM(str(checkpoint), backend="torch", device=DEVICE, **knobs)
        return llm, answers(llm.generate(prompts * 2, both))

    _, alone = generate(enable_prefix_caching=False, max_num_seqs=1, speculation="off")
    shared, together = generate(block_size=16, speculation="ngram")
    assert together == alone
    again = shared.generate(prompts * 2, both)
    assert answers(again) == alone
    assert all(output.num_cached_tokens > 0 for output in again)
    assert generate(max_num_batched_tokens=40, block_size=32)[1] == alone
