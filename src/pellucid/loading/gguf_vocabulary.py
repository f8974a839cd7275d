"""The tokens of a GGUF file, their types and their roles."""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from pellucid.backends.native import Texts, TokenTable, merges_of_pairs
from pellucid.facts.json_object import JsonObject
from pellucid.inputs.parameter_checks import shown
from pellucid.loading import gguf_tokenizer_keys as tokenizer_keys
from pellucid.loading.gguf_arrays import Numbers, read_numbers, read_texts

# By the names that chat templates use.
_ROLES = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "sep_token": "seperator",  # as the format spells it
    "pad_token": "padding",
    "cls_token": "cls",
    "mask_token": "mask",
}
# Tokens that no text is encoded with: some files have ids beyond their list.
_MAY_LACK = ("seperator", "padding", "cls", "mask")


class TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Vocabulary:
    """Tokens, their types and the ids with a role: `Tokens` of a `PartialTokenizer`. Threads may share it.

    Args:
        metadata: of a file with a tokenizer.

    Attributes:
        tokens: by id. Rows of the model without a token have a placeholder or an empty text, perhaps the same.
        types: by id.

    Raises:
        ValueError: a key is missing or has a value that is not allowed, or two tokens have the same text.
    """

    def __init__(self, metadata: JsonObject) -> None:
        self._metadata = metadata
        tokens = read_texts(metadata, tokenizer_keys.TOKENS)
        if tokens is None or not len(tokens):
            raise metadata.error(tokenizer_keys.TOKENS, "must be a list of strings")
        self.tokens = tokens
        self.types = self._read_types()
        unknown = self.types[(self.types < min(TokenType)) | (self.types > max(TokenType))]
        if len(unknown):
            raise ValueError(
                f"{metadata.path}: {tokenizer_keys.TOKEN_TYPE} holds {unknown.min()}: supported are "
                f"{min(TokenType)} to {max(TokenType)}"
            )
        is_used = self.types != TokenType.UNUSED
        self._is_used = is_used.tobytes()  # Python reads bytes faster than NumPy's flags
        self._table = TokenTable(tokens, is_used)
        if (repeated := self._table.repeated) is not None:
            raise ValueError(
                f"{metadata.path}: {tokenizer_keys.TOKENS} holds {shown(tokens[repeated])} twice"
            )

    def _read_types(self) -> Numbers:
        keys = self._metadata.values.keys()
        if tokenizer_keys.TOKEN_TYPE in keys or any(
            f"{tokenizer_keys.PREFIX}{role}_token_id" in keys for role in _ROLES.values()
        ):
            return self.numbers(tokenizer_keys.TOKEN_TYPE, "iu")
        return np.full(len(self.tokens), TokenType.NORMAL)  # no token is special

    @property
    def num_tokens(self) -> int:
        """How many tokens stand for text."""
        return len(self._table)

    def find(self, text: str) -> int | None:
        """The id of the token that stands for a text; None if there is none."""
        return self._table.find(text)

    def token(self, token_id: int) -> str | None:
        """What a token stands for; None if there is none with this id."""
        if not 0 <= token_id < len(self.tokens) or not self._is_used[token_id]:
            return None
        return self.tokens[token_id] or None

    def ids(self, texts: Iterable[str] | None = None) -> dict[str, int]:
        """The ids of tokens that stand for text, rising.

        Args:
            texts: among which the tokens are; None: all.
        """
        if texts is not None:
            return dict(sorted(self._table.among(texts).items(), key=itemgetter(1)))
        tokens = self.tokens.tolist()
        used = np.flatnonzero(self.types != TokenType.UNUSED).tolist()
        ids = dict(zip(map(tokens.__getitem__, used), used, strict=True))
        ids.pop("", None)
        return ids

    def sizes(self, types: Iterable[int]) -> list[int]:
        """The numbers of characters of the tokens of these types, each once, rising."""
        return self.tokens.sizes(np.isin(self.types, list(types)))

    def merges(self, pairs: Texts) -> npt.NDArray[np.int32] | None:
        """The ids [M, 3] of both sides and of the result of merges that are listed as "left right"; None: one has no
        space between two sides, or a side or a result is no token."""
        return merges_of_pairs(self._table, pairs)

    def ids_of_types(self, types: Iterable[int]) -> list[int]:
        """Of the tokens of these types, in rising order."""
        found: list[int] = np.flatnonzero(np.isin(self.types, list(types))).tolist()
        return found

    def numbers(self, key: str, kinds: str) -> Numbers:
        """One number per token, by id. `kinds` are those of `read_numbers`.

        Raises:
            ValueError: the value is no such array.
        """
        numbers = read_numbers(self._metadata, key, kinds)
        if numbers is None or len(numbers) != len(self.tokens):
            kind = "number" if "f" in kinds else "whole number"
            raise self._metadata.error(
                key, f"must hold a {kind} for each of the {len(self.tokens)} tokens"
            )
        return numbers

    def special_tokens(self) -> Mapping[str, str]:
        """By the names that chat templates use.

        Raises:
            ValueError: a role is given to a token that the list lacks.
        """
        found = {}
        for name, role in _ROLES.items():
            key = f"{tokenizer_keys.PREFIX}{role}_token_id"
            token_id = tokenizer_keys.role_id(self._metadata, key)
            if token_id is None or (role in _MAY_LACK and token_id >= len(self.tokens)):
                continue
            self._check_range(key, token_id)
            found[name] = self.tokens[token_id]
        return found

    def texts_of_ends(self, end_token_ids: Iterable[int]) -> Mapping[int, str]:
        """The texts of the tokens that end an answer, by id.

        Raises:
            ValueError: the list lacks one of them.
        """
        for role in tokenizer_keys.END_ROLES:
            key = f"{tokenizer_keys.PREFIX}{role}_token_id"
            self._check_range(key, tokenizer_keys.role_id(self._metadata, key))
        for token_id in end_token_ids:
            self._check_range(tokenizer_keys.EOS_TOKEN_IDS, token_id)
        return {token_id: self.tokens[token_id] for token_id in end_token_ids}

    def _check_range(self, key: str, token_id: int | None) -> None:
        if token_id is not None and token_id >= len(self.tokens):
            raise self._metadata.error(key, f"there are {len(self.tokens)} tokens")
