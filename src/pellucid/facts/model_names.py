"""Short names of models that people know, as Ollama's users type them: qwen3:0.6b, llama3.2, gpt-oss:20b.

A name is a family and a size. The family alone stands for one of its sizes. A name may end in a quantization
(qwen3:8b-q8_0); case, a dash for the colon, and "instruct", "it", "chat" or "a3b" do not matter.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

_FILE = Path(__file__).with_name("model_names.json")
_TAG = re.compile(r"-(?P<tag>(?:iq|q)\d\w*|mxfp4|bf16|f(?:p)?(?:16|32))$")
_FORM = re.compile(r"[-:](?:instruct|it|chat|a\d+b)(?=[-:]|$)")  # what all models of the size are


class KnownModel(Struct, frozen=True):
    """A model that has a short name.

    Args:
        name: "family:size".
        repository: "owner/name" on the hub.
        shape: the name of its shape in shapes.json; None: its shape is not there.
        is_default: whether the family alone means it.
    """

    name: str
    repository: str
    shape: str | None = None
    is_default: bool = False

    @property
    def family(self) -> str:
        return self.name.partition(":")[0]


MODEL_NAMES: Mapping[str, KnownModel] = {
    name: KnownModel(name, **entry)
    for name, entry in json.loads(_FILE.read_text(encoding="utf-8")).items()
}


def path_here(word: str) -> Path | None:
    """The file or directory that a word names; None: there is none, and the word may be a name."""
    try:
        path = Path(word).expanduser()
        return path if word and path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long, no such user, a null byte
        return None


def find_short_name(word: str) -> tuple[KnownModel, str | None] | None:
    """The model that `word` means, and the quantization at its end; None if it is no short name."""
    word = _FORM.sub("", word.lower().removesuffix(":latest"))
    ending = _TAG.search(word)
    models = _by_key()
    if ending is not None and (found := models.get(_key(word[: ending.start()]))) is not None:
        return found, ending["tag"].upper()
    return None if (found := models.get(_key(word))) is None else (found, None)


def close_names(word: str) -> list[str]:
    """Short names that `word` may be a misspelling of: of its family, or close to it."""
    family = word.lower().partition(":")[0]
    of_family = [name for name, known in MODEL_NAMES.items() if known.family == family]
    if of_family:
        return of_family
    from difflib import get_close_matches  # imported here: most names are known

    return get_close_matches(word.lower(), MODEL_NAMES, 3)


def _by_key() -> dict[str, KnownModel]:
    keys = {_key(name): known for name, known in MODEL_NAMES.items()}
    return keys | {_key(each.family): each for each in MODEL_NAMES.values() if each.is_default}


def _key(name: str) -> str:
    return re.sub(r"[-:_]", "", name)
