"""Opens a GGUF model: its configuration, tensors and tokenizer."""

from functools import partial
from pathlib import Path

from pellucid.loading.gguf_checkpoint import GgufCheckpoint
from pellucid.loading.gguf_config import (
    check_is_whole,
    left_out,
    read_gguf_architecture,
    read_gguf_config,
    read_gguf_metadata,
    read_gguf_sampling_params,
)
from pellucid.loading.gguf_tokenizer_facts import find_tokenizer_refusal
from pellucid.loading.stored_model import StoredModel, StoredTokenizer
from pellucid.models.gguf_metadata import with_widths_of_tensors
from pellucid.models.registry import find_gguf_family

# Tensors that are facts rather than weights: rotary factors.
FACT_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def open_gguf(path: Path) -> StoredModel:
    """Opens a GGUF file, or all parts of a split one, and checks what can be checked without reading weights.

    Raises:
        ValueError: it is damaged, or not a supported model.
    """
    checkpoint = GgufCheckpoint(path)
    read_gguf_architecture(checkpoint)
    facts = [name for name in FACT_TENSORS if name in checkpoint]
    rope_tensors = {name: checkpoint.tensor(name) for name in facts}
    metadata, notes = with_widths_of_tensors(read_gguf_metadata(checkpoint, rope_tensors))
    check_is_whole(metadata)
    config = read_gguf_config(metadata)
    names = find_gguf_family(metadata).gguf_names(config, metadata)
    checkpoint.check_types(name for name in checkpoint if not names.is_unused(name))
    return StoredModel(
        checkpoint.location,
        config,
        checkpoint,
        names,
        default_sampling_params=read_gguf_sampling_params(checkpoint),
        read_tokenizer=partial(_read_tokenizer, checkpoint),
        tokenizer_refusal=find_tokenizer_refusal(checkpoint.values),
        notes=(*notes, *left_out(metadata, names, checkpoint)),
        metadata=checkpoint.values,
    )


def _read_tokenizer(checkpoint: GgufCheckpoint) -> StoredTokenizer:
    # Imported here: the facts of a file need no library of tokenizers.
    from pellucid.loading.gguf_tokenizer import read_gguf_tokenizer

    tokenizer = read_gguf_tokenizer(checkpoint.values)
    checkpoint.metadata.clear()  # strings by the hundred thousand, no longer needed
    return tokenizer
