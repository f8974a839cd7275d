"""Checkpoints that other quantizers wrote compute with their own numbers, and damaged ones are refused by name."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pellucid.backends.choice import make_backend
from pellucid.backends.cpu.backend import CpuBackend
from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.backends.quantization.formats import (
    INT4_G128_ZP,
    INT4_MIN,
    INT8_CHANNEL,
    INT8_MIN,
    MXFP4,
)
from pellucid.backends.quantization.matrix import QuantizedMatrix
from pellucid.benchmark.planned_model import plan_stored_model
from pellucid.inputs.config import EngineConfig
from pellucid.loading.files import MappedFile
from pellucid.loading.open_model import open_stored_model
from support.checkpoints import write_checkpoint
from support.decoders import load_decoder
from support.decoding import prompt_logits
from support.foreign_checkpoints import (
    WriteMatrix,
    awq,
    compressed_int8,
    fp8,
    gptq,
    llm_int8,
    mlx,
    mlx_mxfp4,
    nf4,
    nf4_plain,
    nvfp4,
    packed_codes,
    write_arrays,
    write_foreign_checkpoint,
    write_gpt_oss,
)
from support.recording_backend import RecordingBackend
from support.refusals import check_refusals

EXACT = NumpyBackend(quantize_activations=False)
PROMPT = list(range(10, 30))


def compressed(format_name: str, **weights: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": format_name,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": False}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
INT4 = {"num_bits": 4, "type": "int", "group_size": 128, "strategy": "group"}
INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
BLOCKS = {"strategy": "block", "block_structure": [128, 1.5]}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}

MLX = {"group_size": 64, "bits": 4}

CASES: dict[str, tuple[dict[str, Any], WriteMatrix]] = {
    "awq": (AWQ, awq(128)),
    "awq-g64": (AWQ | {"group_size": 64}, awq(64)),
    "awq-rows": ({"quant_method": "awq", "w_bit": 4, "q_group_size": -1}, awq(None)),
    "gptq": (GPTQ, gptq(128)),
    "gptq-g64": (GPTQ | {"group_size": 64}, gptq(64)),
    "gptq-v2": (GPTQ | {"group_size": 32, "checkpoint_format": "gptq_v2"}, gptq(32, offset=0)),
    "gptq-3": (GPTQ | {"bits": 3}, gptq(128, bits=3)),
    "gptq-2": (GPTQ | {"bits": 2}, gptq(128, bits=2)),
    "gptq-8": (GPTQ | {"bits": 8, "sym": True}, gptq(128, bits=8)),
    "fp8": (FP8, fp8((128, 128))),
    # Blocks that the pieces in which they are read do not divide
    "fp8-blocks": (FP8 | {"weight_block_size": [192, 96]}, fp8((192, 96))),
    "fp8-rows": ({"quant_method": "fbgemm_fp8"}, fp8(None, ".weight_scale")),
    "int4": (compressed("pack-quantized", **INT4, symmetric=True), packed_codes(128, True)),
    "int4-zp": (compressed("pack-quantized", **INT4, symmetric=False), packed_codes(128, False)),
    "int4-rows": (compressed("pack-quantized", num_bits=4, type="int", strategy="channel"), packed_codes(None, True)),
    "int8-packed": (compressed("pack-quantized", **INT4 | {"num_bits": 8}), packed_codes(128, True, bits=8)),
    "int8-naive": (compressed("naive-quantized", **INT8), compressed_int8),
    "int8": (compressed("int-quantized", **INT8), compressed_int8),
    "float8": (compressed("float-quantized", **FLOAT8), fp8(None, ".weight_scale")),
    "float8-naive": (compressed("naive-quantized", **FLOAT8), fp8(None, ".weight_scale")),
    "float8-blocks": (
        compressed(
            "float-quantized", **FLOAT8 | {"strategy": "block", "block_structure": [128, 96]}
        ),
        fp8((128, 96), ".weight_scale"),
    ),
    "nf4": (NF4, nf4),
    "nf4-plain": (NF4, nf4_plain),
    "int8-rows": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, llm_int8),
    "mlx-4": (MLX, mlx(64, 4)),
    "mlx-4-g32-f16": (MLX | {"group_size": 32, "mode": "affine"}, mlx(32, 4, "float16")),
    "mlx-8": (MLX | {"group_size": 128, "bits": 8}, mlx(128, 8)),
    "mlx-6": (MLX | {"bits": 6}, mlx(64, 6)),
    "mlx-5": (MLX | {"bits": 5}, mlx(64, 5)),
    "mlx-3": (MLX | {"bits": 3}, mlx(64, 3)),
    "mlx-2": (MLX | {"bits": 2}, mlx(64, 2)),
    "mlx-mxfp4": ({"group_size": 32, "bits": 4, "mode": "mxfp4"}, mlx_mxfp4),
    "modelopt-fp8": ({"quant_method": "modelopt", "quant_algo": "FP8"}, fp8(None, ".weight_scale")),
    "modelopt-nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, nvfp4),
}  # fmt: skip


def logits(path: Path) -> np.ndarray:
    decoder, config = load_decoder(path, EXACT)
    return prompt_logits(decoder, config, EXACT, PROMPT)


@pytest.fixture(scope="module", params=CASES)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_foreign_checkpoint(tmp_path_factory.mktemp("written"), *CASES[request.param])


def test_the_numbers_are_those_of_the_file(written: Path) -> None:
    assert (logits(written) == logits(written / "floats")).all()


@pytest.mark.parametrize("written", ["awq"], indirect=True)
def test_no_array_stays_in_memory_beside_the_weights(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed = set[tuple[int, int]]()
    monkeypatch.setattr(MappedFile, "release", lambda _, *place: freed.add(place))
    load_decoder(written, EXACT)
    file = (written / "model.safetensors").read_bytes()
    num_header_bytes = 8 + int.from_bytes(file[:8], "little")
    assert sum(end - start for start, end in freed) == len(file) - num_header_bytes


def test_the_headers_say_what_a_step_takes(written: Path) -> None:
    settings, model = EngineConfig(backend="cpu", num_threads=2), open_stored_model(written)
    for name in model.tensors:
        matrix = model.tensors.tensor(name)
        assert (
            not isinstance(matrix, QuantizedMatrix)
            or model.tensors.matrix_format(name) == matrix.format
        )
    planned = plan_stored_model("written", model, settings)
    backend = make_backend(settings)
    decoder, config = load_decoder(written, backend)
    taken = backend.compile(decoder, config).scratch_bytes(settings.max_num_batched_tokens)
    assert planned.models.model.scratch_bytes == taken


def test_experts_of_gpt_oss(tmp_path: Path) -> None:
    path = write_gpt_oss(tmp_path)
    assert (logits(path) == logits(path / "floats")).all()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("awq", INT4_G128_ZP),
        ("int8", INT8_CHANNEL),
        ("int8-rows", INT8_CHANNEL),
        ("mlx-4", INT4_MIN),
        ("mlx-8", INT8_MIN),
        ("gpt-oss", MXFP4),
    ],
)
def test_codes_stay_codes_and_run_natively(name: str, expected: Any, tmp_path: Path) -> None:
    is_gpt_oss = name == "gpt-oss"
    path = (
        write_gpt_oss(tmp_path) if is_gpt_oss else write_foreign_checkpoint(tmp_path, *CASES[name])
    )
    weights = RecordingBackend()
    load_decoder(path, weights)
    matrices = [weight for weight in weights.arrays if isinstance(weight, QuantizedMatrix)]
    assert matrices and all(matrix.format == expected for matrix in matrices)

    model = open_stored_model(path)
    name = next(each for each in model.tensors if each.endswith(("o_proj.weight", "gate_up_proj")))
    tensor = model.tensors.tensor(name)
    assert isinstance(tensor, QuantizedMatrix) is (not is_gpt_oss or "gate_up" in name)
    backend = CpuBackend(num_threads=2, quantize_activations=False)
    decoder, config = load_decoder(path, backend)
    actual = prompt_logits(backend.compile(decoder, config), config, backend, PROMPT)
    wanted = logits(path)
    assert np.abs(actual - wanted).max() < 1e-4 * np.abs(wanted).max()


def test_memory_is_counted_in_the_format_that_weights_become(tmp_path: Path) -> None:
    tensors = open_stored_model(write_foreign_checkpoint(tmp_path, *CASES["fp8"])).tensors
    name = "model.layers.0.mlp.down_proj.weight"
    assert tensors.matrix_format(name).num_bytes(256, 384) == 256 * 384 * 2
    assert tensors.info(name).num_bytes == 256 * 384 + 4 * 2 * 3


@pytest.mark.parametrize(
    ("settings_file", "settings", "write_matrix"),
    [
        ("quantize_config.json", {"bits": 4, "group_size": 128, "desc_act": False}, gptq(128)),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 64, "zero_point": True}, awq(64)),
        (
            "hf_quant_config.json",
            {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}},
            fp8(None, ".weight_scale"),
        ),
        ("config.json", {"quant_algo": "FP8"}, fp8(None, ".weight_scale")),
    ],
)
def test_settings_in_the_files_of_other_tools(
    settings_file: str, settings: dict[str, Any], write_matrix: WriteMatrix, tmp_path: Path
) -> None:
    path = write_foreign_checkpoint(tmp_path, settings, write_matrix, settings_file=settings_file)
    assert (logits(path) == logits(path / "floats")).all()


@pytest.mark.parametrize("value", [0, 1])
def test_biases_of_zeros_that_the_model_does_not_have(value: int, tmp_path: Path) -> None:
    """As the first AutoGPTQ wrote them for each matrix."""

    def add(arrays: dict[str, np.ndarray]) -> None:
        arrays[f"{O_PROJ}.bias"] = np.full(256, value, np.float16)

    path = write_foreign_checkpoint(tmp_path, *CASES["gptq"], edit=add)
    if value:
        with pytest.raises(ValueError, match=r"no place for the tensors .*o_proj\.bias"):
            load_decoder(path, EXACT)
    else:
        assert (logits(path) == logits(path / "floats")).all()


def test_mlx_quantizes_the_embedding_too(tmp_path: Path) -> None:
    path = write_foreign_checkpoint(tmp_path, *CASES["mlx-4"], with_embedding=True)
    assert (logits(path) == logits(path / "floats")).all()
    weights = RecordingBackend()
    _, config = load_decoder(path, weights)
    assert config.tie_word_embeddings
    formats = [each.format for each in weights.arrays if isinstance(each, QuantizedMatrix)]
    assert formats == [INT4_MIN] * 5  # q, k, v and gate, up are joined


def test_modules_of_mlx_with_bits_of_their_own(tmp_path: Path) -> None:
    """As mlx-lm's mixed recipes write them: 8 bits where errors cost most."""

    def write(n: int, k: int, rng: np.random.Generator) -> Any:
        return mlx(32, 8)(n, k, rng) if k == 384 else mlx(64, 4)(n, k, rng)

    own = {"model.layers.0.mlp.down_proj": {"group_size": 32, "bits": 8}, "lm_head": False}
    path = write_foreign_checkpoint(tmp_path, MLX | own, write)
    assert (logits(path) == logits(path / "floats")).all()


def test_experts_of_mlx_stand_in_one_tensor(tmp_path: Path) -> None:
    arrays: dict[str, np.ndarray] = {}
    rng = np.random.default_rng(0)

    def quantize(weights: dict[str, np.ndarray]) -> None:
        stacks: dict[str, list[Any]] = {}
        for name, weight in weights.items():
            if ".experts." not in name:
                arrays[name] = weight
                continue
            parts, floats = mlx(32, 4)(*weight.shape, rng)
            weights[name] = floats.astype(np.float32)
            stack = re.sub(r"experts\.\d+", "switch_mlp", name.removesuffix(".weight"))
            stacks.setdefault(stack, []).append(parts)
        for stack, experts in stacks.items():
            for suffix in (".weight", ".scales", ".biases"):
                arrays[stack + suffix] = np.stack([parts[suffix] for parts in experts])

    floats = write_checkpoint(
        tmp_path / "floats",
        "qwen3-moe",
        config_overrides={"hidden_size": 64, "moe_intermediate_size": 64},
        edit_weights=quantize,
    )
    config = json.loads((floats / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"quantization": MLX | {"group_size": 32}})
    )
    write_arrays(tmp_path / "model.safetensors", arrays)
    assert (logits(tmp_path) == logits(floats)).all()


def test_hybrids_of_mlx_have_whole_norms_and_convolutions_of_another_order(tmp_path: Path) -> None:
    def as_mlx(weights: dict[str, np.ndarray]) -> None:
        for name, weight in weights.items():
            if name.endswith("conv1d.weight"):
                weights[name] = weight.transpose(0, 2, 1)
            elif name.endswith("norm.weight") and "linear_attn" not in name:
                weights[name] = weight + 1

    plain = write_checkpoint(tmp_path / "plain", "qwen3.5")
    theirs = write_checkpoint(tmp_path / "mlx", "qwen3.5", edit_weights=as_mlx)
    assert (logits(theirs) == logits(plain)).all()


def test_fp8_inside_of_a_model_of_images(tmp_path: Path) -> None:
    """As Devstral Small 2 is published: a scale of each matrix and one of its inputs, images in bf16."""
    static = {
        "quant_method": "fp8",
        "activation_scheme": "static",
        "modules_to_not_convert": ["model.vision_tower", "lm_head"],
        "weight_block_size": None,
    }

    def one_scale(n: int, k: int, rng: np.random.Generator) -> tuple[dict[str, Any], np.ndarray]:
        parts, _ = fp8((n, k))(n, k, rng)
        scale = parts[".weight_scale_inv"].astype(ml_dtypes.bfloat16).reshape(())
        exact = parts[".weight"].astype(np.float32) * scale.astype(np.float32)
        parts |= {".weight_scale_inv": scale, ".activation_scale": scale}
        return parts, exact.astype(ml_dtypes.bfloat16)

    def into_a_larger_model(arrays: dict[str, np.ndarray]) -> None:
        for name in list(arrays):
            arrays[name.replace("model.", "model.language_model.", 1)] = arrays.pop(name)
        arrays["model.vision_tower.ln_pre.weight"] = np.ones(8, ml_dtypes.bfloat16)

    write_foreign_checkpoint(tmp_path, static, one_scale, into_a_larger_model)
    text = json.loads((tmp_path / "config.json").read_text())
    config = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "quantization_config": text.pop("quantization_config"),
        "text_config": text,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert (logits(tmp_path) == logits(tmp_path / "floats")).all()
    assert open_stored_model(tmp_path).notes == ("left out: an encoder of images (1 tensor)",)


def test_fp8_without_scales_becomes_bf16(tmp_path: Path) -> None:
    def rounded(weights: dict[str, np.ndarray]) -> None:
        for name, weight in weights.items():
            weights[name] = weight.astype(ml_dtypes.float8_e4m3fn)
        arrays.update(weights)
        for name, weight in weights.items():
            weights[name] = weight.astype(np.float32)

    arrays: dict[str, np.ndarray] = {}
    floats = write_checkpoint(tmp_path / "floats", "llama", edit_weights=rounded)
    config = json.loads((floats / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"torch_dtype": "float8_e4m3fn"}))
    write_arrays(tmp_path / "model.safetensors", arrays)
    assert (logits(tmp_path) == logits(floats)).all()


KV_SCALES = [
    *("self_attn.k_scale", "self_attn.v_scale", "self_attn.q_scale", "self_attn.kv_scale"),
    *("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale", "self_attn.prob_scale"),
    *("self_attn.k_proj.output_scale", "self_attn.k_zero_point", "self_attn.qkv_proj.k_scale"),
]


@pytest.mark.parametrize("name", ["fp8-compressed", "kv-compressed", "kv-modelopt", "none"])
def test_scales_of_an_fp8_kv_cache_are_left_out(name: str, tmp_path: Path) -> None:
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    settings: dict[str, dict[str, Any]] = {
        "fp8-compressed": CASES["float8"][0] | {"kv_cache_scheme": scheme},
        "kv-compressed": {"quant_method": "compressed-tensors", "kv_cache_scheme": scheme},
        "kv-modelopt": {
            "quant_method": "modelopt",
            "quant_algo": None,
            "kv_cache_quant_algo": "FP8",
        },
        "none": {},
    }

    def add_scales(arrays: dict[str, np.ndarray]) -> None:
        for scale in KV_SCALES:
            arrays[f"model.layers.0.{scale}"] = np.ones(1, np.float32)

    write = CASES["float8"][1] if name == "fp8-compressed" else unquantized
    path = write_foreign_checkpoint(tmp_path, settings[name], write, add_scales)
    assert (logits(path) == logits(path / "floats")).all()
    assert open_stored_model(path).notes == (
        f"left out: scales of an FP8 KV cache ({len(KV_SCALES)} tensors)",
    )


def unquantized(
    num_rows: int, num_columns: int, rng: np.random.Generator
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    weight = rng.normal(0, 0.05, (num_rows, num_columns)).astype(np.float32)
    return {".weight": weight}, weight


# -- damage ----------------------------------------------------------------------------------------

O_PROJ = "model.layers.0.self_attn.o_proj"
Edit = Callable[[dict[str, np.ndarray]], Any]


def cut(suffix: str) -> Edit:
    return lambda arrays: arrays.update({O_PROJ + suffix: arrays[O_PROJ + suffix][:-1]})


def change(suffix: str, change_array: Callable[[np.ndarray], np.ndarray]) -> Edit:
    return lambda arrays: arrays.update({O_PROJ + suffix: change_array(arrays[O_PROJ + suffix])})


def spoiled(array: np.ndarray, value: float) -> np.ndarray:
    array.reshape(-1)[3] = value
    return array


def of_another_type(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32 if array.dtype.kind in "iu" else np.int64)


SPOILED: list[Callable[[np.ndarray], np.ndarray | None]] = [
    lambda array: None,
    lambda array: array[:-1] if array.ndim else np.ones(2, array.dtype),
    of_another_type,
]
ONE_OF_EACH = ("awq", "gptq", "fp8", "float8", "int4", "int8", "nf4", "int8-rows", "mlx-4")
UNREAD = ("g_idx", ".weight_format", ".input_scale", "quant_state.bitsandbytes__nf4")


@pytest.mark.parametrize("name", [*ONE_OF_EACH, "modelopt-nvfp4"])
def test_each_array_must_be_there_with_its_shape_and_type(name: str, tmp_path: Path) -> None:
    arrays: dict[str, np.ndarray] = {}
    path = write_foreign_checkpoint(tmp_path, *CASES[name], edit=arrays.update)
    for array in arrays:
        if not array.startswith(O_PROJ) or array.endswith(UNREAD):
            continue
        for spoil in SPOILED:
            written = {**arrays, array: spoil(arrays[array])}
            found = {each: own for each, own in written.items() if own is not None}
            write_arrays(path / "model.safetensors", found)
            with pytest.raises(ValueError, match=re.escape(O_PROJ)):
                load_decoder(path, EXACT)


DAMAGES: dict[str, tuple[str, Edit]] = {
    "cut codes": ("gptq-g64", cut(".qweight")),
    "act-order": ("gptq", change(".g_idx", lambda array: array[::-1].copy())),
    "act-order of compressed-tensors": ("int4", change(".weight_g_idx", lambda array: array[::-1].copy())),
    "a short order": ("gptq", cut(".g_idx")),
    "a short order of compressed-tensors": ("int4", cut(".weight_g_idx")),
    "a zero point of 8 bits": ("gptq-8", change(".qzeros", lambda array: spoiled(array, 0))),
    "an infinite scale": ("awq", change(".scales", lambda array: spoiled(array, np.inf))),
    "an FP8 that is no number": ("fp8", change(".weight", lambda array: spoiled(array, np.nan))),
    "words of other bits": ("mlx-6", change(".weight", lambda array: array[:, :-1].copy())),
    "another shape": ("int4", change(".weight_shape", lambda array: array - [1, 0])),
    "another codebook": ("nf4", change(".weight.quant_map", lambda array: array * 0.5)),
    "a state that is not JSON": ("nf4", cut(".weight.quant_state.bitsandbytes__nf4")),
}  # fmt: skip


def test_damage_is_named(tmp_path: Path) -> None:
    def load_damaged(name: str) -> None:
        case, edit = DAMAGES[name]
        load_decoder(write_foreign_checkpoint(tmp_path, *CASES[case], edit=edit), EXACT)

    check_refusals("foreign_damage", DAMAGES, load_damaged, name=str, hidden=tmp_path)


def cut_experts(suffix: str, axis: int) -> Edit:
    name = f"model.layers.0.mlp.experts.{suffix}"
    return lambda arrays: arrays.update({name: np.delete(arrays[name], -1, axis)})


DAMAGED_EXPERTS: list[Edit] = [
    lambda a: a.pop("model.layers.0.mlp.experts.down_proj_scales"),
    lambda a: a["model.layers.0.mlp.experts.down_proj_scales"].__setitem__((0, 0, 0), 255),
    cut_experts("gate_up_proj_blocks", 0),
    cut_experts("gate_up_proj_blocks", 2),
    cut_experts("down_proj_blocks", 3),
    cut_experts("down_proj_scales", 1),
]


def test_damaged_experts_of_gpt_oss(tmp_path: Path) -> None:
    def load_damaged(edit: Edit) -> None:
        load_decoder(write_gpt_oss(tmp_path, edit), EXACT)

    check_refusals(
        "gpt_oss_experts", DAMAGED_EXPERTS, load_damaged, name=lambda _: "", hidden=tmp_path
    )


UNREAD_SETTINGS: list[dict[str, Any]] = [
    AWQ | {"bits": 3},
    AWQ | {"version": "gemv"},
    AWQ | {"zero_point": False},
    GPTQ | {"bits": 5},
    GPTQ | {"group_size": 48},
    GPTQ | {"checkpoint_format": "marlin"},
    FP8 | {"fmt": "e5m2"},
    FP8 | {"weight_block_size": [128]},
    FP8 | {"weight_block_size": [0.5, 128]},
    compressed("float-quantized", **FLOAT8 | BLOCKS),
    FP8 | {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"},
    MLX | {"bits": 7},
    MLX | {"group_size": 16},
    MLX | {"mode": "mxfp8"},
    MLX | {"lm_head": {"bits": 4, "group_size": 16}},
    NF4 | {"bnb_4bit_quant_type": "fp4"},
    compressed("marlin-24", **INT4),
    compressed("pack-quantized", **INT4 | {"num_bits": 8}, symmetric=False),
    compressed("int-quantized", **INT4),
    {"quant_method": "compressed-tensors", "format": "pack-quantized"},
    AWQ,
]


def test_settings_that_are_not_read(tmp_path: Path) -> None:
    def open_with(quantization: dict[str, Any]) -> None:
        open_stored_model(write_foreign_checkpoint(tmp_path, quantization, compressed_int8))

    check_refusals("quantization", UNREAD_SETTINGS, open_with, hidden=tmp_path)
