"""Parts of a model: neighbouring layers that a process computes while others compute the rest."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pellucid.facts.model_config import LayerConfig, ModelConfig, ModelPart


def part_of(config: ModelConfig, layers: range) -> ModelConfig:
    """Some neighbouring layers of a whole model as a model of its own.

    Raises:
        ValueError: these layers cannot be computed without others (`possible_cuts`), or none of them keeps keys and
            values.
    """
    whole = config.num_layers
    if not 0 <= layers.start < layers.stop <= whole:
        raise ValueError(f"layers {_shown(layers)}: the model has {whole} layers")
    cuts = {0, whole, *possible_cuts(config)}
    for end in (layers.start, layers.stop):
        if end not in cuts:
            raise ValueError(
                f"layers {_shown(layers)}: no cut is possible before layer {end}, which or whose successors read keys"
                " and values of layers before it"
            )
    if not _keeps_keys(config.layers[layers.start : layers.stop]):
        raise ValueError(
            f"layers {_shown(layers)}: one of them must keep keys and values, and all are recurrent"
        )
    own = tuple(_shifted(each, layers.start) for each in config.layers[layers.start : layers.stop])
    return replace(config, layers=own, part=ModelPart(config, layers.start))


def possible_cuts(config: ModelConfig) -> list[int]:
    """Where a model can be cut: the numbers of layers that can be the first of a part. Layers that share keys and
    values stay together."""
    readers = [
        (layer.attention.shared_kv_layer, index)
        for index, layer in enumerate(config.layers)
        if layer.attention is not None and layer.attention.shared_kv_layer is not None
    ]
    return [
        cut
        for cut in range(1, config.num_layers)
        if not any(source < cut <= reader for source, reader in readers)
    ]


@dataclass(frozen=True)
class PartMemory:
    """Where a part of a model is to lie.

    Args:
        available: bytes for its weights and its KV cache.
        num_layers: that it is to have; None: as many as suit the memory.
    """

    available: int
    num_layers: int | None = None


def divide_layers(
    config: ModelConfig,
    layer_bytes: Sequence[int],
    ends: tuple[int, int],
    parts: Sequence[PartMemory],
) -> list[range]:
    """Divides the layers of a model so that the fullest memory is as empty as possible.

    Args:
        layer_bytes: of the weights of each layer.
        ends: bytes of the embedding, which the first part has, and of the head, which the last one has.
        parts: in order.

    Returns:
        The layers of each part.

    Raises:
        ValueError: the numbers of layers that are asked for do not add up, or the model has too few layers.
    """
    # Of each cut, after the parts so far: the load of the fullest memory, and where the last part began.
    best: dict[int, tuple[float, list[range]]] = {0: (0.0, [])}
    cuts = (*possible_cuts(config), config.num_layers)
    for number, part in enumerate(parts):
        is_first, is_last = number == 0, number == len(parts) - 1
        found: dict[int, tuple[float, list[range]]] = {}
        for start, (load, before) in best.items():
            for stop in [config.num_layers] if is_last else cuts:
                layers = range(start, stop)
                if not layers or not _keeps_keys(config.layers[start:stop]):
                    continue
                if part.num_layers not in (None, len(layers)):
                    continue
                size = sum(layer_bytes[start:stop]) + ends[0] * is_first + ends[1] * is_last
                own = max(load, size / max(1, part.available))
                if stop not in found or own < found[stop][0]:
                    found[stop] = own, [*before, layers]
        best = found
    if config.num_layers not in best:
        asked = [each.num_layers for each in parts]
        wanted = "" if not any(asked) else f" of {', '.join(map(_count, asked))} layers"
        raise ValueError(
            f"the {config.num_layers} layers cannot be divided into {len(parts)} parts{wanted}; it can be cut before"
            f" the layers {', '.join(map(str, possible_cuts(config)))}, and each part needs a layer that keeps keys"
            " and values"
        )
    return best[config.num_layers][1]


def _count(num_layers: int | None) -> str:
    return "any number" if num_layers is None else str(num_layers)


def _keeps_keys(layers: Iterable[LayerConfig]) -> bool:
    return any(each.attention is not None for each in layers)


def _shifted(layer: LayerConfig, by: int) -> LayerConfig:
    """The layer, among layers that are counted from `by` on."""
    attention = layer.attention
    if attention is None or attention.shared_kv_layer is None:
        return layer
    shared = attention.shared_kv_layer - by
    return replace(layer, attention=replace(attention, shared_kv_layer=shared))


def _shown(layers: range) -> str:
    return f"{layers.start}..{layers.stop - 1}"
