"""Recognizes model files that do not load, and says what to load instead."""

from collections.abc import Collection
from fnmatch import fnmatch

# Patterns of file names, what the files are, and what to do instead. The first match counts.
_FORMATS = (
    (
        ("adapter_config.json", "adapter_model.*"),
        (
            "a LoRA adapter, which is no model by itself: merge it into its base model (PEFT's"
            " merge_and_unload, then save_pretrained) and name the merged model"
        ),
    ),
    (
        ("consolidated*.safetensors", "consolidated*.pth", "params.json"),
        (
            "Mistral's or Meta's own format (consolidated files): use a repository in Hugging Face layout,"
            " with config.json and model.safetensors"
        ),
    ),
    (
        ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt", "*.bin"),
        (
            "PyTorch files, which can run code when they are opened and are never opened here: convert"
            " them with transformers: AutoModelForCausalLM.from_pretrained(model).save_pretrained(folder)"
        ),
    ),
    (
        ("*.onnx", "*.h5", "*.msgpack", "openvino_model.*", "*.tflite", "*.mlmodel", "*.engine"),
        "a model in another engine's format: use a repository with model.safetensors or a GGUF file",
    ),
)


def recognize_files(names: Collection[str]) -> str | None:
    """The kind of files that do not hold a model in Hugging Face layout, and what to do instead.

    Args:
        names: of the files of a directory or repository.

    Returns:
        To follow "it holds", or None where no file is known.
    """
    for patterns, description in _FORMATS:
        if any(fnmatch(name, pattern) for name in names for pattern in patterns):
            return description
    return None
