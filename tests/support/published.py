"""Published GGUF files: their metadata as tests/published/gguf holds it, and files with the same headers.

Weights are holes of the file system, so that a file of any size takes no space.
"""

import itertools
import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, GGUFValueType
from gguf.constants import GGMLQuantizationType as Type

from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import ModelConfig
from pellucid.loading.gguf_config import read_gguf_config
from pellucid.loading.gguf_types import _IK_TYPES
from pellucid.loading.hf_config import read_model_config
from pellucid.loading.wanted_tensors import wanted_tensors
from pellucid.models.gguf_dialects import dialect_of, usual_architecture
from pellucid.models.gguf_metadata import GgufMetadata
from pellucid.models.registry import find_gguf_family, gguf_architectures
from pellucid.models.unused_parts import UNUSED_PARTS

FOLDER = Path(__file__).parent.parent / "published" / "gguf"
_ALIGNMENT = 32
_VALUE_TYPES = {
    "u8": (0, "B"),
    "i8": (1, "b"),
    "u16": (2, "H"),
    "i16": (3, "h"),
    "u32": (4, "I"),
    "i32": (5, "i"),
    "f32": (6, "f"),
    "bool": (7, "?"),
    "str": (8, ""),
    "u64": (10, "Q"),
    "i64": (11, "q"),
    "f64": (12, "d"),
}
_ARRAY = 9
# A name in the corpus -> a type's number.
TYPE_NUMBERS: Mapping[str, int] = {
    **{each.name: each.value for each in Type},
    **{name: number for number, name in _IK_TYPES.items()},
}
_FOREIGN_BYTES = 4096  # of a tensor of a type whose size is unknown
_UNTURNED = 1e30  # divides the frequency of a pair that does not turn


@dataclass(frozen=True)
class Published:
    """What is known of a published file.

    Args:
        name: of the file in the corpus.
        kv: type and value by key; without a value where the source shows none. Keys that the source does not show are
            those of a complete file of the same kind.
        tensors: type and sizes of tensors that the source lists, in GGUF's order.
        types: how many tensors have each type.
        only_listed: whether the file has no other tensors.
    """

    name: str
    kv: Mapping[str, list[Any]]
    tensors: Mapping[str, tuple[str, list[int]]]
    types: Mapping[str, int]
    only_listed: bool

    @property
    def architecture(self) -> str:
        return usual_architecture(self.stored_architecture)

    @property
    def stored_architecture(self) -> str:
        return str(self.kv["general.architecture"][1])

    def value(self, key: str, default: Any = None) -> Any:
        """Of a key of the architecture."""
        return self.kv.get(f"{self.stored_architecture}.{key}", [None, default])[1]

    def array_length(self, key: str) -> int | None:
        """Of the array `key`."""
        given = re.search(r",(\d+)\]", self.kv[key][0]) if key in self.kv else None
        return int(given[1]) if given else None

    @property
    def is_model(self) -> bool:
        """Whether it holds a whole model whose weights are as they should be."""
        return not self.only_listed and not any(key.startswith("prism.") for key in self.kv)

    @property
    def other_names(self) -> Mapping[str, str]:
        """Names of tensors that llama.cpp calls something else, in layer "{i}", by llama.cpp's."""
        listed = dialect_of(self.architecture).stored_tensors(self.tensors)
        return {_in_layer(usual): _in_layer(stored) for usual, stored in listed.items()}

    @property
    def is_supported(self) -> bool:
        return self.architecture in gguf_architectures()

    @cached_property
    def all_tensors(self) -> Mapping[str, tuple[str, tuple[int, ...]]]:
        """Type and shape, rows first, of all tensors of the file: of those that the decoder reads, and of listed ones.

        Whether the head is stored apart, and q, k and v have biases, follows from the list or from the number of
        tensors. None of an architecture that does not load.
        """
        expected = sum(self.types.values())
        if expected and expected == len(self.tensors):
            return {name: (kind, tuple(dims[::-1])) for name, (kind, dims) in self.tensors.items()}
        found: Mapping[str, tuple[str, tuple[int, ...]]] = {}
        for facts in _guesses(self) if self.is_supported else ():
            guess = _tensors(self, facts)
            found = found or guess
            if guess and len(guess) in (expected, expected or len(guess)):
                return guess
        return found


def published_names() -> list[str]:
    """The names of all files of the corpus."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


@cache
def read_published(name: str) -> Published:
    """The file `name` of the corpus."""
    return parse_published(name, json.loads((FOLDER / f"{name}.json").read_text()))


def parse_published(name: str, given: Mapping[str, Any]) -> Published:
    """A file in the form of the corpus, which `pellucid check --dump` prints."""
    kv = given["kv"] | given.get("completed", {})
    types = given.get("types")
    tensors = {each: (kind, dims) for each, (kind, dims) in given.get("tensors", {}).items()}
    if (other := given.get("rest_as_in")) is not None:
        rest = read_published(other)
        kv = _renamed(rest.kv, rest.stored_architecture, kv["general.architecture"][1]) | kv
        types = rest.types if types is None else types
    return Published(name, kv, tensors, types or {}, given.get("only_listed", False))


def _renamed(kv: Mapping[str, Any], old: str, new: str) -> dict[str, Any]:
    return {
        f"{new}.{key.removeprefix(f'{old}.')}" if key.startswith(f"{old}.") else key: value
        for key, value in kv.items()
    }


# -- tensors ---------------------------------------------------------------------------------------


def _tensors(
    published: Published, facts: Mapping[str, tuple[int, ...]]
) -> Mapping[str, tuple[str, tuple[int, ...]]]:
    """The tensors of a model with these facts; none where its metadata wants others."""
    try:
        return dict(_wanted(published, facts))
    except ValueError:
        return {}


def _guesses(published: Published) -> Iterator[dict[str, tuple[int, ...]]]:
    """Shapes of tensors that say facts, the likeliest first."""
    hidden, vocab = (
        published.value("embedding_length"),
        published.array_length("tokenizer.ggml.tokens"),
    )
    vocab = vocab or published.value("vocab_size")
    listed = published.tensors
    is_whole = any(name.startswith("blk.3.") for name in listed)
    tied = [False, True] if not is_whole else ["output.weight" not in listed]
    if published.architecture.startswith(("gemma", "lfm2", "smollm3")):
        tied = [True]
    biased = [False, True] if published.architecture in ("llama", "glm4") else [False]
    factors = [False, True] if published.architecture in ("llama", "phi3") else [False]
    width = published.value("feed_forward_length")
    experts: list[dict[str, tuple[int, ...]]] = [{}]
    if published.value("expert_count"):  # gate and up apart, in one tensor, or a tensor for each
        by_expert = {"blk.0.ffn_gate.0.weight": (width, hidden)}
        apart = {f"blk.0.ffn_{part}_exps.weight": (1, 1, 1) for part in ("gate", "up")}
        experts = [apart, {}, by_expert]
    nets: list[dict[str, tuple[int, ...]]] = [{}]
    if published.architecture == "qwen3next":  # q, k, v and the gate in one tensor, or in two
        nets = [{"blk.0.ssm_in.weight": (1, 1)}, {}]
    for is_tied, has_bias, has_factors, expert_facts, net_facts in itertools.product(
        tied, biased, factors, experts, nets
    ):
        facts: dict[str, tuple[int, ...]] = {
            "token_embd.weight": (vocab, hidden),
            **expert_facts,
            **net_facts,
        }
        if not is_tied:
            facts["output.weight"] = (vocab, hidden)
        if has_bias:
            facts["blk.0.attn_q.bias"] = (hidden,)
        if has_factors and published.architecture == "phi3":
            for kind in ("long", "short"):
                facts[f"rope_factors_{kind}.weight"] = (
                    published.value("rope.dimension_count") // 2,
                )
        elif has_factors:
            facts["rope_freqs.weight"] = (published.value("rope.dimension_count") // 2,)
        if published.architecture == "gemma4":
            facts["rope_freqs.weight"] = (published.value("rope.dimension_count") // 2,)
            facts |= _gemma4_values(published)
        for name, (_, dims) in listed.items():
            if name.startswith("rope_f"):
                facts[name] = tuple(dims[::-1])
        yield facts


def _gemma4_values(published: Published) -> dict[str, tuple[int, ...]]:
    """Layers that see all tokens have no v in the large sizes."""
    is_large = published.value("embedding_length_per_layer_input", 0) == 0
    pattern = published.value("attention.sliding_window_pattern")
    return {
        f"blk.{layer}.attn_v.weight": (1, 1)
        for layer, slides in enumerate(pattern)
        if slides or not is_large
    }


def _wanted(
    published: Published, facts: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    """The tensors of a model with these facts, by the file's names."""
    metadata = metadata_of(published, facts)
    family = find_gguf_family(metadata)
    assert family.gguf is not None
    config = read_gguf_config(metadata)
    names = family.gguf_names(config, metadata)
    kinds = _Kinds(published)
    stored = _StoredNames(published, facts)
    wanted = {name: each.shape for name, each in wanted_tensors(config, names).items()}
    wanted |= {name: shape for name, shape in facts.items() if name.startswith("rope_f")}
    wanted |= _unread(config, wanted)
    wanted |= _drafting(published, wanted)
    if published.only_listed:
        wanted = {}
    for name, shape in wanted.items():
        for own_name, own_shape in stored(name, shape):
            yield own_name, (kinds(own_name, own_shape), own_shape)
    for name, (kind, dims) in published.tensors.items():
        if stored.is_extra(name, wanted):
            yield name, (kind, tuple(dims[::-1]))


def _unread(
    config: ModelConfig, wanted: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """What files hold of layers that read the keys and values of another one."""
    return {
        f"blk.{layer}.{name}": wanted[f"blk.{facts.attention.shared_kv_layer}.{name}"]
        for layer, facts in enumerate(config.layers)
        if facts.attention is not None and facts.attention.shared_kv_layer is not None
        for name in ("attn_k.weight", "attn_v.weight", "attn_k_norm.weight")
    }


def _drafting(
    published: Published, wanted: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Layers for drafts, behind the model's: like its last one, with a projection and norms."""
    count, hidden = published.value("block_count"), published.value("embedding_length")
    drafts: dict[str, tuple[int, ...]] = {}
    num_drafting = published.value("nextn_predict_layers", 0)
    for layer in range(count - num_drafting, count):
        last = f"blk.{count - num_drafting - 1}."
        for name, shape in wanted.items():
            if name.startswith(last):
                drafts[f"blk.{layer}.{name.removeprefix(last)}"] = shape
        drafts[f"blk.{layer}.nextn.eh_proj.weight"] = (hidden, 2 * hidden)
        for norm in ("enorm", "hnorm", "shared_head_norm"):
            drafts[f"blk.{layer}.nextn.{norm}.weight"] = (hidden,)
    return drafts


class _StoredNames:
    """The names that a file has for tensors that llama.cpp calls something else."""

    def __init__(self, published: Published, facts: Mapping[str, tuple[int, ...]]) -> None:
        dialect = dialect_of(published.architecture)
        listed = dialect.stored_tensors([*published.tensors, *facts])
        self._by_layer = {_in_layer(ours): theirs for ours, theirs in listed.items()}
        self._listed = set(listed.values())
        self._are_experts_apart = "blk.0.ffn_gate.0.weight" in facts

    def __call__(self, name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
        if (pattern := _in_layer(name)) in self._by_layer:
            layer = re.match(r"blk\.(\d+)\.", name)
            assert layer is not None
            yield re.sub(r"^blk\.\d+\.", f"blk.{layer[1]}.", self._by_layer[pattern]), shape
        elif self._are_experts_apart and "_exps." in name:
            for expert in range(shape[0]):
                yield name.replace("_exps.", f".{expert}."), shape[1:]
        else:
            yield name, shape

    def is_extra(self, name: str, wanted: Mapping[str, Any]) -> bool:
        return name not in wanted and name not in self._listed


def _in_layer(name: str) -> str:
    return re.sub(r"^blk\.\d+\.", "blk.{i}.", name)


class _Kinds:
    """The types of tensors: those that the source lists, and else its most frequent one for matrices."""

    def __init__(self, published: Published) -> None:
        self._listed = {name: kind for name, (kind, _) in published.tensors.items()}
        self._of_layers = {_in_layer(name): kind for name, kind in self._listed.items()}
        counts = {kind.upper(): count for kind, count in published.types.items()}
        counts.pop("F32", None)
        self._main = max(
            counts, key=lambda kind: counts[kind], default="F32" if published.types else "Q4_0"
        )

    def __call__(self, name: str, shape: tuple[int, ...]) -> str:
        if name in self._listed:
            return self._listed[name]
        if (pattern := _in_layer(name)) in self._of_layers:
            return self._of_layers[pattern]
        if len(shape) == 1 or re.search(r"conv1d|conv\.conv|ffn_gate_inp", name):
            return "F32"
        if "_exps.bias" in name:
            return "F32"
        return self._main


def metadata_of(published: Published, shapes: Mapping[str, tuple[int, ...]]) -> GgufMetadata:
    """The metadata of the file, for a family to read facts from."""
    dialect = dialect_of(published.architecture)
    stored = dialect.stored_tensors(shapes)
    usual = {theirs: ours for ours, theirs in stored.items()}
    factors = {
        name: list(_rope_factors(published, name, shape[0]))
        for name, shape in shapes.items()
        if name.startswith("rope_f")
    }
    tensors_alone = GgufMetadata(
        JsonObject(Path("published"), {}),
        published.architecture,
        {usual.get(name, name): shape for name, shape in shapes.items()},
        factors,
        published.stored_architecture,
        {},
        stored,
    )
    return with_keys(tensors_alone, published)


def with_keys(metadata: GgufMetadata, published: Published) -> GgufMetadata:
    """The metadata with the keys of `published`, which says nothing else about tensors."""
    prefix = f"{published.stored_architecture}."
    values = {
        key: given[1]
        for key, given in published.kv.items()
        if len(given) > 1 and key.startswith((prefix, "tokenizer."))
    }
    stored_keys = dialect_of(published.architecture).stored_keys(values, prefix)
    own = JsonObject(metadata.values.path, values)
    return replace(metadata, values=own, stored_keys=stored_keys)


def _rope_factors(published: Published, name: str, count: int) -> Iterator[float]:
    if published.architecture == "gemma4":  # a quarter of the pairs turns
        yield from (1.0 if pair < count // 4 else _UNTURNED for pair in range(count))
    else:
        yield from (1.0 + pair / count for pair in range(count))


# -- tiny files ------------------------------------------------------------------------------------

# Of a tiny file the tokenizer stays what it is.
_TOKENIZER = tuple(
    f"tokenizer.ggml.{key}"
    for key in ("model", "pre", "tokens", "token_type", "merges", "bos_token_id", "eos_token_id")
)


def with_keys_of(published: Published, directory: Path) -> Callable[[GGUFWriter], None]:
    """An edit of a tiny file: it gets the keys of `published`, each with its type, and its other names of tensors.

    Args:
        directory: the checkpoint from which the tiny file is made; its values stay.
    """
    model = read_model_config(directory)
    attention = model.attentions[0]
    num_drafting = published.value("nextn_predict_layers", 0)
    sizes = {
        "vocab_size": model.vocab_size,
        "attention.key_length": attention.head_dim,
        "attention.value_length": attention.head_dim,
    }
    prefix = f"{published.stored_architecture}."

    def edit(writer: GGUFWriter) -> None:
        [facts] = writer.kv_data
        tiny = dict(facts)
        facts.clear()
        for key in _TOKENIZER:
            facts[key] = tiny[key]
        for key, given in published.kv.items():
            own = key.removeprefix(prefix)
            usual = f"{published.architecture}.{own}" if key.startswith(prefix) else key
            if key in _TOKENIZER or key.startswith("split."):
                continue
            if own == "block_count":
                value = model.num_layers + num_drafting
            elif usual in tiny and key != "general.architecture":
                value = tiny[usual].value
            elif own in sizes:
                value = sizes[own]
            elif key.endswith(("_token_id", "_token_ids")):
                value = tiny["tokenizer.ggml.eos_token_id"].value
            elif len(given) > 1:
                value = given[1]
            else:  # which the source does not show
                continue
            _add(writer, key, given[0], value, model.num_layers)
        _rename(writer, published)
        for layer in range(model.num_layers, model.num_layers + num_drafting):
            writer.add_tensor(f"blk.{layer}.nextn.eh_proj.weight", np.ones((2, 2), np.float32))

    return edit


def _add(writer: GGUFWriter, key: str, kind: str, value: Any, num_layers: int) -> None:
    array = re.fullmatch(r"arr\[(\w+),\d+\]", kind)
    if array is None:
        writer.add_key_value(key, value, GGUFValueType(_VALUE_TYPES[kind][0]))
        return
    items = value if isinstance(value, list) else [value] * num_layers
    writer.add_key_value(key, items, GGUFValueType.ARRAY, GGUFValueType(_VALUE_TYPES[array[1]][0]))


def _rename(writer: GGUFWriter, published: Published) -> None:
    """Other names of tensors, and those of parts that text does not need."""
    [tensors] = writer.tensors
    others = published.other_names
    writer.tensors[0] = {_other_name(name, others): info for name, info in tensors.items()}
    for name in published.tensors:
        if any(re.fullmatch(part.gguf, name) for part in UNUSED_PARTS):
            writer.add_tensor(name, np.ones((2, 2), np.float32))


def _other_name(name: str, others: Mapping[str, str]) -> str:
    layer = re.match(r"blk\.(\d+)\.", name)
    other = others.get(_in_layer(name), _in_layer(name))
    return other.replace("{i}", layer[1]) if layer else other


# -- files -----------------------------------------------------------------------------------------


def write_published(
    path: Path,
    published: Published,
    *,
    vocabulary: bool = False,
    edit: Callable[[dict[str, list[Any]]], None] | None = None,
) -> Path:
    """Writes a file with the header of `published`, full sizes, and holes in place of weights.

    Args:
        vocabulary: whether its tokens, merges, scores and types are written, made up.
        edit: changes types and values by key before they are written.
    """
    # The parts of a split file become one.
    kv = {k: list(given) for k, given in published.kv.items() if not k.startswith("split.")}
    tensors = published.all_tensors
    if edit is not None:
        edit(kv)
    entries = [_entry(key, *_with_value(key, given, vocabulary)) for key, given in kv.items()]
    entries = [entry for entry in entries if entry]
    offset, infos, data = 0, [], []
    for name, (kind, shape) in tensors.items():
        infos.append(
            _text(name)
            + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
            + struct.pack("<IQ", TYPE_NUMBERS[kind], offset)
        )
        if name.startswith("rope_f"):
            data.append((offset, list(_rope_factors(published, name, shape[0]))))
        offset = _aligned(offset + _num_bytes(kind, shape))
    counts = struct.pack("<IQQ", 3, len(infos), len(entries))
    header = b"GGUF" + counts + b"".join(entries) + b"".join(infos)
    start = _aligned(len(header))
    with path.open("wb") as file:
        file.write(header)
        for place, numbers in data:
            file.seek(start + place)
            file.write(np.array(numbers, np.float32).tobytes())
        file.truncate(start + offset)
    return path


def _with_value(key: str, given: list[Any], vocabulary: bool) -> tuple[str, Any]:
    """Type and value of a key; made up where the source shows none."""
    kind = given[0]
    if len(given) > 1:
        return kind, given[1]
    array = re.fullmatch(r"arr\[(\w+),(\d+)\]", kind)
    if array is None:
        return kind, ""
    if not vocabulary:
        return kind, None
    length = int(array[2])
    match key.rsplit(".", 1)[1]:
        case "tokens":
            return kind, [f"token{i}" for i in range(length)]
        case "merges":
            return kind, [f"t{i % 97} o{i}" for i in range(length)]
    return kind, [1] * length


def _entry(key: str, kind: str, value: Any) -> bytes:
    """An entry of metadata; empty where its value is not written."""
    if value is None:
        return b""
    if kind == "str":
        return _text(key) + struct.pack("<I", 8) + _text(value)
    if (array := re.fullmatch(r"arr\[(\w+),(\d+)\]", kind)) is None:
        number, code = _VALUE_TYPES[kind]
        return _text(key) + struct.pack(f"<I{code}", number, value)
    number, code = _VALUE_TYPES[array[1]]
    value = [item for item in value if item != "..."]
    head = _text(key) + struct.pack("<IIQ", _ARRAY, number, len(value))
    if array[1] == "str":
        return head + b"".join(map(_text, value))
    return head + struct.pack(f"<{len(value)}{code}", *value)


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _num_bytes(kind: str, shape: tuple[int, ...]) -> int:
    if kind not in Type.__members__:
        return _FOREIGN_BYTES
    block_size, block_bytes = GGML_QUANT_SIZES[Type[kind]]
    return math.prod(shape) // block_size * block_bytes


def _aligned(position: int) -> int:
    return -(-position // _ALIGNMENT) * _ALIGNMENT
