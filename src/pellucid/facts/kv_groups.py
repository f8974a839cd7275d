"""KV groups: which layers of a model share block tables, and where in a block each layer lies."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from msgspec import Struct

from pellucid.facts.formulas import BlockNeeds
from pellucid.facts.kv_formats import OPEN_GROUPS, find_kv_format
from pellucid.facts.model_config import ModelConfig

# More groups need less padding in blocks, but each group costs one block table more for each request.
MAX_GROUPS = 8


class KVGroup(Struct, frozen=True):
    """Layers that have one block table for each request: a block of the group holds their keys and values.

    Args:
        window: keys that a token sees in these layers; None: all before it.
        layers: indices of the layers, all with keys and values of their own.
    """

    window: int | None
    layers: tuple[int, ...]


class KVPlace(Struct, frozen=True):
    """Where the keys and values of a layer are: those of layer `index` of a group."""

    group: int
    index: int


def kv_groups(config: ModelConfig) -> tuple[KVGroup, ...]:
    """The groups of a model; those without a window first.

    Layers with equal windows, kv-heads and head dims are of one kind; a group has layers of one kind. Blocks of
    all groups have the same bytes and come from one pool, so a block holds as much as the largest group needs.
    Among the sizes of a block that give at most `MAX_GROUPS` groups, the one with the least padding is chosen.
    The groups of a part of a model are those of the whole one, without the layers of other parts.
    """
    if config.part is not None:
        return tuple(group for _, group in groups_of_part(config))
    kinds: dict[tuple[int | None, int, int], list[int]] = {}
    for index, window in _windows(config).items():
        attention = config.layers[index].attention
        assert attention is not None
        kinds.setdefault((window, attention.num_kv_heads, attention.head_dim), []).append(index)
    widths = {kind: kind[1] * kind[2] for kind in kinds}
    sizes = {
        num_layers * widths[kind]
        for kind, layers in kinds.items()
        for num_layers in range(1, len(layers) + 1)
    }

    def num_groups(size: int) -> int:
        return sum(-(-len(layers) // (size // widths[kind])) for kind, layers in kinds.items())

    most = max(MAX_GROUPS, len(kinds))
    fitting = [size for size in sizes if size >= max(widths.values()) and num_groups(size) <= most]
    size = min(fitting, key=lambda size: (num_groups(size) * size, num_groups(size)))
    groups = [
        KVGroup(kind[0], layers)
        for kind, members in kinds.items()
        for layers in _batches(members, size // widths[kind])
    ]
    return tuple(sorted(groups, key=lambda group: group.window is not None))


def groups_of_part(config: ModelConfig) -> Iterator[tuple[int, KVGroup]]:
    """The groups of the whole model that have layers of a part of it: the number of each in the whole model, and its
    layers in the part, counted from the part's first one."""
    for number, group in enumerate(kv_groups(config.whole)):
        layers = tuple(index - config.first_layer for index in group.layers)
        own = tuple(index for index in layers if 0 <= index < config.num_layers)
        if own:
            yield number, KVGroup(group.window, own)


def block_needs(config: ModelConfig, block_size: int, max_chunk: int) -> BlockNeeds:
    """The blocks that a request holds on a model.

    Args:
        max_chunk: most tokens of a request in one step.
    """
    windows = tuple(group.window for group in kv_groups(config))
    return BlockNeeds(block_size, windows, max_chunk)


def kv_shares(config: ModelConfig, num_processes: int) -> int:
    """How many of so many processes have a share of the kv-heads of each layer: all of them, or one, which has all
    heads. A share is the same number of heads in all processes."""
    divides = all(each.num_kv_heads % num_processes == 0 for each in config.attentions)
    return num_processes if divides else 1


def share_of_heads(config: ModelConfig, num_shares: int) -> ModelConfig:
    """The model of whose heads a process has one of `num_shares` shares: as its KV cache sees it. The groups are those
    of `config`."""
    if num_shares == 1:
        return config
    layers = (
        layer
        if (own := layer.attention) is None
        else replace(
            layer,
            attention=replace(
                own,
                num_heads=own.num_heads // num_shares,
                num_kv_heads=own.num_kv_heads // num_shares,
            ),
        )
        for layer in config.layers
    )
    return replace(config, layers=tuple(layers))


def kv_places(config: ModelConfig, groups: Sequence[KVGroup]) -> tuple[KVPlace | None, ...]:
    """The place of each layer; layers that share keys and values have one, recurrent layers none."""
    places = {
        layer: KVPlace(number, index)
        for number, group in enumerate(groups)
        for index, layer in enumerate(group.layers)
    }
    sources = (
        index if layer.attention is None else layer.attention.shared_kv_layer
        for index, layer in enumerate(config.layers)
    )
    return tuple(
        places.get(index if source is None else source) for index, source in enumerate(sources)
    )


def shares_layers(config: ModelConfig) -> bool:
    """Whether layers read keys and values of a layer before them."""
    return any(each.shared_kv_layer is not None for each in config.attentions)


def open_key_bytes(config: ModelConfig, dtype: str) -> int:
    """Bytes of a slot of open keys, those of the latest groups of a sequence in all layers; 0 for formats without.

    Raises:
        ValueError: there is no such format.
    """
    return OPEN_GROUPS * sum(_open_group_bytes(config, dtype))


def open_area_bytes(config: ModelConfig, dtype: str, max_step_tokens: int) -> int:
    """Bytes of the area for keys of a step's groups that no slot keeps. Layers use it one after another; where
    later layers read an earlier one's keys, each layer has its own.

    Args:
        max_step_tokens: tokens of a step.

    Raises:
        ValueError: there is no such format.
    """
    sizes = _open_group_bytes(config, dtype)
    positions = find_kv_format(dtype).open_positions
    if positions == 0:
        return 0
    return max_step_tokens // positions * (sum(sizes) if shares_layers(config) else max(sizes))


def _open_group_bytes(config: ModelConfig, dtype: str) -> list[int]:
    """Of a group's keys in bf16, in each layer that has its own."""
    kv_format = find_kv_format(dtype)
    own = (each for each in config.attentions if each.shared_kv_layer is None)
    return [
        2 * kv_format.open_positions * each.num_kv_heads * kv_format.keys.num_numbers(each.head_dim)
        for each in own
    ]


def _batches(layers: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    for start in range(0, len(layers), size):
        yield tuple(layers[start : start + size])


def _windows(config: ModelConfig) -> dict[int, int | None]:
    """Of each layer with keys and values of its own, the widest window of the layers that read them.
    A window as long as the context hides nothing."""
    windows: dict[int, int | None] = {}
    for index, layer in enumerate(config.layers):
        attention = layer.attention
        if attention is None:
            continue
        window = attention.window
        if window is not None and window >= config.context_length:
            window = None
        source = index if attention.shared_kv_layer is None else attention.shared_kv_layer
        before = windows.get(source, 0)
        windows[source] = None if window is None or before is None else max(window, before)
    return windows
