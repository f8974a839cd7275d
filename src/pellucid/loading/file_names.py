"""The names of the files of a directory in Hugging Face layout."""

from pathlib import Path

CONFIG_FILE = "config.json"
GENERATION_CONFIG_FILE = "generation_config.json"
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
TOKENIZER_FILE, TOKENIZER_CONFIG_FILE = "tokenizer.json", "tokenizer_config.json"


def has_weights(directory: Path) -> bool:
    """Whether there are files of tensors in `directory`."""
    return any((directory / name).exists() for name in (INDEX_FILE, SINGLE_FILE))
