"""Converts the metadata of a GGUF file to a ModelConfig, by way of the keys of config.json."""

from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import ModelConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loading.gguf_checkpoint import GgufCheckpoint
from pellucid.loading.gguf_tokenizer_keys import BOS_TOKEN_ID, read_end_token_ids, role_id
from pellucid.loading.tensor_source import as_floats
from pellucid.models.family import WeightNames
from pellucid.models.gguf_dialects import dialect_of, usual_architecture
from pellucid.models.gguf_keys import check_keys
from pellucid.models.gguf_metadata import ROPE_DIM, GgufMetadata
from pellucid.models.needs import why_not
from pellucid.models.registry import find_gguf_family, gguf_architectures
from pellucid.models.unused_parts import count_parts, left_out_note

_OTHER_TYPES = {
    "adapter": "the file is a LoRA adapter: merge it into its base model with llama-export-lora",
    "mmproj": "the file is a projector of images or sound, which belongs to a text model: name that one",
    "imatrix": "the file holds statistics for quantization, no model",
}


def read_gguf_architecture(checkpoint: GgufCheckpoint) -> str:
    """llama.cpp's name of `general.architecture`.

    Raises:
        ValueError: it is missing or not supported, or the file holds no model.
    """
    metadata = checkpoint.values
    if (kind := metadata.string("general.type", "model")) != "model":
        raise metadata.error("general.type", _OTHER_TYPES.get(kind, 'must be "model"'))
    architecture = usual_architecture(metadata.string("general.architecture"))
    if architecture not in gguf_architectures():
        raise metadata.error("general.architecture", why_not(architecture, gguf_architectures()))
    return architecture


def read_gguf_metadata(
    checkpoint: GgufCheckpoint, float_tensors: Mapping[str, Any]
) -> GgufMetadata:
    """The metadata from which a family reads its facts.

    Args:
        checkpoint: the files.
        float_tensors: the tensors that are facts rather than weights: rotary factors.

    Raises:
        ValueError: the architecture is missing or not supported, or the file holds no model.
    """
    architecture = read_gguf_architecture(checkpoint)
    stored_architecture = checkpoint.metadata["general.architecture"]
    prefix = f"{stored_architecture}."
    facts = {
        key: _decimal(checkpoint.metadata[key])
        for key in checkpoint.metadata
        if key.startswith(prefix)
    }
    values = ChainMap(facts, checkpoint.metadata)
    dialect = dialect_of(architecture)
    stored_tensors = dialect.stored_tensors(checkpoint)
    usual_tensors = {stored: usual for usual, stored in stored_tensors.items()}
    return GgufMetadata(
        JsonObject(checkpoint.location, values),
        architecture,
        {usual_tensors.get(name, name): checkpoint.info(name).shape for name in checkpoint},
        {
            name: [_decimal(factor) for factor in as_floats(tensor).tolist()]
            for name, tensor in float_tensors.items()
        },
        stored_architecture,
        dialect.stored_keys(values, prefix),
        stored_tensors,
    )


def left_out(metadata: GgufMetadata, names: WeightNames, tensors: Iterable[str]) -> tuple[str, ...]:
    """One sentence on what the file holds that no text model needs; none where it has none."""
    gguf = find_gguf_family(metadata).gguf
    assert gguf is not None
    keys = check_keys(metadata, gguf.keys, gguf.left_over)
    return left_out_note(count_parts(tensors, names.parts), keys)


def check_is_whole(metadata: GgufMetadata) -> None:
    """Raises a ValueError for a file of the layers alone that draft for another model."""
    if not any(name.startswith("blk.0.") for name in metadata.shapes) and any(
        ".nextn." in name for name in metadata.shapes
    ):
        raise ValueError(
            f"{metadata.values.path}: the file holds layers that draft for another model, no model: name that one"
        )


def read_gguf_config(metadata: GgufMetadata) -> ModelConfig:
    """The facts of a GGUF file.

    Raises:
        ValueError: a key is missing, unknown, or has a value that is not supported.
    """
    family = find_gguf_family(metadata)
    assert family.gguf is not None
    check_keys(metadata, family.gguf.keys, family.gguf.left_over)
    values = {**family.gguf.to_config(metadata), "architectures": [family.architectures[0]]}
    config = family.read(JsonObject(metadata.values.path, values))
    rotated = [rope.dim for rope in config.ropes]
    if rotated and metadata.get(ROPE_DIM, rotated[0]) not in rotated:
        head_dim = config.attentions[0].head_dim
        raise metadata.error(ROPE_DIM, f"must be an even share of the head's {head_dim}")
    end_token_ids = read_end_token_ids(metadata.values)
    return replace(
        config,
        bos_token_id=role_id(metadata.values, BOS_TOKEN_ID),
        eos_token_ids=tuple(each for each in end_token_ids if each < config.vocab_size),
    )


# Of general.sampling.* -> of `SamplingParams`.
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


def read_gguf_sampling_params(checkpoint: GgufCheckpoint) -> SamplingParams:
    """The default sampling parameters of a GGUF file, from `general.sampling.*`.

    Raises:
        ValueError: a value is not allowed.
    """
    metadata = checkpoint.values
    params = SamplingParams()
    for own_name, name in _SAMPLING.items():
        key = f"general.sampling.{own_name}"
        if (value := checkpoint.metadata.get(key)) is None:
            continue
        try:
            params = replace(params, **{name: _decimal(value)})
        except ValueError as error:
            allowed = str(error).partition(": ")[2]
            raise metadata.error(key, allowed) from None
    return params


def _decimal(value: float) -> Any:
    """The shortest decimal of an f32: what config.json said before it was rounded, such as 1e-05."""
    return float(str(np.float32(value))) if isinstance(value, float) else value
