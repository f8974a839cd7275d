"""config.json of every family: the facts that it gives, and the values that are refused."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.facts.model_config import (
    LinearRopeScaling,
    LongRopeScaling,
    ModelConfig,
    RopeConfig,
)
from pellucid.loading.hf_config import read_model_config
from pellucid.models.registry import supported_architectures
from support.checkpoints import FAMILIES, checkpoint_config
from support.refusals import check_refusals
from support.uniform_model import uniform_model

PROPORTIONAL = {"rope_type": "proportional", "partial_rotary_factor": 2}
REMOVED = ...  # as a value: the key is not there
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}


def read(
    directory: Path, family: str, generation_config: Any = None, **changes: Any
) -> ModelConfig:
    """The config of a family with some keys changed."""
    config = {
        key: value
        for key, value in (checkpoint_config(family) | changes).items()
        if value is not REMOVED
    }
    (directory / "config.json").write_text(json.dumps(config))
    if generation_config is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation_config))
    return read_model_config(directory)


def read_rope(directory: Path, family: str, **rope: Any) -> RopeConfig:
    config = read(directory, family, rope_parameters=rope)
    [rope] = config.ropes
    return rope


def fact(config: ModelConfig, name: str) -> Any:
    """A field of the model, of its "attention." or "mlp.", the same in all layers, or all "windows"."""
    if name == "windows":
        return tuple(layer.attention.window for layer in config.layers)
    if "." not in name:
        return getattr(config, name)
    part, field = name.split(".")
    [value] = {getattr(getattr(layer, part), field) for layer in config.layers}
    return value


# -- facts -----------------------------------------------------------------------------------------


def test_llama(tmp_path: Path) -> None:
    assert read(tmp_path, "llama", attention_bias=True, mlp_bias=True) == uniform_model(
        architecture="LlamaForCausalLM",
        vocab_size=320,
        hidden_size=64,
        intermediate_size=96,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        norm_eps=1e-5,
        activation="silu",
        rope=RopeConfig(theta=10000.0, dim=16),
        scale=0.25,
        windows=(None, None, None),
        attention={"qkv_bias": True, "o_bias": True},
        mlp={"bias": True},
        bos_token_id=0,
        eos_token_ids=(1,),
    )


@pytest.mark.parametrize("head_dim", [REMOVED, None])
def test_head_dim_is_an_even_share(tmp_path: Path, head_dim: object) -> None:
    config = read(tmp_path, "llama", head_dim=head_dim, hidden_size=96)
    assert fact(config, "attention.head_dim") == 24
    assert fact(config, "attention.scale") == 24**-0.5


ACTIVATIONS = {
    "silu": "silu swish",
    "gelu": "gelu",
    "gelu_tanh": "gelu_new gelu_pytorch_tanh",
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activation(tmp_path: Path, activation: str) -> None:
    for name in ACTIVATIONS[activation].split():
        assert read(tmp_path, "llama", hidden_act=name).layers[0].mlp.activation == activation


# -- rope ------------------------------------------------------------------------------------------

SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 2.5},
    {"rope_type": "dynamic", "factor": 2.0},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
]


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: scaling["rope_type"])
def test_old_and_new_spelling(tmp_path: Path, scaling: dict[str, Any]) -> None:
    new = read(tmp_path, "llama", rope_parameters=scaling | {"rope_theta": 5e5})
    old = {"rope_parameters": REMOVED, "rope_theta": 5e5}
    renamed = {("type" if key == "rope_type" else key): value for key, value in scaling.items()}
    assert read(tmp_path, "llama", **old, rope_scaling=scaling) == new
    assert read(tmp_path, "llama", **old, rope_scaling=renamed) == new
    assert new.ropes[0].theta == 5e5


@pytest.mark.parametrize("name", ["longrope", "su", "yarn"])
def test_longrope(tmp_path: Path, name: str) -> None:
    rope = checkpoint_config("phi3-longrope")["rope_parameters"]
    assert read_rope(tmp_path, "phi3-longrope", **(rope | {"rope_type": name})) == RopeConfig(
        theta=10000.0,
        dim=12,
        scaling=LongRopeScaling(
            short_factor=(1.0, 1.0, 1.1, 1.2, 1.3, 1.5),
            long_factor=(1.0, 1.5, 2.0, 3.5, 5.0, 8.0),
            original_max_position=32,
            attention_factor=math.sqrt(1 + math.log(256 / 32) / math.log(32)),
        ),
    )


def test_both_spellings_at_once(tmp_path: Path) -> None:
    scaling = {"type": "linear", "factor": 2.0}
    config = read(tmp_path, "llama", rope_parameters={"rope_type": "default"}, rope_scaling=scaling)
    assert config.ropes[0] == RopeConfig(10000.0, 16, LinearRopeScaling(2.0))  # as in transformers


# -- end of sequence -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("in_config", "in_generation_config", "union"),
    [
        (1, None, (1,)),
        (1, {}, (1,)),
        (1, {"eos_token_id": 2}, (1, 2)),
        ([3, 1], {"eos_token_id": [1, 2]}, (3, 1, 2)),
        (None, {"eos_token_id": [2]}, (2,)),
        (None, {"eos_token_id": None}, ()),
        (32000, {"eos_token_id": [2, 320]}, (2,)),  # the vocabulary ends at 319
    ],
)
def test_eos_token_ids(
    tmp_path: Path, in_config: object, in_generation_config: object, union: tuple[int, ...]
) -> None:
    config = read(tmp_path, "llama", in_generation_config, eos_token_id=in_config)
    assert config.eos_token_ids == union


# -- bad input -------------------------------------------------------------------------------------


BAD_VALUES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"hidden_size": REMOVED, "num_attention_heads": 6, "head_dim": None}),
    ("llama", {"num_key_value_heads": 3}),
    ("llama", {"head_dim": None, "hidden_size": 63}),
    ("llama", {"rms_norm_eps": math.nan}),
    ("llama", {"rms_norm_eps": math.inf}),
    ("qwen2", {"is_causal": False}),
    ("llama", {"is_causal": 0}),
    ("llama", {"eos_token_id": -1}),
    ("llama", {"eos_token_id": [1, "2"]}),
    ("llama", {"bos_token_id": [0, 1]}),
    ("llama", {"quantization_config": {"quant_method": "hqq"}}),
    ("llama", {"layer_types": ["sliding_attention"] * 3}),
    ("mistral", {"layer_types": ["full_attention"] * 3}),
    ("qwen2", {"layer_types": ["full_attention"]}),
    ("qwen2", {"layer_types": ["chunked_attention"] * 3}),
    ("qwen2", {"layer_types": "full_attention"}),
    ("llama", {"rope_parameters": []}),
    ("llama", {"partial_rotary_factor": 0.5}),
    ("llama", {"head_dim": 2, "rope_parameters": {"rope_type": "dynamic", "factor": 2}}),
    *(
        ("llama", {"rope_parameters": {"rope_type": name, "factor": 1e7}})
        for name in ("linear", "dynamic")
    ),
    ("phi3", {"partial_rotary_factor": 0.1, "rope_parameters": {}}),
]


def test_bad_values_are_refused_by_file_and_name(tmp_path: Path) -> None:
    def read_changed(case: tuple[str, dict[str, Any]]) -> None:
        family, changes = case
        read(tmp_path, family, **changes)

    cases = BAD_VALUES + BAD_FACTS + [("llama", {"rope_parameters": rope}) for rope in BAD_ROPES]
    check_refusals("config_value", cases, read_changed, hidden=tmp_path)


BAD_ROPES: list[dict[str, Any]] = [
    {"rope_type": "linear"},
    {"rope_type": "default", "factor": 2.0},
    YARN | {"short_factor": [1.0]},
    {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 7},
]


@pytest.mark.parametrize(
    "architectures", [REMOVED, None, [], ["BertForMaskedLM"], "LlamaForCausalLM", [1], {}]
)
def test_unknown_architecture(tmp_path: Path, architectures: object) -> None:
    with pytest.raises(ValueError, match=r'architectures=|model_type="bert"'):
        read(tmp_path, "llama", architectures=architectures, model_type="bert")


@pytest.mark.parametrize("architectures", [REMOVED, None, []])
def test_without_architectures_the_model_type_says_what_it_is(
    tmp_path: Path, architectures: object
) -> None:
    assert read(tmp_path, "qwen3", architectures=architectures) == read(tmp_path, "qwen3")


def test_the_longest_context(tmp_path: Path) -> None:
    longest = read(tmp_path, "llama", max_position_embeddings=2**31 - 1)
    assert longest.context_length == 2**31 - 1


def test_unknown_architecture_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r'architectures=\["MambaForCausalLM"\]') as error:
        read(tmp_path, "llama", architectures=["MambaForCausalLM"])
    for architecture in supported_architectures():
        assert architecture in str(error.value)


NO_OBJECTS = [
    "",
    '{"hidden_size": 64',
    "[]",
    "[" * 100_000,
    "[" + "[]," * 100_000,
    "[" + "[]," * 99_999,
    '{"a": "' + "x" * (16 << 20),
    '{"architectures": %s}' % ("[" * 900 + "]" * 900),
    "\udcff",
]


def test_not_a_json_object(tmp_path: Path) -> None:
    def read_text(text: str) -> None:
        (tmp_path / "config.json").write_bytes(text.encode(errors="surrogateescape"))
        read_model_config(tmp_path)

    check_refusals("config_text", NO_OBJECTS, read_text, hidden=tmp_path)


def test_no_config(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"config\.json: no such file"):
        read_model_config(tmp_path)


def test_bad_generation_config(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r'generation_config\.json: eos_token_id="x"'):
        read(tmp_path, "llama", {"eos_token_id": "x"})


BAD_FACTS: list[tuple[str, dict[str, Any]]] = [
    ("smollm3", {"no_rope_layers": [1, 1]}),
    ("gemma3", {"layer_types": REMOVED, "sliding_window_pattern": 0}),
    ("gemma3", {"rope_parameters": {"sliding_attention": {"rope_theta": 1.0}}}),
    ("gemma4", {"use_bidirectional_attention": "all"}),
    ("gemma4", {"per_layer_config": {"0": {"head_dim": 8}}}),
    ("gemma4", {"per_layer_config": {"2": {"head_dim": 8}, "4": {"head_dim": 16}}}),
    ("gemma4", {"rope_parameters": {"full_attention": PROPORTIONAL}}),
    ("gemma4-moe", {"num_global_key_value_heads": 3}),
    ("olmo3", {"layer_types": ["full_attention"]}),
    ("exaone4", {"layer_types": REMOVED, "sliding_window_pattern": "LLG"}),
    ("glm4", {"partial_rotary_factor": 0.06}),
    ("hunyuan", {"head_dim": 15}),
    ("lfm2", {"layer_types": ["conv"] * 4}),
    ("lfm2", {"layer_types": ["conv", "mamba"]}),
    ("lfm2", {"layer_types": REMOVED, "full_attn_idxs": [4]}),
    ("lfm2", {"block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1e-9}),
    ("qwen3.5", {"layer_types": ["linear_attention"] * 4}),
    ("qwen3-next", {"mlp_only_layers": ["0"]}),
    ("granite-4", {"layer_types": ["mamba", "attention", "mamba"], "num_local_experts": 64}),
    ("granite-4", {"layer_types": REMOVED}),
    ("granite-4", {"layer_types": ["attention"]}),
    ("llama", {"architectures": ["Mamba2ForCausalLM"]}),
]


# -- the text model of a larger one ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "architecture"),
    [
        ("gemma3", "Gemma3ForConditionalGeneration"),
        ("gemma4", "Gemma4ForConditionalGeneration"),
        ("mistral", "Mistral3ForConditionalGeneration"),
        ("ministral3", "Mistral3ForConditionalGeneration"),
        ("lfm2", "Lfm2VlForConditionalGeneration"),
        ("llama", "SmolVLMForConditionalGeneration"),
        ("llama", "Idefics3ForConditionalGeneration"),
        ("qwen2.5-vl", "Qwen2_5_VLForConditionalGeneration"),
    ],
)
def test_text_config_has_the_facts(tmp_path: Path, family: str, architecture: str) -> None:
    text = checkpoint_config(family)
    alone = read(tmp_path, family)
    del text["architectures"]
    config = {"architectures": [architecture], "text_config": text, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_model_config(tmp_path) == alone


def test_a_text_model_that_was_saved_alone_under_the_name_of_the_whole(tmp_path: Path) -> None:
    architectures = ["Qwen3_5MoeForConditionalGeneration"]
    alone = read(tmp_path, "qwen3.5-moe")
    assert read(tmp_path, "qwen3.5-moe", architectures=architectures) == alone


@pytest.mark.parametrize(
    ("of_whole", "of_text", "ends"),
    [
        ({"eos_token_id": [1, 106]}, {"eos_token_id": 1}, (1, 106)),
        ({"eos_token_id": 46}, {"eos_token_id": 44}, (44, 46)),
        ({"eos_token_id": [5, 6]}, {}, (5, 6)),
        ({}, {}, (1,)),
    ],
)
def test_end_tokens_of_the_whole_and_of_its_text_model(
    tmp_path: Path, of_whole: dict[str, Any], of_text: dict[str, Any], ends: tuple[int, ...]
) -> None:
    text = {
        key: value
        for key, value in checkpoint_config("gemma4").items()
        if key not in ("eos_token_id", "architectures")
    }
    config = {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "text_config": text | of_text,
        **of_whole,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_model_config(tmp_path).eos_token_ids == ends


def test_sizes_that_a_text_config_leaves_out(tmp_path: Path) -> None:
    """As Gemma 3 27B was published: only what differs from the defaults of its configuration class."""
    text = {"hidden_size": 5376, "model_type": "gemma3_text", "num_hidden_layers": 2}
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = read_model_config(tmp_path)
    assert (model.vocab_size, model.hidden_size) == (262_208, 5376)
    assert fact(model, "mlp.intermediate_size") == 9216


@pytest.mark.parametrize(("window", "kept"), [(None, "full"), (4, "sliding")])
def test_layer_types_of_a_family_with_one_type(
    tmp_path: Path, window: int | None, kept: str
) -> None:
    expected = read(tmp_path, "mistral", sliding_window=window, layer_types=REMOVED)
    for name in ("full", "sliding"):
        given = {"sliding_window": window, "layer_types": [f"{name}_attention"] * 4}
        if name == kept:
            assert read(tmp_path, "mistral", **given) == expected
        else:
            with pytest.raises(ValueError, match=f"has one type, .*: {kept}_attention"):
                read(tmp_path, "mistral", **given)


def test_older_names_of_lfm2_and_its_adjusted_width(tmp_path: Path) -> None:
    named = read(tmp_path, "lfm2", intermediate_size=48, tie_word_embeddings=False)
    older = {"block_ff_dim": 48, "tie_embedding": False}
    assert named == read(tmp_path, "lfm2", **older, intermediate_size=7)
    for multiplier, width in ((None, 32), (1.5, 50), (1.6, 60)):
        adjusts = {"block_auto_adjust_ff_dim": True, "block_multiple_of": 10}
        model = read(tmp_path, "lfm2", **older, **adjusts, block_ffn_dim_multiplier=multiplier)
        assert fact(model, "mlp.intermediate_size") == width


def test_zero_means_none(tmp_path: Path) -> None:
    """As Devstral 2 was published."""
    rope = {**YARN, "mscale": 1.0, "mscale_all_dim": 0.0, "llama_4_scaling_beta": 0.0}
    zeros = read(tmp_path, "ministral3", rope_parameters=rope)
    assert zeros == read(tmp_path, "ministral3", rope_parameters=YARN)


def test_an_unknown_text_model_is_named(tmp_path: Path) -> None:
    text = {"model_type": "mamba"}
    config = {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ValueError, match=r'text_config\.model_type="mamba": no family has what it needs: Mamba'
    ):
        read_model_config(tmp_path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3)
    ),
    max_leaves=5,
)


@given(st.data())
def test_any_value_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    family = data.draw(st.sampled_from(FAMILIES))
    config = checkpoint_config(family)
    holders = [config] + [config[key] for key in config if isinstance(config[key], dict)]
    for _ in range(data.draw(st.integers(1, 3))):
        holder = data.draw(st.sampled_from(holders))
        holder[data.draw(st.sampled_from(sorted(holder)))] = data.draw(json_values)
    path = tmp_path_factory.mktemp("fuzz") / "config.json"
    path.write_text(json.dumps(config))
    message = None
    try:
        read_model_config(path.parent)
    except ValueError as error:
        message = str(error)
    assert message is None or message.startswith(f"{path}: ")
