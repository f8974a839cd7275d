"""Where checkpoints store pellucid's weights, as data: the tensors, and the steps that make ours of them.

Decoders know one set of names: `layers.{i}.qkv_proj` holds the rows of q, then k, then v, even where they are stored
apart. The names here leave out ".weight" and ".bias", which both sides share; "{i}" is the layer, "{e}" the expert.
`loading/steps.py` takes the steps.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from pellucid.facts.model_config import LayerConfig

Shape: TypeAlias = tuple[int, ...]
RowOrder: TypeAlias = Callable[[LayerConfig], Sequence[int]]

QKV = "layers.{i}.qkv_proj"


class Step(Struct, frozen=True):
    """A change of a stored tensor on its way to ours. Of a tensor of all experts it changes each expert's matrix."""

    def stored_shape(self, shape: Shape, actual: Shape | None) -> Shape:
        """The shape before the step.

        Args:
            shape: after it.
            actual: of the tensor in the file; None: not known.
        """
        return shape


class Transposed(Step, frozen=True):
    """Stored [in, out], as GPT-2's Conv1D does."""

    def stored_shape(self, shape: Shape, actual: Shape | None) -> Shape:
        return shape[::-1]


class TransposedOrNot(Step, frozen=True):
    """Stored [out, in] or [in, out], as its shape tells."""

    def stored_shape(self, shape: Shape, actual: Shape | None) -> Shape:
        return shape if actual in (None, shape) else shape[::-1]


class Offset(Step, frozen=True):
    """Stored as the distance from `amount`; Gemma stores how far its norms are from 1."""

    amount: float


class NegativeExp(Step, frozen=True):
    """Ours is -exp of what is stored."""


class Half(Step, frozen=True):
    """Stored with another weight, whose rows follow: ours are the first rows if `index` is 0, the others if 1."""

    index: int

    def stored_shape(self, shape: Shape, actual: Shape | None) -> Shape:
        return (2 * shape[0], *shape[1:])


class Alternate(Half, frozen=True):
    """Stored with another weight, and the rows of both alternate: ours come first if `index` is 0."""


class Rows(Step, frozen=True):
    """Ours are some of the stored rows, or all, in another order."""

    order: RowOrder

    def stored_shape(self, shape: Shape, actual: Shape | None) -> Shape:
        return shape if actual is None else (*actual[:1], *shape[1:])


class HalvesFirst(Step, frozen=True):
    """q or k, stored with the two rows of a rotated pair side by side; ours are the first halves of all pairs of a
    head, then the second ones."""


class Depthwise(Step, frozen=True):
    """A convolution [channels, kernel], stored with an axis of one input channel: in the middle by torch, at the end
    by MLX, nowhere in GGUF files."""

    def stored_shape(self, shape: Shape, actual: Shape | None) -> Shape:
        if actual is None or len(actual) != 3:
            return shape
        return (*shape, 1) if actual[2] == 1 else (shape[0], 1, shape[1])


class Source(Struct, frozen=True):
    """A module of a checkpoint, and the steps that make rows of ours of its tensor."""

    name: str
    steps: tuple[Step, ...] = ()

    def tensor(self, kind: str) -> str:
        """The name of its "weight" or "bias"."""
        return f"{self.name}.{kind}"

    def shapes(self, shape: Shape, actual: Shape | None = None) -> list[Shape]:
        """Of its tensor in the file, and after each step; `shape` is the last. `actual` is that of `Step`."""
        shapes = [shape]
        for step in reversed(self.steps):
            shapes.append(step.stored_shape(shapes[-1], actual))
        return shapes[::-1]

    def of_layer(self, layer: str) -> "Source":
        return replace(self, name=self.name.replace("{i}", layer))

    def of_expert(self, expert: int) -> "Source":
        """Where each expert has a tensor: that of one."""
        return replace(self, name=self.name.replace("{e}", str(expert)))

    @property
    def of_all_experts(self) -> "Source":
        """Where one tensor has the matrices of all experts."""
        return replace(self, name=self.name.replace(".{e}", ""))


class Tensor(Source, frozen=True):
    """A source whose name is that of a tensor: its bias ends in "_bias"."""

    def tensor(self, kind: str) -> str:
        return self.name if kind == "weight" else f"{self.name}_{kind}"


class Recipe(Struct, frozen=True):
    """How one of pellucid's weights is made of a checkpoint's tensors.

    Args:
        sources: their rows follow each other.
        is_table: whether steps of the engine read single rows of it, in the file.
    """

    sources: tuple[Source, ...]
    is_table: bool = False

    def in_layers(self, prefix: str) -> "Recipe":
        """The same of a layer, before whose modules `prefix` stands."""
        return replace(
            self, sources=tuple(replace(each, name=prefix + each.name) for each in self.sources)
        )

    def of_layer(self, layer: str) -> "Recipe":
        """That of one layer."""
        return replace(self, sources=tuple(each.of_layer(layer) for each in self.sources))

    def with_step(self, step: Step, *indices: int) -> "Recipe":
        """The same with one step more for the sources of these numbers."""
        sources = (
            replace(each, steps=(*each.steps, step)) if index in indices else each
            for index, each in enumerate(self.sources)
        )
        return replace(self, sources=tuple(sources))

    def without(self, kind: type[Step]) -> "Recipe":
        """The same without the steps of a kind."""
        sources = (
            replace(each, steps=tuple(step for step in each.steps if type(step) is not kind))
            for each in self.sources
        )
        return replace(self, sources=tuple(sources))


class StoredWeight(Struct, frozen=True):
    """Where checkpoints store one of pellucid's weights.

    Args:
        hf: in Hugging Face layout.
        gguf: in a GGUF file, whose converter transposes and adds offsets itself.
    """

    hf: Recipe
    gguf: Recipe


def joined(*names: str) -> Recipe:
    """Modules whose rows follow each other, as they are stored."""
    return Recipe(tuple(Source(name) for name in names))


def stored(hf: str | Source, gguf: str | Source, *steps: Step) -> StoredWeight:
    """A weight that is one module of either kind of file.

    Args:
        steps: of Hugging Face's; where a `Source` is given, it has its own.
    """
    return StoredWeight(
        Recipe((Source(hf, steps) if isinstance(hf, str) else hf,)),
        Recipe((Source(gguf) if isinstance(gguf, str) else gguf,)),
    )


def convolution(hf: str, gguf: str) -> StoredWeight:
    """The kernels of a depthwise convolution."""
    depthwise = (Depthwise(),)
    return stored(Source(hf, depthwise), Source(gguf, depthwise))


def in_layers(
    weights: Mapping[str, StoredWeight], hf: str = "layers.{i}."
) -> Mapping[str, StoredWeight]:
    """Weights of each layer, from their names within it; `hf` stands before Hugging Face's."""
    return {
        f"layers.{{i}}.{module}": StoredWeight(
            weight.hf.in_layers(hf), weight.gguf.in_layers("blk.{i}.")
        )
        for module, weight in weights.items()
    }


def with_offset(weights: Mapping[str, StoredWeight], amount: float) -> Mapping[str, StoredWeight]:
    """`weights` whose norms Hugging Face's files store as their distance from `amount`."""
    return {
        module: replace(weight, hf=weight.hf.with_step(Offset(amount), 0))
        if module.endswith("norm")
        else weight
        for module, weight in weights.items()
    }


# -- what families share ---------------------------------------------------------------------------

LLAMA_WEIGHTS: Mapping[str, StoredWeight] = {
    "embed_tokens": stored("embed_tokens", "token_embd"),
    **in_layers(
        {
            "attention_norm": stored("input_layernorm", "attn_norm"),
            "qkv_proj": StoredWeight(
                joined("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
                joined("attn_q", "attn_k", "attn_v"),
            ),
            "o_proj": stored("self_attn.o_proj", "attn_output"),
            "mlp_norm": stored("post_attention_layernorm", "ffn_norm"),
            "gate_up_proj": StoredWeight(
                joined("mlp.gate_proj", "mlp.up_proj"), joined("ffn_gate", "ffn_up")
            ),
            "down_proj": stored("mlp.down_proj", "ffn_down"),
        }
    ),
    "norm": stored("norm", "output_norm"),
    "lm_head": stored("lm_head", "output"),
}

QK_NORM_WEIGHTS = in_layers(
    {f"{x}_norm": stored(f"self_attn.{x}_norm", f"attn_{x}_norm") for x in "qk"}
)

# Gate and up are stored as one matrix.
FUSED_GATE_UP = in_layers({"gate_up_proj": stored("mlp.gate_up_proj", "ffn_up")})


# q and k whose rotated pairs of rows stand side by side: in GGUF files alone, and in all files.
_QKV = LLAMA_WEIGHTS[QKV]
GGUF_PAIRS = {QKV: replace(_QKV, gguf=_QKV.gguf.with_step(HalvesFirst(), 0, 1))}
PAIRS = {QKV: replace(GGUF_PAIRS[QKV], hf=_QKV.hf.with_step(HalvesFirst(), 0, 1))}
