"""Recognizes what is meant as a model: a file, a directory, a name on the hub or a short name."""

import re
from pathlib import Path

import typer

from pellucid.cli.output.terminal import note
from pellucid.facts.model_names import MODEL_NAMES, close_names, find_short_name, path_here

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(:[\w./-]+)?")
_HUB_ADDRESS = re.compile(r"(https://)?(hf\.co|huggingface\.co)/")
_GGUF_MAGIC = b"GGUF"
MAX_MODEL_LEN = "pellucid.max_model_len"  # in the meta data of a command line's context
_DECIDE_ROOM = ("quantization", "kv_cache_dtype", "block_size", "kv_cache_memory", "max_model_len")
# Names that Ollama's and other libraries' users type: a word that begins like this is no prompt.
_FAMILY = re.compile(
    r"(codellama|deepseek|falcon|gemma|gpt-?2|gpt-oss|llama|mistral|mixtral|phi|qwen|smollm|tinyllama)"
    r"[\w.-]*(:[\w.-]+)?",
    re.IGNORECASE,
)


def looks_like_model(word: str) -> bool:
    """Whether a single word is meant as a model, not as a prompt."""
    if not word or any(character.isspace() for character in word):
        return (path := path_here(word)) is not None and (path.is_dir() or path.suffix == ".gguf")
    return (
        exists(word)
        or word.lower().endswith(".gguf")
        or word.startswith(("./", "../", "~/", "/"))
        or _HUB_ID.fullmatch(word) is not None
        or _HUB_ADDRESS.match(word) is not None
        or find_short_name(word) is not None
        or _FAMILY.fullmatch(word) is not None
    )


def resolve_model(
    model: str,
    *,
    must_fit: bool = True,
    quiet: bool = False,
    context: typer.Context | None = None,
) -> str:
    """The model, if there is such a file or directory here, or if the hub may have it; of a short name the hub's,
    which is asked what files there are.

    Args:
        must_fit: whether a short name stands for a file that the free memory holds.
        quiet: whether it is not said what a short name stands for.
        context: of the command line, with the engine's settings; is told of a context that has to be shorter than
            the model's.

    Raises:
        ValueError: it can be neither, or no file of a short name fits.
        OSError: the hub is asked, and cannot be reached.
    """
    path = path_here(model)
    if path is not None:
        if path.suffix == ".safetensors":
            raise ValueError(
                f"{model}: is a file of weights without a configuration; name its directory: {path.parent}"
            )
        if path.is_file() and not _is_gguf(path):
            raise ValueError(
                f"{model}: is not a model: a model is a directory with config.json, a .gguf file or"
                f" owner/name on the hub. To read a prompt from it: -f {model}"
            )
        return model
    if (short := find_short_name(model)) is not None:
        # Imported here: other names need none of it.
        from pellucid.facts.host_memory import available_memory
        from pellucid.model_store.choice import choose

        params = {} if context is None else context.params
        settings = {name: params[name] for name in _DECIDE_ROOM if params.get(name) is not None}
        choice = choose(*short, available_memory() if must_fit else None, settings)
        if context is not None and choice.max_model_len is not None:
            context.meta[MAX_MODEL_LEN] = choice.max_model_len
        if not quiet:
            note(f"{model} is {choice.model}: {choice.reason}")
        return choice.model
    address = _HUB_ADDRESS.sub("", model, count=1)
    if _HUB_ID.fullmatch(address) and not address.lower().endswith(".gguf"):
        return address
    raise ValueError(f"no such file or directory: {model}{_hint(model)}")


def complete_model(incomplete: str) -> list[str]:
    """Short names, where Tab completes a model."""
    return [name for name in MODEL_NAMES if name.startswith(incomplete)]


def _hint(model: str) -> str:
    """What else to type: the end of a message."""
    if "/" in model or model.lower().endswith(".gguf"):
        return ""
    if close := close_names(model):
        return f", and no short name; there are {', '.join(close)}"
    return "; models of the Hugging Face hub are named owner/name, as in Qwen/Qwen3-0.6B"


def _is_gguf(path: Path) -> bool:
    """By its name or, for a file such as Ollama's that has another name, by how it begins."""
    if path.suffix.lower() == ".gguf":
        return True
    with path.open("rb") as file:
        return file.read(len(_GGUF_MAGIC)) == _GGUF_MAGIC


def exists(word: str) -> bool:
    """Whether it is a file or directory here."""
    return path_here(word) is not None
