"""An open checkpoint: its configuration, tensors and tokenizer, in any file format."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pellucid.backends.quantization.formats import IntegerFormat
from pellucid.facts.json_object import JsonObject
from pellucid.facts.model_config import ModelConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loading.tensor_source import TensorSource
from pellucid.models.family import WeightNames

if TYPE_CHECKING:  # the library takes a while to import, and headers need none of it
    from tokenizers import Tokenizer

    from pellucid.loading.partial_tokenizer import PartialTokenizer

# Text to ids and back, without truncation and padding.
TextTokenizer: TypeAlias = "Tokenizer | PartialTokenizer"


def whole_tokenizer(tokenizer: TextTokenizer) -> "Tokenizer":
    """The library's tokenizer with all tokens, made if it must be."""
    from tokenizers import Tokenizer

    return tokenizer if isinstance(tokenizer, Tokenizer) else tokenizer.make_whole()


# For each the tokenizers library takes 70 bytes.
MAX_ADDED_CHARACTERS = 2_000_000


@dataclass(frozen=True)
class StoredTokenizer:
    """A tokenizer as the files of a model hold it.

    Args:
        hf_tokenizer: text to ids and back, without truncation and padding.
        special_tokens: by the names that chat templates use: "bos_token", "eos_token", ...
        chat_template: its source, None if the model has none.
        tool_chat_template: the one for conversations with tools, if it is another one.
        response_template: describes the parts of answers, unchecked; None if the files have none.
        num_ids: all token ids are smaller; None if the files do not say.
    """

    hf_tokenizer: TextTokenizer
    special_tokens: dict[str, str]
    chat_template: str | None
    tool_chat_template: str | None = None
    response_template: Any = None
    num_ids: int | None = None


@dataclass(frozen=True)
class StoredModel:
    """A checkpoint: its facts, its tensors, and which of them make up each weight of a decoder.

    Args:
        path: the directory or the file.
        config: the facts.
        tensors: by the names of the files.
        names: the tensors of each of the decoder's weights.
        weight_format: of all matrices, where `pellucid quantize` wrote them.
        default_sampling_params: the sampling parameters that the checkpoint recommends.
        read_tokenizer: reads the tokenizer, once; None where it stands in tokenizer.json. Raises a
            ValueError where it is damaged or not supported.
        tokenizer_refusal: why `read_tokenizer` would raise, where that is known before anything is read.
        metadata: of a GGUF file; None for a directory. `read_tokenizer` clears it.
        notes: what the files hold that was left out, or what they say that their tensors contradict; a
            sentence each.
    """

    path: Path
    config: ModelConfig
    tensors: TensorSource
    names: WeightNames
    weight_format: IntegerFormat | None = None
    default_sampling_params: SamplingParams = field(default_factory=SamplingParams)
    read_tokenizer: Callable[[], StoredTokenizer] | None = None
    tokenizer_refusal: str | None = None
    notes: tuple[str, ...] = ()
    metadata: JsonObject | None = None
