"""Makes a model's decoder on a backend, from its open checkpoint."""

from collections.abc import Callable
from functools import partial

from msgspec import Struct

from pellucid.backends.base import Backend, Weights
from pellucid.backends.ops import Decoder, Ops
from pellucid.backends.quantization.formats import FORMATS
from pellucid.loading.parameters import (
    CheckpointParameters,
    KeptParameters,
    Progress,
    bytes_to_read,
)
from pellucid.loading.stored_model import StoredModel
from pellucid.models.parts import decoder_parameters
from pellucid.models.registry import decoder_class


class MadeDecoder(Struct, frozen=True):
    """A decoder over the weights of a checkpoint.

    Args:
        decoder: on the backend's ops.
        on_ops: makes another decoder over the same weights, on other ops of the same backend.
    """

    decoder: Decoder
    on_ops: Callable[[Ops], Decoder]


def make_decoder(
    model: StoredModel,
    backend: Backend,
    on_progress: Progress | None = None,
    quantization: str = "none",
) -> MadeDecoder:
    """Checks the weights of a checkpoint and loads them on `backend`.

    Args:
        model: the checkpoint.
        backend: makes the weights' handles and runs the decoder.
        on_progress: called with (bytes read, bytes in all) after each tensor.
        quantization: as in `EngineConfig`: the format of matrices in memory.

    Raises:
        ValueError: a tensor is missing, damaged or left over, or is quantized otherwise already; the
            message names the file and what is wrong with it.
    """
    if model.weight_format is not None and quantization not in ("none", model.weight_format.name):
        raise ValueError(
            f"quantization={quantization!r}: {model.path} is quantized already; "
            f"allowed are 'none' and {model.weight_format.name!r}"
        )
    parameters = CheckpointParameters(
        model.tensors,
        model.names,
        model.config.whole,
        backend.weights,
        FORMATS.get(quantization),
        on_progress,
    )
    decoder_of = decoder_class(model.config.architecture)
    own = decoder_parameters(parameters, model.config)
    on_ops = partial(decoder_of, model.config, KeptParameters(own))
    decoder = on_ops(backend.ops)
    parameters.check_all_used()
    return MadeDecoder(decoder, on_ops)


def finish_weights(
    model: StoredModel, weights: Weights, on_progress: Progress | None = None
) -> None:
    """Reads the weights that `make_decoder` has not read yet. Other arguments are those of `make_decoder`."""
    total = bytes_to_read(model.tensors, model.names)
    while waiting := weights.read():
        if on_progress is not None:
            on_progress(total - waiting, total)
