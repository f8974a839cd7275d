"""Text models of larger ones, as transformers writes the whole: the same logits for text, the other parts left out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.loading.open_model import open_stored_model
from support.checkpoints import checkpoint_config
from support.decoders import load_decoder
from support.decoding import prompt_logits
from support.golden_prompts import golden_prompts

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

OPS = NumpyBackend()
SIGLIP2 = "siglip2_vision_model"
SMALL = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
SIGLIP = {**SMALL, "num_hidden_layers": 1, "image_size": 32, "patch_size": 16}
PIXTRAL = {**SIGLIP, "head_dim": 16, "model_type": "pixtral"}
QWEN = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "patch_size": 4}


def of_qwen(hidden_size: int) -> dict[str, Any]:
    return {**QWEN, "out_hidden_size": hidden_size, "deepstack_visual_indexes": [0]}


@pytest.mark.parametrize(
    ("model_type", "family", "vision"),
    [
        ("gemma3", "gemma3", lambda _: SIGLIP),
        ("mistral3", "mistral", lambda _: PIXTRAL),
        ("mistral3", "ministral3", lambda _: PIXTRAL),
        ("lfm2_vl", "lfm2", lambda _: {**SIGLIP, "model_type": SIGLIP2, "num_patches": 4}),
        ("lfm2_vl", "lfm2-moe", lambda _: {**SIGLIP, "model_type": SIGLIP2, "num_patches": 4}),
        ("smolvlm", "llama", lambda _: SIGLIP),
        ("idefics3", "llama3", lambda _: SIGLIP),
        ("qwen2_vl", "qwen2", lambda size: {**QWEN, "embed_dim": 32, "hidden_size": size}),
        ("qwen2_5_vl", "qwen2", of_qwen),
        ("qwen3_5", "qwen3.5", of_qwen),
        ("qwen3_5_moe", "qwen3.5-moe", of_qwen),
    ],
)
def test_logits(
    model_type: str, family: str, vision: Callable[[int], dict[str, Any]], tmp_path: Path
) -> None:
    text = checkpoint_config(family)
    del text["architectures"]
    if model_type.startswith("qwen2"):
        text |= {
            "model_type": f"{model_type}_text",
            "layer_types": None,
            "use_sliding_window": False,
        }
        text["rope_parameters"] |= {"mrope_section": [4, 2, 2]}
    tied = text["tie_word_embeddings"]
    config = transformers.CONFIG_MAPPING[model_type](
        text_config=text, vision_config=vision(text["hidden_size"]), tie_word_embeddings=tied
    )
    config.get_text_config().initializer_range = 0.25
    torch.manual_seed(0)
    auto_class = transformers.AutoModelForImageTextToText
    auto_class.from_config(config).save_pretrained(tmp_path)
    model = auto_class.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager")
    decoder, facts = load_decoder(tmp_path, OPS)
    [note] = open_stored_model(tmp_path).notes
    assert note.startswith("left out: an encoder of images (")
    for prompt in golden_prompts():
        with torch.no_grad():
            expected = model(torch.tensor([prompt])).logits[0].numpy()
        actual = prompt_logits(decoder, facts, OPS, prompt)
        assert np.abs(actual - expected).max() <= 1e-4 * np.abs(expected).max()
