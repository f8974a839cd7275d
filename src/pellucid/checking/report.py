"""What a check says about a model, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pellucid.benchmark.estimate import Number


@dataclass(frozen=True)
class EndToken:
    """A token that ends an answer.

    Attributes:
        text: None if it is not among the texts that were read.
        named_by: the keys that name it, each with its file.
    """

    token_id: int
    text: str | None
    named_by: tuple[str, ...]


@dataclass(frozen=True)
class ChatFacts:
    """What a model does with conversations.

    Attributes:
        has_template: without a template, text is continued and nothing else.
        takes_tools: the template shows tools to the model.
        answer_family: how reasoning and tool calls are read from answers; None: an answer is text.
        reads_tool_calls: calls are found in answers.
        reasons: the template has a place for reasoning.
        reasoning_variable: of the template, that switches reasoning; None: it has none.
    """

    has_template: bool
    takes_tools: bool = False
    answer_family: str | None = None
    reads_tool_calls: bool = False
    reasons: bool = False
    reasoning_variable: str | None = None


@dataclass(frozen=True)
class LayerFacts:
    """Layers that are alike.

    Attributes:
        count: how many there are.
        mixer: "attention" or "recurrence".
        num_heads, num_kv_heads, head_dim: of attention, else 0.
        window: tokens that attention sees; None: all.
        num_experts, num_chosen: 0 without experts.
    """

    count: int
    mixer: str
    num_heads: int = 0
    num_kv_heads: int = 0
    head_dim: int = 0
    window: int | None = None
    num_experts: int = 0
    num_chosen: int = 0


@dataclass(frozen=True)
class StoredType:
    """The tensors of one type in the files."""

    name: str
    num_tensors: int
    num_bytes: int


@dataclass(frozen=True)
class ModelFacts:
    """The facts of a model that opens.

    Attributes:
        architecture: as config.json names the family.
        file_format: "gguf" or "safetensors".
        layers: groups of them, the largest first.
        context_length: tokens that the model can read.
        types: of stored tensors, the largest share first.
    """

    architecture: str
    file_format: str
    num_layers: int
    layers: tuple[LayerFacts, ...]
    hidden_size: int
    context_length: int
    vocab_size: int
    types: tuple[StoredType, ...]


@dataclass(frozen=True)
class ModelReport:
    """What a check found.

    Attributes:
        refusal: why it does not open, a sentence; None if it opens. Then all of the rest is there.
        notes: what was left out, a sentence each.
        needs: sizes in memory, for a request of `request_tokens` tokens.
    """

    model: str
    refusal: str | None
    notes: tuple[str, ...] = ()
    facts: ModelFacts | None = None
    end_tokens: tuple[EndToken, ...] = ()
    chat: ChatFacts | None = None
    needs: "Mapping[str, Number] | None" = None
    request_tokens: int = 0
