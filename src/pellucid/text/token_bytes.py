"""The bytes that each token stands for."""

import json
import re
from typing import Any

from pellucid.loading.stored_model import TextTokenizer
from pellucid.text.text_encoder import is_panic

# Decoders that work token by token, up to a space at the start of the text
_LOCAL_DECODERS = {"ByteFallback", "Fuse", "Metaspace", "Replace", "Strip", "WordPiece"}


class TokenBytes(dict[int, bytes]):
    """What each token of a tokenizer adds to the text behind another one, in bytes, independent of its neighbours; b""
    for an id that the tokenizer lacks. An entry is made when somebody asks for it.

    With it, text is the UTF-8 decoding of the tokens' bytes in a row, at once or token by token. Only the
    first token of a text may differ, because SentencePiece's decoders drop the space it begins with.

    Args:
        hf_tokenizer: a Hugging Face tokenizer; its decoder says what a token's string means.

    Raises:
        ValueError: the decoder looks at a token's neighbours, so that tokens have no bytes of their own.
    """

    def __init__(self, hf_tokenizer: TextTokenizer) -> None:
        decoder = hf_tokenizer.decoder
        steps = [] if decoder is None else _steps(json.loads(decoder.__getstate__()))
        kinds = {step["type"] for step in steps}
        self._hf_tokenizer = hf_tokenizer
        self._byte_level = _byte_level_alphabet() if "ByteLevel" in kinds else None
        self._byte_fallback = "ByteFallback" in kinds
        allowed = {"ByteLevel", "Fuse"} if "ByteLevel" in kinds else _LOCAL_DECODERS
        for step in steps:
            strips_more = step["type"] == "Strip" and (step["start"] > 1 or step["stop"] > 0)
            if step["type"] not in allowed or strips_more:
                raise ValueError(
                    f"decoder {step} is not supported: what a token adds to the text may depend"
                    " on nothing but whether it is the first"
                )

    def __missing__(self, token_id: int) -> bytes:
        found = self[token_id] = self._find(token_id)
        return found

    def first(self, token_id: int) -> bytes:
        """The bytes of a token that begins a text."""
        raw = self._raw(token_id)
        return self._decode([token_id]).encode() if raw is None else raw

    def _find(self, token_id: int) -> bytes:
        raw = self._raw(token_id)
        if raw is not None:
            return raw
        # Twice in a row less once: what the token adds when it is not the first
        once, twice = self._decode([token_id]), self._decode([token_id, token_id])
        if not twice.startswith(once):
            raise ValueError(
                f"the decoder turns token {token_id} twice into {twice!r}, once into {once!r}"
            )
        return twice[len(once) :].encode()

    def _raw(self, token_id: int) -> bytes | None:
        """The bytes of a token that stands for bytes as such, which need not be characters."""
        token = self._hf_tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if self._byte_level is not None:
            in_alphabet = all(char in self._byte_level for char in token)
            return (
                bytes(map(self._byte_level.__getitem__, token)) if in_alphabet else token.encode()
            )
        byte = re.fullmatch("<0x([0-9A-Fa-f]{2})>", token) if self._byte_fallback else None
        if byte is not None and int(byte[1], 16) >= 0x80:  # below are characters: space has rules
            return bytes.fromhex(byte[1])
        return None

    def _decode(self, token_ids: list[int]) -> str:
        try:
            text: str = self._hf_tokenizer.decode(token_ids, skip_special_tokens=False)
        except BaseException as error:
            if is_panic(error):
                raise ValueError(f"the decoder failed on token {token_ids[0]}: {error}") from None
            raise
        return text


def _steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps of a decoder as tokenizer.json writes it, in order."""
    if decoder["type"] == "Sequence":
        return [step for child in decoder["decoders"] for step in _steps(child)]
    return [decoder]


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable character for each byte (Radford et al. 2019, `bytes_to_unicode`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + rank): byte for rank, byte in enumerate(others)}
