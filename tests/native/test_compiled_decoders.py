"""A compiled decoder computes the same bits as its ops one by one, in steps of any size."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from pellucid.backends.cpu.backend import CpuBackend
from pellucid.backends.cpu.kv_cache import TracedKVCache
from pellucid.backends.cpu.ranks import planned_ranks
from pellucid.backends.cpu.tracing import Trace, place, symbolic_batch
from pellucid.backends.drawing import DrawTable
from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.facts.kv_groups import kv_groups
from support.batches import Share, forward_batch
from support.checkpoints import DISTINCT_FAMILIES, write_checkpoint
from support.decoders import load_decoder
from support.decoding import logits_in_steps
from support.steps import chunks, random_steps, whole

LENGTHS = [45, 34, 1, 9]
TEXTS = [np.random.default_rng(0).integers(3, 300, length).tolist() for length in LENGTHS]


@pytest.fixture(scope="module", params=DISTINCT_FAMILIES)
def checkpoint(request, tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp(request.param), request.param)


class LookingForTheLargest:
    """Checks what each step of a compiled decoder notes; keeps what it draws from each row, and counts its experts."""

    def __init__(self, decoder):
        self._decoder = decoder
        self.drawn, self.expert_bytes = [], 0

    def forward(self, batch, kv_cache):
        draws = DrawTable()
        only_token_0 = np.eye(1, -(-self._decoder.vocab_size // 32), dtype=np.uint32)[0]
        for row in range(len(batch.logits_indices)):
            allowed = None if row else only_token_0
            draws.add(row, {"seed": 1, "stream": 0, "sharpness": 1.5}, row, allowed)
        logits = self._decoder.step(batch, kv_cache, draws)
        assert logits.largest == logits.rows.argmax(axis=1).tolist()
        assert logits.drawn[:1] == [0][: len(draws)]
        self.drawn.append(logits.drawn)
        self.expert_bytes += logits.expert_bytes
        return logits.rows


def test_compiled_is_op_by_op_and_notes_where_logits_are_largest(checkpoint):
    """Whatever the number of threads: pieces of 7 rows meet often, so they have one."""
    backend = CpuBackend(num_threads=3, small_step_bytes=0)
    decoder, config = load_decoder(checkpoint, backend)
    one_by_one = logits_in_steps(decoder, config, backend, TEXTS, whole(LENGTHS))
    compiled = backend.compile(decoder, config)
    small = CpuBackend(num_threads=1, max_rows=7).compile(decoder, config)
    rng = np.random.default_rng(1)
    has_experts = any(layer.experts for layer in config.layers)
    for steps in (whole(LENGTHS), random_steps(LENGTHS, rng)):
        large, cut = (LookingForTheLargest(which) for which in (compiled, small))
        for looking in (large, cut):
            rows = logits_in_steps(looking, config, backend, TEXTS, steps, block_size=32)
            for own, wanted in zip(rows, one_by_one, strict=True):
                assert (own == wanted).all()
        assert large.drawn == cut.drawn
        assert cut.expert_bytes >= large.expert_bytes >= has_experts


@pytest.mark.parametrize(
    "family", ["llama", "gemma4", "qwen3-moe"]
)  # the last layers of gemma4 see these rows alone
@pytest.mark.parametrize("max_rows", [512, 7])
def test_only_the_rows_asked_for_get_logits(family, max_rows, tmp_path):
    backend = CpuBackend(num_threads=3, small_step_bytes=0, max_rows=max_rows)
    decoder, config = load_decoder(write_checkpoint(tmp_path, family), backend)
    compiled, num_groups = backend.compile(decoder, config), len(kv_groups(config))
    text, other = TEXTS[1][:33], TEXTS[3][:9]

    def logits(first, second):
        shares = [Share(text, 0, 33, [2, 0, 1]), Share(other, 0, 9, [3])]
        batch = forward_batch(shares, 16, [*first, *(33 + row for row in second)], num_groups)
        cache = backend.make_kv_cache(config, 4 * num_groups, 16, "bf16")
        return compiled.forward(batch, cache)

    all_rows = logits(range(33), range(9))
    for first, second in (([], []), ([5], []), ([0, 7, 32], [8]), ([], [3, 4])):
        wanted = [*first, *(33 + row for row in second)]
        assert (logits(first, second) == all_rows[wanted]).all()


def test_compiled_is_close_to_numpy(checkpoint):
    """A misplaced buffer would be far off. Rows after rows of rounding are not bounded tightly."""
    native, exact = CpuBackend(quantize_activations=False), NumpyBackend(np.float64)
    decoder, config = load_decoder(checkpoint, native)
    compiled = native.compile(decoder, config)
    definition, _ = load_decoder(checkpoint, exact)
    wanted = logits_in_steps(definition, config, exact, TEXTS[:1], chunks(LENGTHS[0], 20))[0]
    actual = logits_in_steps(compiled, config, native, TEXTS[:1], chunks(LENGTHS[0], 31))[0]
    assert np.abs(actual - wanted).max() <= 1e-4 * np.abs(wanted).max()


def test_layers_share_memory(checkpoint):
    backend = CpuBackend(max_rows=16)
    decoder, config = load_decoder(checkpoint, backend)
    if config.layer_vocab_size:
        pytest.skip("the embeddings of all layers are in one buffer")
    layers = decoder.layers

    def scratch_bytes(times):
        decoder.layers = times * layers
        deeper = replace(config, layers=times * config.layers)
        return backend.compile(decoder, deeper).scratch_bytes(16)

    # Not of 1: rotations stay until they are last used, so one layer of attention frees them early.
    assert scratch_bytes(2) == scratch_bytes(6)


def test_what_runs_between_two_meetings_of_the_threads(tmp_path):
    """Row ops run on, residuals are added where products are written: no stage of their own, and no memory."""
    backend = CpuBackend()
    layer = [
        "rms_norm + prepare",
        "linear",
        "rope + rope",
        "store_kv",
        "attention",
        "prepare",
        "linear",
        "rms_norm + prepare",
        "linear",
        "gated_activate + prepare",
        "linear",
    ]
    decoder, config = load_decoder(write_checkpoint(tmp_path, "llama"), backend)
    expected = [*(config.num_layers * layer), "gather + rms_norm + prepare", "linear", "draw"]
    expected[0] = "embed + " + expected[0]
    expected[2] = "rotations + " + expected[2]
    assert backend.compile(decoder, config)._program.stage_names == expected
    trace = Trace()
    logits = decoder.forward(symbolic_batch(trace), TracedKVCache(config))
    placed = place(trace.instructions, logits.operand.value)
    own = {placed.resolve(each.output).value for each in placed.instructions if each.output}
    assert Counter(value.width for value in own) == {16: 1, 64: 11, 128: 3, 192: 3, 320: 1}
    capped = backend.compile(*load_decoder(write_checkpoint(tmp_path, "gemma2"), backend))
    assert capped._program.stage_names[-4:] == ["linear", "softcap", "largest", "draw"]


@pytest.mark.parametrize(
    ("family", "num_kv_heads", "divided"),
    [
        ("llama", 2, {"embed", "linear", "attention"}),
        ("llama", 1, {"embed", "linear"}),  # all ranks have this one
        ("qwen3-moe", 2, {"embed", "linear", "attention", "experts' down"}),
    ],
)
def test_ranks_exchange_what_each_has_computed_a_share_of(family, num_kv_heads, divided, tmp_path):
    overrides = {"num_key_value_heads": num_kv_heads}
    path = write_checkpoint(tmp_path, family, config_overrides=overrides)

    def steps(num_ranks):
        backend = CpuBackend(ranks=planned_ranks(num_ranks) if num_ranks > 1 else None)
        names = backend.compile(*load_decoder(path, backend))._program.stage_names
        return " + ".join(names).split(" + ")

    expected = []
    for name, following in pairwise([*steps(1), ""]):
        # Of logits that come in parts the largest are looked for afterwards; a router is no rank's alone.
        expected += ["largest", name] if name == "draw" else [name]
        expected += ["exchange"] * (name in divided and following != "route")
    assert steps(2) == expected
