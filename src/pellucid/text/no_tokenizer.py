"""The tokenizer of an engine without one: token ids in, token ids out (`skip_tokenizer_init`)."""

from __future__ import annotations

from typing import Any, NoReturn

from tokenizers import Tokenizer as HfTokenizer
from tokenizers.models import WordLevel

from pellucid.inputs.prompts import ChatPrompt
from pellucid.text.tokenizer import Tokenizer


class NoTokenizer(Tokenizer):
    """Gives every token id the empty text, and refuses to encode."""

    makes_text = False

    def __init__(self, vocab_size: int) -> None:
        super().__init__(HfTokenizer(WordLevel({}, unk_token="")), vocab_size, {})

    def encode(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises ValueError."""
        raise ValueError(
            "skip_tokenizer_init=True: no tokenizer is loaded; give the prompt as token ids"
        )

    def _chat_encoder(self, prompt: ChatPrompt) -> NoReturn:
        self.encode()
