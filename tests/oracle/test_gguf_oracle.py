"""GGUF files, compared live with llama.cpp: the same tokens, and logits within its rounding.

llama-cpp-python is optional (`pip install llama-cpp-python` builds for some minutes).
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Type

from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.loading.open_model import open_stored_model
from pellucid.models.rope_config import FULL, every_nth_full
from support.checkpoints import write_checkpoint
from support.decoders import load_decoder
from support.decoding import prompt_logits
from support.gguf_files import GGUF_FAMILIES, GGUF_OVERRIDES, write_gguf

llama_cpp = pytest.importorskip("llama_cpp")

GGML_TYPE_F32 = 0
PROMPT = list(range(10, 50))
TEXTS = [
    "the quick brown fox jumps over the lazy dog",
    "naïve café – 你好世界\n\n  two  spaces\tand 1234567 numbers, isn't it?",
]


# What llama.cpp cannot be told about, or takes from elsewhere than the file.
OVERRIDES: dict[str, dict[str, Any]] = {
    **GGUF_OVERRIDES,
    # It knows no windows of these, and of EXAONE 4 in the size with 64 layers alone.
    "mistral": {"sliding_window": None},
    "phi3": {"sliding_window": None},
    "exaone4": {"layer_types": [FULL] * 3, "sliding_window": None},
    # The attention scale is that of the head, and one of six layers sees all tokens.
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": {
        "query_pre_attn_scalar": 16,
        "num_hidden_layers": 6,
        "layer_types": every_nth_full(6, 6),
    },
    # It rounds the range of frequencies that YaRN changes, which gpt-oss does not: factor 1 changes none.
    "gpt-oss": {
        "rope_parameters": {
            "factor": 1.0,
            "original_max_position_embeddings": 32,
            "rope_theta": 150000.0,
            "rope_type": "yarn",
            "truncate": False,
        }
    },
    "olmoe": {"num_key_value_heads": 4},  # as many as heads
    # It has no biases there.
    "ernie4_5": {"use_bias": False},
    "lfm2": {"conv_bias": False},
    # Keys and values of delta nets have the same width.
    **{
        family: {**GGUF_OVERRIDES[family], "linear_key_head_dim": 32}
        for family in ("qwen3.5", "qwen3.5-moe", "qwen3-next")
    },
}
# Rows that blocks of 256 divide.
WIDE = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
}


def write_both(
    directory: Path, family: str, config: dict[str, Any] | None = None, **options: Any
) -> Path:
    write_checkpoint(directory, family, config_overrides=config or OVERRIDES.get(family))
    return write_gguf(directory / "model.gguf", directory, **options)


def their_logits(file: Path) -> np.ndarray:
    llama = llama_cpp.Llama(
        str(file),
        n_ctx=64,
        n_threads=1,
        logits_all=True,
        verbose=False,
        type_k=GGML_TYPE_F32,
        type_v=GGML_TYPE_F32,
    )
    llama.eval(PROMPT)
    logits = np.array(llama.scores[: len(PROMPT)])
    llama.close()
    return logits


def our_logits(file: Path) -> np.ndarray:
    backend = NumpyBackend()
    decoder, config = load_decoder(file, backend)
    return prompt_logits(decoder, config, backend, PROMPT)


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


# The prompt is longer than the windows of Gemma 2, 3 and 4, gpt-oss and OLMo 3.
@pytest.mark.parametrize("family", GGUF_FAMILIES)
def test_logits(family: str, tmp_path: Path) -> None:
    file = write_both(tmp_path, family)
    assert relative_error(our_logits(file), their_logits(file)) < 2e-3


# Both sides round activations to 8 bits, each in its own groups: that is what is left.
@pytest.mark.parametrize(
    "matrix_type", [Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1]
)
def test_logits_of_quantized_files(matrix_type: Type, tmp_path: Path) -> None:
    file = write_both(tmp_path, "llama", matrix_type=matrix_type)
    assert relative_error(our_logits(file), their_logits(file)) < 6e-2


@pytest.mark.parametrize(
    "name", ["Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS", "Q8_0"]
)
def test_logits_of_files_that_llama_cpp_quantized(name: str, tmp_path: Path) -> None:
    file = write_both(tmp_path, "llama", WIDE)
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name}")
    parameters.nthread = 1
    quantized = tmp_path / "quantized.gguf"
    arguments = (str(file).encode(), str(quantized).encode(), parameters)
    assert llama_cpp.llama_model_quantize(*arguments) == 0
    assert relative_error(our_logits(quantized), their_logits(quantized)) < 1e-1
    assert quantized.stat().st_size < 0.6 * file.stat().st_size


@pytest.mark.parametrize("text", TEXTS)
def test_tokens(text: str, tmp_path: Path) -> None:
    file = write_both(tmp_path, "llama")
    llama = llama_cpp.Llama(str(file), vocab_only=True, verbose=False)
    expected = llama.tokenize(text.encode(), add_bos=False, special=True)
    tokenizer = open_stored_model(file).read_tokenizer()
    assert tokenizer is not None
    assert tokenizer.hf_tokenizer.encode(text).ids == expected
