"""Published folders in Hugging Face layout: what tests/published/hf holds of their JSON files and tensor names."""

import dataclasses
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pellucid.loading.hf_config import CONFIG_FILE, read_model_config
from pellucid.loading.json_file import read_json_object
from pellucid.loading.quantization_settings import METHOD_KEY, find_quantization
from pellucid.model_config import ModelConfig

FOLDER = Path(__file__).parents[1] / "published" / "hf"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


@dataclass(frozen=True)
class PublishedFolder:
    """What is known of a published folder.

    Args:
        files: the JSON files by name; lists of modules are cut, and pictures and sound left out.
        tensors: names -> how many there are; "{}" stands for a number.
    """

    files: dict[str, dict[str, Any]]
    tensors: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        return self.files[CONFIG_FILE]

    def write(self, directory: Path) -> Path:
        """The JSON files in `directory`."""
        for name, values in self.files.items():
            (directory / name).write_text(json.dumps(values))
        return directory


def published(name: str) -> PublishedFolder:
    """The folder of this name in the corpus."""
    record = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return PublishedFolder(**record)


def facts_or_refusal(directory: Path) -> str:
    """One line: the facts of a folder, or why it does not load."""
    try:
        line = facts_line(read_model_config(directory))
        quantization = find_quantization(directory, read_json_object(directory / CONFIG_FILE))
        return (
            line
            if quantization is None
            else f"{line}; weights by {quantization.values[METHOD_KEY]}"
        )
    except ValueError as error:
        reason = str(error).split("; what loads: ")[0]
        return f"refused: {reason.removeprefix(f'{directory}/')}"


def facts_line(model: ModelConfig) -> str:
    """The facts that differ from their defaults; layers that are the same follow each other as one."""
    runs = [(layer, sum(1 for _ in same)) for layer, same in itertools.groupby(model.layers)]
    # Kinds of layers in the order in which they appear, by letters
    kinds = list(dict.fromkeys(layer for layer, _ in runs))
    order = "".join(
        chr(ord("a") + kinds.index(layer)) + (str(count) if count > 1 else "")
        for layer, count in runs
    )
    described = "; ".join(
        f"{chr(ord('a') + index)}: {_shown(layer)}" for index, layer in enumerate(kinds)
    )
    return f"{_shown(model, skip='layers')}; layers {order}; {described}"


def _shown(value: Any, skip: str = "") -> str:
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, tuple) and len(value) > 8:  # factors of LongRoPE
        return f"({len(value)} numbers, sum {sum(value):.9g})"
    if not dataclasses.is_dataclass(value):
        return str(value)
    fields = [
        f"{each.name}={_shown(own)}"
        for each in dataclasses.fields(value)
        if (own := getattr(value, each.name)) != each.default and each.name != skip
    ]
    return f"{type(value).__name__.removesuffix('Config')}({' '.join(fields)})"
