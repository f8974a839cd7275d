"""Loading, compared live with transformers: the same configuration and weights for each family."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.facts.model_config import (
    AttentionConfig,
    GatedDeltaNetConfig,
    LayerConfig,
    LongRopeScaling,
    ShortConvolutionConfig,
    YarnRopeScaling,
)
from support.checkpoints import FAMILIES, checkpoint_config
from support.decoders import load_decoder
from support.recording_backend import RecordingBackend

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
transformers_models = pytest.importorskip("support.transformers_models")

SIZES = (
    *("hidden_size", "intermediate_size", "vocab_size"),
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("n_embd", "n_layer", "n_head", "n_positions"),
)


def transformers_model(config: dict[str, Any]) -> Any:
    facts = {
        key: value for key, value in config.items() if key not in ("architectures", "model_type")
    }
    torch.manual_seed(0)
    model = transformers_models.make_theirs(
        transformers.CONFIG_MAPPING[config["model_type"]](**facts)
    )
    for name, parameter in model.named_parameters():  # norms and biases are born as ones and zeros
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=float("norm" in name))
    return model


def only_sizes(config: dict[str, Any]) -> dict[str, Any]:
    """What is left when every key that may be missing is."""
    if "text_config" in config:
        keep = ["model_type", "vision_config"]
        whole = {key: value for key, value in config.items() if key in keep}
        return whole | {"text_config": only_sizes(config["text_config"])}
    keep = [*SIZES, "model_type", "pad_token_id", "vision_config"]
    if config["model_type"] in ("lfm2_moe", "granitemoehybrid"):  # no default, or another model
        keep += ["layer_types", "num_local_experts", "mamba_n_heads"]
    sizes = {key: value for key, value in config.items() if key in keep}
    return sizes | {"pad_token_id": 0}


def as_we_keep_it(name: str, numbers: Any, family: str, logits_scale: float) -> Any:
    """Norms whole where they are stored as their distance from 1; the last one times what scales the logits."""
    if family == "gemma" or family.startswith(("gemma2", "gemma3", "qwen3.5", "qwen3-next")):
        if name.endswith("norm.weight") and "linear_attn" not in name:
            return numbers + 1
        if name.endswith("A_log"):
            return -np.exp(numbers)
    if name.endswith(
        "router.scale"
    ):  # Gemma 4: the router's input is divided by the root of its width
        return numbers * np.float32(numbers.size**-0.5)
    if name.endswith(
        "per_layer_projection_norm.weight"
    ):  # of the two parts of a sum, over its root
        return numbers * np.float32(2**-0.5)
    return numbers * np.float32(logits_scale) if name == "model.norm.weight" else numbers


def stored_numbers(model: Any) -> list[tuple[str, Any]]:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [
        (name, tensor.detach().numpy())
        for name, tensor in tensors
        if ".visual." not in name
        and (
            isinstance(tensor, torch.nn.Parameter) or name.endswith(("expert_bias", "layer_scalar"))
        )
    ]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("defaults", [False, True], ids=["given", "defaults"])
def test_saved_checkpoint(family: str, defaults: bool, tmp_path: Path) -> None:
    config = checkpoint_config(family)
    model = transformers_model(only_sizes(config) if defaults else config)
    model.save_pretrained(tmp_path, max_shard_size="200KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1

    backend = RecordingBackend()
    _, ours = load_decoder(tmp_path, backend)
    theirs = model.config.get_text_config()
    assert ours.vocab_size == theirs.vocab_size
    assert ours.hidden_size == theirs.hidden_size
    assert ours.num_layers == theirs.num_hidden_layers
    for layer in ours.layers:
        assert layer.attention is None or layer.attention.num_heads == theirs.num_attention_heads
    assert ours.max_position_embeddings == theirs.max_position_embeddings
    assert ours.tie_word_embeddings == model.config.tie_word_embeddings
    assert ours.bos_token_id == getattr(theirs, "bos_token_id", None)
    eos = getattr(theirs, "eos_token_id", None)
    eos = [] if eos is None else eos if isinstance(eos, list) else [eos]
    assert ours.eos_token_ids == tuple(i for i in eos if i < theirs.vocab_size)

    numbers = [
        as_we_keep_it(name, array, family, ours.logits_scale).ravel()
        for name, array in stored_numbers(model)
    ]
    read = np.concatenate([array.ravel() for array in backend.arrays])
    np.testing.assert_array_equal(np.sort(read), np.sort(np.concatenate(numbers)))


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "gpt2"])
@pytest.mark.parametrize("defaults", [False, True], ids=["given", "defaults"])
def test_facts_of_the_layers(family: str, defaults: bool, tmp_path: Path) -> None:
    config = checkpoint_config(family)
    model = transformers_model(only_sizes(config) if defaults else config)
    model.save_pretrained(tmp_path)
    _, ours = load_decoder(tmp_path, RecordingBackend())
    theirs = model.config.get_text_config()
    layers = getattr(model.model, "language_model", model.model).layers
    for layer, our_layer in zip(layers, ours.layers, strict=True):
        if our_layer.attention is not None:
            compare_attention(our_layer.attention, layer.self_attn, theirs)
        else:
            compare_recurrence(our_layer, layer)
        compare_feed_forward(our_layer, layer)
        norm = getattr(layer, "post_attention_layernorm", None) or layer.ffn_norm
        eps = norm.eps if hasattr(norm, "eps") else norm.variance_epsilon
        assert ours.norm_eps == eps / getattr(theirs, "residual_multiplier", 1.0) ** 2
    assert ours.logits_softcap == getattr(theirs, "final_logit_softcapping", None)


def compare_attention(our: AttentionConfig, attention: Any, theirs: Any) -> None:
    assert our.head_dim == attention.head_dim
    assert our.num_heads // our.num_kv_heads == attention.num_key_value_groups
    assert our.scale == attention.scaling
    same_everywhere = theirs.model_type in ("mistral", "phi3")
    expected = (
        theirs.sliding_window if same_everywhere else getattr(attention, "sliding_window", None)
    )
    assert our.window == (expected if getattr(attention, "is_sliding", True) else None)
    q_proj = getattr(attention, "q_proj", None) or attention.qkv_proj
    assert our.qkv_bias == (q_proj.bias is not None)
    o_proj = getattr(attention, "o_proj", None) or attention.out_proj
    assert our.o_bias == (o_proj.bias is not None)
    num_queries = our.num_heads * our.head_dim
    if hasattr(attention, "q_proj"):
        assert q_proj.out_features == (2 if our.gated_output else 1) * num_queries
    norms = ("q_norm", "query_layernorm", "q_layernorm")
    assert (our.qk_norm is not None) == any(hasattr(attention, norm) for norm in norms)
    assert our.softcap == getattr(theirs, "attn_logit_softcapping", None)


def compare_recurrence(our_layer: LayerConfig, layer: Any) -> None:
    our = our_layer.recurrence
    if isinstance(our, ShortConvolutionConfig):
        assert our.num_channels == layer.conv.conv.in_channels
        assert our.kernel_size == layer.conv.conv_kernel_size
        assert our.bias == layer.conv.bias
        return
    assert isinstance(our, GatedDeltaNetConfig)
    net = layer.linear_attn
    assert (our.num_key_heads, our.num_value_heads) == (net.num_k_heads, net.num_v_heads)
    assert (our.key_dim, our.value_dim) == (net.head_k_dim, net.head_v_dim)
    assert our.kernel_size == net.conv_kernel_size


def compare_feed_forward(our_layer: LayerConfig, layer: Any) -> None:
    names = ("mlp", "feed_forward", "block_sparse_moe", "shared_mlp")
    block = next(own for name in names if (own := getattr(layer, name, None)) is not None)
    experts = our_layer.experts
    if hasattr(layer, "router"):  # Gemma 4: experts beside the MLP
        assert experts is not None and our_layer.mlp is not None
        assert experts.num_experts == layer.router.proj.out_features
        assert experts.num_chosen == layer.router.config.top_k_experts
        assert experts.intermediate_size == layer.experts.intermediate_dim
    elif experts is not None:
        router = block.router if hasattr(block, "router") else block.gate
        assert experts.num_experts == router.weight.shape[0]
        assert experts.num_chosen == router.top_k
        # [experts, in, out] or [experts, out, in]
        assert experts.intermediate_size in block.experts.down_proj.shape[1:]
        assert experts.shared_gate == hasattr(block, "shared_expert_gate")
        block = getattr(block, "shared_expert", None)
    if our_layer.mlp is not None:
        names = ("down_proj", "w2", "output_linear")
        down_proj = next(getattr(block, name) for name in names if hasattr(block, name))
        assert our_layer.mlp.bias == (down_proj.bias is not None)
        assert our_layer.mlp.intermediate_size == down_proj.in_features
    else:
        assert experts is not None and block is None


def with_rope(family: str, **changes: Any) -> dict[str, Any]:
    config = checkpoint_config(family)
    return config | {"rope_parameters": config["rope_parameters"] | changes}


@pytest.mark.parametrize(
    "config",
    [
        with_rope("llama-yarn"),
        with_rope("llama-yarn", factor=4.0, mscale=0.8, mscale_all_dim=1.2),
        with_rope("llama-yarn", mscale=0.8),
        with_rope(
            "llama-yarn", attention_factor=1.25, beta_fast=20.0, beta_slow=2.0, truncate=False
        ),
        with_rope("phi3-longrope"),
        with_rope("phi3-longrope", factor=2.0),
        with_rope("phi3-longrope", attention_factor=1.25),
        with_rope("phi3-longrope") | {"original_max_position_embeddings": 256},
    ],
)
def test_derived_rope_facts(config: dict[str, Any], tmp_path: Path) -> None:
    model = transformers_model(config)
    model.save_pretrained(tmp_path)
    _, ours = load_decoder(tmp_path, RecordingBackend())
    theirs = model.config.rope_parameters
    derive = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[theirs["rope_type"]]
    _, attention_factor = derive(model.config, "cpu")
    [rope] = ours.ropes
    scaling = rope.scaling
    assert isinstance(scaling, YarnRopeScaling | LongRopeScaling)
    assert scaling.attention_factor == attention_factor
    assert scaling.original_max_position == theirs["original_max_position_embeddings"]
    assert rope.theta == theirs["rope_theta"]
    assert 2 * len(model.model.rotary_emb.inv_freq) == rope.dim
