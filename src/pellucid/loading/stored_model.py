"""What the files of a model hold, whatever their layout."""

from dataclasses import dataclass
from pathlib import Path

from pellucid.backends.quantization.formats import IntegerFormat
from pellucid.config import ModelConfig
from pellucid.loading.checkpoint import Checkpoint
from pellucid.loading.hf_config import CONFIG_FILE, read_model_config
from pellucid.loading.integrity import verify_checksums
from pellucid.loading.json_object import read_json_object
from pellucid.loading.quantized_layout import QuantizedCheckpoint, read_quantization_config
from pellucid.loading.tensor_source import TensorSource
from pellucid.loading.weight_names import WeightNames, own_weight_names, weight_names


@dataclass(frozen=True)
class StoredModel:
    """A checkpoint: its facts, its tensors, and which of them is which weight of ours.

    Args:
        config: the facts.
        tensors: by the names of the files.
        names: what makes up each weight of ours.
        weight_format: of all matrices, where `pellucid quantize` wrote them.
    """

    config: ModelConfig
    tensors: TensorSource
    names: WeightNames
    weight_format: IntegerFormat | None = None


def open_stored_model(path: Path) -> StoredModel:
    """Opens the checkpoint at `path` and checks what can be checked without reading weights.

    Raises:
        ValueError: a file is missing or damaged, or the checkpoint is not one that we run.
    """
    verify_checksums(path)
    config = read_model_config(path)
    weight_format = read_quantization_config(read_json_object(path / CONFIG_FILE))
    checkpoint = Checkpoint(path)
    if weight_format is None:
        return StoredModel(config, checkpoint, weight_names(config.architecture))
    tensors = QuantizedCheckpoint(checkpoint, weight_format)
    return StoredModel(config, tensors, own_weight_names(config.architecture), weight_format)
