"""What stands around an engine, on PyTorch: inspection, prefix store, quantized weights, ceilings, command line."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from pellucid import LLM, EngineConfig
from pellucid.backends.choice import make_backend
from pellucid.backends.torch.backend import TorchBackend
from pellucid.backends.torch.decoder import TorchLogits
from pellucid.backends.torch.largest import find_largest
from pellucid.cli import main
from pellucid.engine.inspection import AnswerSoFar
from pellucid.facts.kv_groups import kv_groups, kv_places
from pellucid.inputs.beam_search_params import BeamSearchParams
from pellucid.inputs.config import fitting_block_size
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.inputs.structured_outputs import StructuredOutputsParams
from pellucid.observing.events import EventRecord, Level, Token
from support.checkpoints import write_checkpoint
from support.host_ops import DEVICE

PROMPT = np.random.default_rng(0).integers(3, 300, 40).tolist()
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def engine_of(directory: Path, family: str = "llama", **knobs: object) -> LLM:
    model = str(directory / family)
    if not (directory / family).exists():
        write_checkpoint(directory / family, family)
    device = DEVICE if knobs.setdefault("backend", "torch") == "torch" else "cpu"
    block_size = fitting_block_size(16, knobs.get("kv_cache_dtype", "bf16"))
    return LLM(model, device=device, block_size=block_size, **knobs)


@pytest.mark.parametrize("family", ["llama", "gpt-oss", "lfm2"])
@pytest.mark.parametrize("dtype", ["bf16", "int4"])
def test_a_token_is_seen_again(tmp_path: Path, family: str, dtype: str) -> None:
    """Logits have the bits of the step; attention is what keys, values and the query make it."""
    engine = engine_of(tmp_path, family, speculation="off", kv_cache_dtype=dtype).engine
    output = engine.add_request(PROMPT, GREEDY)
    while engine.has_unfinished_requests:
        engine.step()
    token_ids = output.outputs[0].token_ids
    prepared = engine.prepare(PROMPT, GREEDY)
    close = 1e-2 if engine.model.backend.ops.kernels else 1e-4  # kernels round weights to bf16
    for num_outputs in (0, 5):
        answer = AnswerSoFar(prepared, output.seed, 0, token_ids[:num_outputs], None)
        seen = engine.inspector.logits(answer)
        assert seen.logits.argmax() == token_ids[num_outputs] == seen.drawn
        attention = engine.inspector.attention(answer)
        for layer in attention.calls:
            weights, error = attention.weights(layer)
            assert error < close
            assert weights.shape[1] == len(PROMPT) + num_outputs
    places = kv_places(engine.model.config, kv_groups(engine.model.config))
    block = engine.inspector.prefix_tree()[0]
    layer = next(n for n, place in enumerate(places) if place and place.group == block.group)
    contents = engine.inspector.block(block.block_id, layer)
    assert contents.token_ids == block.token_ids
    assert np.isfinite(contents.k).all() and contents.k.any()


def test_blocks_outlive_the_engine(tmp_path: Path) -> None:
    store = str(tmp_path / "blocks")
    first = engine_of(tmp_path, prefix_store=store)
    expected = first.generate([PROMPT], GREEDY)[0]
    first.close()
    again = engine_of(tmp_path, prefix_store=store)
    found = again.generate([PROMPT], GREEDY)[0]
    again.close()
    assert found.outputs[0].token_ids == expected.outputs[0].token_ids
    assert found.num_cached_tokens == 32
    native = engine_of(tmp_path, prefix_store=store, backend="numpy")  # other bits: not used
    assert native.generate([PROMPT], GREEDY)[0].num_cached_tokens == 0
    native.close()


@pytest.mark.parametrize("quantization", ["int8", "int4", "int4-g128-zp", "int8-channel"])
@pytest.mark.parametrize("family", ["llama", "qwen3-moe"])
def test_quantized_weights_give_the_answers_of_numpy(
    tmp_path: Path, family: str, quantization: str
) -> None:
    """As NumPy's, whose rows are not rounded either."""
    tokens = [
        engine_of(
            tmp_path, family, backend=backend, quantization=quantization, quantize_activations=False
        )
        .generate([PROMPT], GREEDY)[0]
        .outputs[0]
        .token_ids
        for backend in ("torch", "numpy")
    ]
    assert tokens[0] == tokens[1]


def test_beams_grammars_and_log_probabilities_are_those_of_numpy(tmp_path: Path) -> None:
    ours, numpy = (
        engine_of(tmp_path, backend=backend, kv_cache_dtype="f32") for backend in ("torch", "numpy")
    )
    beams = BeamSearchParams(beam_width=3, max_tokens=6, ignore_eos=True)
    answers = [
        [each.tokens for each in llm.beam_search([PROMPT], beams)[0].sequences]
        for llm in (ours, numpy)
    ]
    assert answers[0] == answers[1]
    for params in (
        SamplingParams(
            seed=3, max_tokens=8, structured_outputs=StructuredOutputsParams(regex="[a-z ]{3,9}")
        ),
        SamplingParams(seed=1, temperature=1.3, top_k=20, repetition_penalty=1.2, max_tokens=8),
    ):
        found, expected = (llm.generate([PROMPT], params)[0].outputs[0] for llm in (ours, numpy))
        assert found.token_ids == expected.token_ids
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=2, prompt_logprobs=1)
    found, expected = (llm.generate([PROMPT], params)[0] for llm in (ours, numpy))
    for own, wanted in zip(found.outputs[0].logprobs, expected.outputs[0].logprobs, strict=True):
        assert own.keys() == wanted.keys()
        assert all(own[t].logprob == pytest.approx(wanted[t].logprob, abs=1e-4) for t in own)
    assert len(found.prompt_logprobs) == len(PROMPT)


def test_the_largest_logit_is_the_first_of_equals_and_a_nan_before_all() -> None:
    logits = torch.tensor([[1.0, 3, 3], [0, torch.nan, 9], [-torch.inf, -torch.inf, -5]])
    token_ids, bits = find_largest(logits)
    token_ids, peaks = token_ids.tolist(), bits.view(torch.float32).tolist()
    assert token_ids == [1, 1, 2]
    assert np.isnan(peaks[1])
    rows = TorchLogits(logits, (token_ids, peaks))
    assert len(rows) == 3 and len(rows[1:]) == 2
    assert rows[0, 1] == 3 and rows[0, 0] == 1
    assert rows[1:][1].tolist() == logits[2].tolist()
    assert find_largest(logits[:0]).shape == (2, 0)


def test_drawn_and_watched_tokens_copy_no_row_of_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(seed=3, max_tokens=12, ignore_eos=True, top_p=0.9, top_k=200)
    texts = []
    for backend in ("numpy", "torch"):
        engine = engine_of(tmp_path, backend=backend, speculation="off").engine
        seen: list[EventRecord] = []
        if backend == "torch":
            monkeypatch.setattr(TorchLogits, "__getitem__", _known_only(TorchLogits.__getitem__))
            engine.events.subscribe(seen.append, Level.TOKEN)
        output = engine.add_request(PROMPT, params)
        while engine.has_unfinished_requests:
            engine.step()
        texts.append(output.outputs[0].token_ids)
    assert texts[0] == texts[1]  # equal logits but for rounding
    assert sum(isinstance(each.event, Token) for each in seen) == 12


def _known_only(get: Callable[..., object]) -> Callable[..., object]:
    def known(logits: TorchLogits, index: tuple[int, int]) -> object:
        row, token_id = index  # never a whole row
        assert index in logits.drawn or logits.largest[0][row] == token_id
        return get(logits, index)

    return known


def test_ceilings_are_measured_and_memory_is_known() -> None:
    backend = TorchBackend("cpu")
    machine = backend.measure(None)
    assert min(machine.ceilings) > 0
    assert machine.isa == "torch cpu"
    assert backend.available_memory() > 0
    assert torch.__version__ in backend.identity


def test_weights_count_as_they_are_stored(tmp_path: Path) -> None:
    sizes = {}
    for quantization in ("none", "int8", "int4"):
        engine = engine_of(tmp_path, quantization=quantization).engine
        sizes[quantization] = engine.model.decoder.step_weights.num_bytes(with_head=True)
    assert sizes["none"] == pytest.approx(4 * sizes["int8"] / (1 + 2 / 32), rel=0.01)
    assert sizes["int4"] < 0.6 * sizes["int8"]


def test_the_command_line_computes_on_a_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path / "model", "llama")
    monkeypatch.setenv("PELLUCID_CONFIG", "")
    monkeypatch.setenv("PELLUCID_DEVICE", "cpu")
    options = ["--backend", "torch", "--max-tokens", "4", "--ignore-eos", "--json"]
    assert main(["run", str(tmp_path / "model"), "the cat", *options]) == 0
    assert len(json.loads(capsys.readouterr().out)["token_ids"]) == 4


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_a_device_that_is_not_there_is_told_in_a_sentence(kind: str) -> None:
    if kind == "cuda" and torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(
        ValueError, match=rf"^device='{kind}': .*; device='auto' takes what there is$"
    ):
        make_backend(EngineConfig(device=kind))


def test_a_driver_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        ValueError, match=r"a driver that is too old for CUDA 13\.0: nvidia-smi says"
    ):
        make_backend(EngineConfig(device="cuda"))


def test_too_little_memory_is_told_before_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pellucid.backends.torch.backend.device_memory", lambda device: 1000)
    with pytest.raises(ValueError, match=r"its weights take .* of memory are available"):
        engine_of(tmp_path)


def test_auto_takes_the_cpus_own_kernels_where_there_is_no_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pellucid.backends.choice.GPU_DRIVERS", ("/dev/null",))  # a driver
    if not torch.cuda.is_available():
        assert make_backend(EngineConfig()).name == "cpu"
    assert make_backend(EngineConfig(backend="torch", device="cpu")).name == "torch"
    assert make_backend(EngineConfig(device="cpu")).name == "cpu"
