"""The registry: the decoder of each architecture, by its name in config.json."""

from collections.abc import Callable
from typing import TypeAlias

from pellucid.backends.ops import Decoder, Ops, Parameters
from pellucid.config import ModelConfig
from pellucid.models.gemma2 import Gemma2Decoder
from pellucid.models.gpt2 import GPT2Decoder
from pellucid.models.llama import LlamaDecoder

DecoderClass: TypeAlias = Callable[[ModelConfig, Parameters, Ops], Decoder]

_DECODERS: dict[str, DecoderClass] = {
    "GPT2LMHeadModel": GPT2Decoder,
    "Gemma2ForCausalLM": Gemma2Decoder,
    "LlamaForCausalLM": LlamaDecoder,
    "MistralForCausalLM": LlamaDecoder,
    "Phi3ForCausalLM": LlamaDecoder,
    "Qwen2ForCausalLM": LlamaDecoder,
    "Qwen3ForCausalLM": LlamaDecoder,
}


def decoder_class(architecture: str) -> DecoderClass:
    """The decoder of `ModelConfig.architecture`.

    Raises:
        ValueError: no decoder is written for it.
    """
    if architecture not in _DECODERS:
        raise ValueError(f"architecture={architecture!r}: known are {', '.join(_DECODERS)}")
    return _DECODERS[architecture]
