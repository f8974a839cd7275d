"""Tiny checkpoints as other quantizers write them, made one number at a time from the formats' descriptions.

Each writer draws codes, scales and zero points, stores them in its layout, and returns the floats that
they stand for: a checkpoint of these floats is the same model.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from pellucid.backends.quantization.formats import E2M1, NORMAL_FLOAT
from support.checkpoints import write_checkpoint

Arrays = dict[str, np.ndarray]
# Draws a matrix [N, K] -> its arrays by suffix, and its floats in f32.
WriteMatrix = Callable[[int, int, np.random.Generator], tuple[Arrays, np.ndarray]]

DTYPE_NAMES = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "int8": "I8",
    "uint8": "U8",
    "int32": "I32",
    "int64": "I64",
    "uint32": "U32",
}


def write_foreign_checkpoint(
    directory: Path,
    quantization: Mapping[str, Any],
    write_matrix: WriteMatrix,
    edit: Callable[[Arrays], None] = lambda arrays: None,
    *,
    with_embedding: bool = False,
    settings_file: str = "config.json",
) -> Path:
    """A Llama in `directory` whose linears are quantized, and in directory/floats the same one in f32.

    Args:
        quantization: `quantization_config` of config.json; `quantization` where it names no method.
        write_matrix: makes each linear's arrays.
        edit: changes the arrays before they are written.
        with_embedding: whether the embedding is quantized, too, which is the head then.
        settings_file: what holds the settings.
    """
    arrays: Arrays = {}
    rng = np.random.default_rng(0)

    def quantize(weights: Arrays) -> None:
        for name, weight in weights.items():
            is_linear = ".self_attn." in name or ".mlp." in name
            if not (is_linear or (with_embedding and name == "model.embed_tokens.weight")):
                arrays[name] = weight
                continue
            parts, floats = write_matrix(*weight.shape, rng)
            module = name.removesuffix(".weight")
            arrays.update({module + suffix: array for suffix, array in parts.items()})
            weights[name] = floats.astype(np.float32)

    overrides = {
        "hidden_size": 256,
        "intermediate_size": 384,
        "num_hidden_layers": 1,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "tie_word_embeddings": with_embedding,
    }
    floats = write_checkpoint(
        directory / "floats", "llama", config_overrides=overrides, edit_weights=quantize
    )
    edit(arrays)
    config = json.loads((floats / "config.json").read_text())
    if settings_file == "config.json":
        key = "quantization_config" if "quant_method" in quantization else "quantization"
        config[key] = quantization
    else:
        (directory / settings_file).write_text(json.dumps(quantization))
    (directory / "config.json").write_text(json.dumps(config))
    write_arrays(directory / "model.safetensors", arrays)
    return directory


def write_arrays(path: Path, arrays: Arrays) -> None:
    """A safetensors file, FP8 and integers included."""
    header, start = {}, 0
    for name, array in arrays.items():
        end = start + array.nbytes
        header[name] = {
            "dtype": DTYPE_NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(header).encode()
    data = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def pack_bits(codes: np.ndarray, bits: int) -> np.ndarray:
    """[R, C] -> U32 [R, C * bits / 32]: a stream of bits, in which a code may begin in one word and end in the next."""
    words = np.zeros((codes.shape[0], codes.shape[1] * bits // 32), np.uint32)
    for index in range(codes.shape[1]):
        for bit in range(bits):
            word, place = divmod(index * bits + bit, 32)
            words[:, word] |= ((codes[:, index] >> bit & 1) << place).astype(np.uint32)
    return words


def _draw(
    num_outputs: int, num_inputs: int, group: int, bits: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes [N, K], zero points [N, groups] and f16 scales [N, groups]."""
    groups = num_inputs // group
    codes = rng.integers(0, 1 << bits, (num_outputs, num_inputs))
    zeros = rng.integers(1, 1 << bits, (num_outputs, groups))
    scales = rng.uniform(0.5, 2, (num_outputs, groups)) * 0.15 / num_inputs**0.5
    if bits == 8:
        scales /= 16
    return codes, zeros, scales.astype(np.float16)


def _value(codes: np.ndarray, zeros: Any, scales: np.ndarray, group: int) -> np.ndarray:
    zeros = np.broadcast_to(zeros, scales.shape)
    return (codes - zeros.repeat(group, 1)) * scales.astype(np.float32).repeat(group, 1)


def awq(group_size: int | None) -> WriteMatrix:
    def write(n: int, k: int, rng: np.random.Generator) -> tuple[Arrays, np.ndarray]:
        group = group_size or k
        codes, zeros, scales = _draw(n, k, group, 4, rng)

        def packed(outputs: np.ndarray) -> np.ndarray:
            order = [0, 2, 4, 6, 1, 3, 5, 7]
            words = outputs.T.reshape(-1, outputs.shape[0] // 8, 8)[:, :, order]
            return pack_bits(words.reshape(-1, outputs.shape[0]), 4).view(np.int32)

        arrays = {
            ".qweight": packed(codes),
            ".qzeros": packed(zeros),
            ".scales": np.ascontiguousarray(scales.T),
        }
        return arrays, _value(codes, zeros, scales, group)

    return write


def gptq(group: int, bits: int = 4, offset: int = 1) -> WriteMatrix:
    def write(n: int, k: int, rng: np.random.Generator) -> tuple[Arrays, np.ndarray]:
        codes, zeros, scales = _draw(n, k, group, bits, rng)
        if bits == 8:
            zeros[:] = 128
        arrays = {
            ".qweight": np.ascontiguousarray(pack_bits(codes, bits).T).view(np.int32),
            ".qzeros": pack_bits(zeros.T - offset, bits).view(np.int32),
            ".scales": np.ascontiguousarray(scales.T),
            ".g_idx": np.arange(k, dtype=np.int32) // np.int32(group),
        }
        if offset == 0:  # files may leave the usual order out
            del arrays[".g_idx"]
        return arrays, _value(codes, zeros, scales, group)

    return write


def packed_codes(group_size: int | None, is_symmetric: bool, bits: int = 4) -> WriteMatrix:
    """As llm-compressor's "pack-quantized"."""

    def write(n: int, k: int, rng: np.random.Generator) -> tuple[Arrays, np.ndarray]:
        group = group_size or k
        codes, zeros, scales = _draw(n, k, group, bits, rng)
        rounded = scales.astype(ml_dtypes.bfloat16)
        arrays = {
            ".weight_packed": pack_bits(codes, bits).view(np.int32),
            ".weight_scale": rounded,
            ".weight_shape": np.array([n, k], np.int64),
            ".weight_g_idx": np.arange(k, dtype=np.int64) // group,
        }
        if group_size is None:
            del arrays[".weight_g_idx"]
        if is_symmetric:
            zeros[:] = 1 << (bits - 1)
        else:
            arrays[".weight_zero_point"] = np.ascontiguousarray(pack_bits(zeros.T, bits).T).view(
                np.int32
            )
        return arrays, _value(codes, zeros, rounded.astype(np.float32), group)

    return write


def compressed_int8(n: int, k: int, rng: np.random.Generator) -> tuple[Arrays, np.ndarray]:
    codes = rng.integers(-128, 128, (n, k)).astype(np.int8)
    scales = (rng.uniform(0.5, 2, (n, 1)) / k**0.5 / 100).astype(ml_dtypes.bfloat16)
    return {".weight": codes, ".weight_scale": scales}, codes * scales.astype(np.float32)


def fp8(block: tuple[int, int] | None, name: str = ".weight_scale_inv") -> WriteMatrix:
    def write(n: int, k: int, rng: np.random.Generator) -> tuple[Arrays, np.ndarray]:
        codes = np.clip(100 * rng.standard_normal((n, k)), -448, 448)  # E4M3 has no larger ones
        codes = codes.astype(ml_dtypes.float8_e4m3fn)
        rows, columns = block or (1, k)
        scales = rng.uniform(0.5, 2, (-(-n // rows), -(-k // columns))) / k**0.5 / 100
        scales = scales.astype(np.float32)
        of_weights = scales.repeat(rows, 0)[:n].repeat(columns, 1)[:, :k]
        floats = (codes.astype(np.float32) * of_weights).astype(ml_dtypes.bfloat16)
        return {".weight": codes, name: scales}, floats

    return write


def mlx(group: int, bits: int, scale_type: str = "bfloat16") -> WriteMatrix:
    """As `mlx.core.quantize` stores groups: the bias is an end of the range, on whose grid 0 lies."""

    def write(n: int, k: int, rng: np.random.Generator) -> tuple[Arrays, np.ndarray]:
        steps = (1 << bits) - 1
        codes = rng.integers(0, steps + 1, (n, k))
        scales = rng.uniform(0.5, 2, (n, k // group)) / k**0.5 / steps
        scales = scales.astype(scale_type)
        zeros = rng.integers(steps // 3, steps * 2 // 3 + 1, scales.shape)
        biases = (-zeros * scales.astype(np.float64)).astype(scale_type)
        floats = codes * scales.astype(np.float64).repeat(group, 1)
        floats += biases.astype(np.float64).repeat(group, 1)
        return {".weight": pack_bits(codes, bits), ".scales": scales, ".biases": biases}, floats

    return write


def mlx_mxfp4(n: int, k: int, rng: np.random.Generator) -> tuple[Arrays, np.ndarray]:
    codes = rng.integers(0, 16, (n, k))
    exponents = rng.integers(119, 123, (n, k // 32)).astype(np.uint8)
    words = pack_bits(codes, 4)
    floats = np.array(E2M1)[codes] / 2 * 2.0 ** (exponents.repeat(32, 1).astype(float) - 127)
    return {".weight": words, ".scales": exponents}, floats


def nvfp4(n: int, k: int, rng: np.random.Generator) -> tuple[Arrays, np.ndarray]:
    codes = rng.integers(0, 16, (n, k))
    scales = rng.uniform(50, 400, (n, k // 16)).astype(ml_dtypes.float8_e4m3fn)
    scale = np.float32(1e-4)
    of_weights = (scales.astype(np.float32) * scale).repeat(16, 1)
    floats = (np.array(E2M1, np.float32)[codes] / 2 * of_weights).astype(ml_dtypes.bfloat16)
    arrays = {
        ".weight": (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8),
        ".weight_scale": scales,
        ".weight_scale_2": np.array(scale),
        ".input_scale": np.array(scale),
    }
    return arrays, floats


def llm_int8(n: int, k: int, rng: np.random.Generator) -> tuple[Arrays, np.ndarray]:
    codes = rng.integers(-127, 128, (n, k)).astype(np.int8)
    largest = rng.uniform(0.5, 2, n).astype(np.float32) / np.float32(k**0.5)
    arrays = {".weight": codes, ".SCB": largest, ".weight_format": np.array(0, np.uint8)}
    return arrays, codes * (largest / np.float32(127))[:, None]


def nf4(n: int, k: int, rng: np.random.Generator) -> tuple[Arrays, np.ndarray]:
    """With absmax in codes of 8 bits, as `bnb_4bit_use_double_quant` stores it."""
    return _nf4(n, k, rng, is_nested=True)


def nf4_plain(n: int, k: int, rng: np.random.Generator) -> tuple[Arrays, np.ndarray]:
    return _nf4(n, k, rng, is_nested=False)


def _nf4(n: int, k: int, rng: np.random.Generator, is_nested: bool) -> tuple[Arrays, np.ndarray]:
    codes = rng.integers(0, 16, (n, k))
    num_groups = n * k // 64
    nested_map = np.linspace(-1, 1, 256).astype(np.float32)
    absmax_codes = rng.integers(128, 256, num_groups).astype(np.uint8)
    nested_absmax = rng.uniform(0.05, 0.1, -(-num_groups // 256)).astype(np.float32)
    absmax = nested_map[absmax_codes] * nested_absmax.repeat(256)[:num_groups] + np.float32(0.01)
    scales = (absmax / np.float32(127)).astype(np.float16).astype(np.float32).reshape(n, -1)
    floats = np.array(NORMAL_FLOAT)[codes] * scales.repeat(64, 1)
    state = {
        "quant_type": "nf4",
        "blocksize": 64,
        "dtype": "bfloat16",
        "shape": [n, k],
        "nested_blocksize": 256,
        "nested_dtype": "float32",
        "nested_offset": 0.01,
    }
    nested: Arrays = {
        ".weight.absmax": absmax_codes,
        ".weight.nested_absmax": nested_absmax,
        ".weight.nested_quant_map": nested_map,
    }
    if not is_nested:
        nested = {".weight.absmax": absmax.astype(np.float32)}
        state = {key: value for key, value in state.items() if "nested" not in key}
    halves = codes.reshape(-1, 2)
    arrays = {
        **nested,
        ".weight": (halves[:, :1] << 4 | halves[:, 1:]).astype(np.uint8),
        ".weight.quant_map": (np.array(NORMAL_FLOAT) / 127).astype(np.float32),
        ".weight.quant_state.bitsandbytes__nf4": np.frombuffer(
            json.dumps(state).encode(), np.uint8
        ),
    }
    return arrays, floats


def write_gpt_oss(directory: Path, edit: Callable[[Arrays], None] = lambda arrays: None) -> Path:
    """A gpt-oss in `directory` whose experts are MXFP4, and in directory/floats the same one in f32."""
    arrays: Arrays = {}
    rng = np.random.default_rng(0)

    def quantize(weights: Arrays) -> None:
        for name, weight in weights.items():
            if not name.endswith(("gate_up_proj", "down_proj")):
                arrays[name] = weight
                continue
            count, num_in, num_out = weight.shape
            codes = rng.integers(0, 16, (count, num_out, num_in))
            exponents = rng.integers(121, 125, (count, num_out, num_in // 32)).astype(np.uint8)
            halves = codes.reshape(count, num_out, num_in // 32, 16, 2)
            arrays[f"{name}_blocks"] = (halves[..., 0] | halves[..., 1] << 4).astype(np.uint8)
            arrays[f"{name}_scales"] = exponents
            numbers = np.array(E2M1, np.float32)[codes] / 2
            floats = numbers * np.ldexp(np.float32(1), exponents.astype(int) - 127).repeat(32, -1)
            weights[name] = np.ascontiguousarray(floats.transpose(0, 2, 1))

    floats = write_checkpoint(directory / "floats", "gpt-oss", edit_weights=quantize)
    edit(arrays)
    config = json.loads((floats / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"],
    }
    (directory / "config.json").write_text(json.dumps(config))
    write_arrays(directory / "model.safetensors", arrays)
    return directory
