"""The detokenizer: turns tokens into text as they arrive, in whole characters."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pellucid.text.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """The text of one request's output, token by token. One per request; the engine calls it.

    The joined pieces are the text that the output adds to the prompt: decode(prompt + output) without
    decode(prompt). So a continuation keeps its leading space. If the prompt ends within a character, the output
    that completes it begins with this character.

    Each token stands for bytes (`Tokenizer.token_bytes`), so this is an incremental UTF-8 decoder: bytes
    that can still become a character are held back, and U+FFFD stands for those that cannot (Unicode 16,
    section 3.9, substitution of maximal subparts) as soon as that is certain. O(1) per token.

    Args:
        prompt_token_ids: what the output continues; may be empty.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at_start = not any(map(self._bytes, prompt_token_ids))
        # The prompt may end within a character: its last three bytes tell how that character begins
        tail = b""
        for token_id in reversed(prompt_token_ids):
            tail = self._bytes(token_id) + tail
            if len(tail) >= 3:
                break
        self._decode(tail)
        self._prompt_is_open = bool(self._utf8.getstate()[0])

    def push(self, token_id: int) -> str:
        """Takes the next token; returns the text that is now certain, "" while a character is open."""
        data = self._bytes(token_id)
        if data and self._at_start:
            self._at_start = False
            data = self._tokenizer.first_token_bytes(token_id)
        return self._without_prompt(self._decode(data))

    def flush(self) -> str:
        """The output has ended: U+FFFD if it stopped within a character; nothing if it is called again."""
        return self._without_prompt(self._utf8.decode(b"", final=True))

    def _decode(self, data: bytes) -> str:
        text = self._utf8.decode(data)
        # CPython waits for a surrogate's third byte, although two already are no character
        if b"\xed\xa0" <= self._utf8.getstate()[0] < b"\xee":
            text += self._utf8.decode(b"", final=True)
        return text

    def _without_prompt(self, text: str) -> str:
        """A character that the prompt began and the output did not complete is U+FFFD in the prompt's text."""
        if text and self._prompt_is_open:
            self._prompt_is_open = False
            return text.removeprefix("\ufffd")
        return text

    def _bytes(self, token_id: int) -> bytes:
        return b"" if token_id in self._skipped else self._tokenizer.token_bytes(token_id)
