"""Real weights that ship as packages (tools/fetch_models.py), loaded once: here, and in transformers."""

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.prompts import Prompt
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loaded_model import LoadedModel, load_model
from pellucid.loading.open_model import open_stored_model
from pellucid.outputs import RequestOutput
from pellucid.text.tokenizer import Tokenizer
from support.decoding import logits_in_steps
from support.steps import whole

FILES = {"smollm2": "smollm2-135m-instruct-q4_1.gguf", "gemma3": "gemma-3-270m-q4_k_m.gguf"}
DATA = Path(__file__).parents[1] / "real" / "texts"
LLAMA_CPP = Path(__file__).parents[2] / "tools" / "llama_cpp.py"
TOKEN_IDS = DATA / "token_ids.json"
# The weights as the file's codes stand for them, with f32 arithmetic.
EXACT = {"quantize_activations": False}

LogProbs = npt.NDArray[np.float32]  # [tokens, V]


def real_file(name: str) -> Path:
    """The GGUF file; skips the test where it has not been fetched."""
    path = Path(os.environ.get("PELLUCID_TEST_MODELS", "")) / FILES[name]
    if not path.is_file():
        pytest.skip(f"PELLUCID_TEST_MODELS has no {FILES[name]}; make test-real fetches it")
    return path


@functools.lru_cache(maxsize=4)
def _load(path: Path, **knobs: Any) -> LoadedModel:
    return load_model(EngineConfig(model=str(path), **knobs))


def real_model(name: str, **knobs: Any) -> LoadedModel:
    """Of `EngineConfig` those fields that change the weights."""
    return _load(real_file(name), **knobs)


@functools.cache
def real_tokenizer(name: str) -> Tokenizer:
    """Without the weights."""
    path = real_file(name)
    stored = open_stored_model(path)
    assert stored.read_tokenizer is not None
    return Tokenizer.from_stored(stored.read_tokenizer(), stored.config.vocab_size, path.name)


def real_engine(name: str, weights: dict[str, Any] | None = None, **knobs: Any) -> LLMEngine:
    """An engine of its own over the shared model, without drafts unless `knobs` say otherwise.

    Args:
        weights: fields of `EngineConfig` that change the weights.
    """
    config = {"max_model_len": 2048, "max_num_seqs": 16, "kv_cache_memory": 1 << 28}
    config |= {"model": str(real_file(name)), "speculation": "off", **(weights or {}), **knobs}
    return LLMEngine(EngineConfig(**config), real_model(name, **(weights or {})))


def run_together(
    engine: LLMEngine, requests: list[tuple[Prompt, SamplingParams]]
) -> list[RequestOutput]:
    outputs = [engine.add_request(prompt, params) for prompt, params in requests]
    while engine.has_unfinished_requests:
        engine.step()
    return outputs


def run_in_turn(
    engine: LLMEngine, requests: list[tuple[Prompt, SamplingParams]]
) -> list[RequestOutput]:
    return [run_together(engine, [request])[0] for request in requests]


# -- how far distributions differ ------------------------------------------------------------------


def prose_token_ids(name: str, most: int = 320) -> list[int]:
    """English that no model has seen."""
    text = (DATA / "prose.txt").read_text(encoding="utf-8")
    return real_tokenizer(name).encode(text)[:most]


def log_probs(model: LoadedModel, token_ids: list[int], kv_cache_dtype: str = "f32") -> LogProbs:
    """Of each token's successor."""
    (logits,) = logits_in_steps(
        model.decoder,
        model.config,
        model.backend,
        [token_ids],
        whole([len(token_ids)]),
        block_size=32,
        kv_dtype=kv_cache_dtype,
    )
    return log_softmax(logits)


def log_softmax(logits: Any) -> LogProbs:
    shifted = np.asarray(logits, np.float32)
    shifted = shifted - shifted.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def divergence(reference: LogProbs, other: LogProbs) -> float:
    """The mean of KL(reference || other), in nats."""
    rows = (np.exp(reference) * (reference - other)).sum(axis=-1, dtype=np.float64)
    return float(rows.mean())


def same_top(reference: LogProbs, other: LogProbs) -> float:
    return float((reference.argmax(axis=-1) == other.argmax(axis=-1)).mean())


def perplexity(found: LogProbs, token_ids: list[int]) -> float:
    return float(np.exp(-found[np.arange(len(token_ids) - 1), token_ids[1:]].mean()))


# -- transformers ----------------------------------------------------------------------------------


@functools.cache
def their_model(name: str) -> Any:
    """The same file in transformers: its weights as f32."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    path = real_file(name)
    return transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()


@functools.cache
def their_log_probs_of_prose(name: str) -> LogProbs:
    return their_log_probs(name, [prose_token_ids(name)])[0]


def their_log_probs(name: str, texts: Sequence[Sequence[int]]) -> list[LogProbs]:
    """Of each token's successor, for each text; computed together."""
    import torch

    longest = max(map(len, texts))
    # What stands behind a text's end is seen by no token before it.
    padded = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
    with torch.no_grad():
        logits = their_model(name)(padded).logits
    return [
        log_softmax(rows[: len(text)].numpy()) for rows, text in zip(logits, texts, strict=True)
    ]


# -- llama.cpp -------------------------------------------------------------------------------------


def log_probs_of_llama(
    name: str, texts: Sequence[Sequence[int]], cache_type: str = "F16"
) -> list[LogProbs]:
    """Of each token's successor by llama.cpp, for each text; skips the test where its library has not been fetched."""
    model, library = real_file(name), Path(os.environ["PELLUCID_TEST_MODELS"], "llama-cpp.so")
    if not library.is_file():
        pytest.skip(f"no {library}; `tools/fetch_models.py FOLDER llama.cpp` fetches it for x86-64")
    with tempfile.TemporaryDirectory() as folder:
        token_ids, out = Path(folder, "token_ids.json"), Path(folder, "logits.npz")
        token_ids.write_text(json.dumps([list(text) for text in texts]))
        command = [sys.executable, str(LLAMA_CPP), str(library), "logits", str(model)]
        subprocess.run([*command, str(token_ids), str(out), "--cache", cache_type], check=True)
        with np.load(out) as found:
            return [log_softmax(found[f"arr_{index}"]) for index in range(len(texts))]


def multiple_choice() -> list[dict[str, Any]]:
    """Questions, each with `choices` and the index of the right one, `answer`."""
    questions: list[dict[str, Any]] = json.loads((DATA / "multiple_choice.json").read_text())
    return questions
