"""The tokens of a GGUF file, their types and their roles."""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from pellucid.facts.json_object import JsonObject
from pellucid.inputs.parameter_checks import shown
from pellucid.loading import gguf_tokenizer_keys as tokenizer_keys

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
    """Tokens, their types and the ids with a role.

    Args:
        metadata: of a file with a tokenizer.

    Attributes:
        tokens: by id.
        types: by id.

    Raises:
        ValueError: a key is missing or has a value that is not allowed, or two tokens have the same text.
    """

    def __init__(self, metadata: JsonObject) -> None:
        self._metadata = metadata
        self.tokens = metadata.optional_strings(tokenizer_keys.TOKENS) or ()
        if not self.tokens:
            raise metadata.error(tokenizer_keys.TOKENS, "must be a list of strings")
        self.types = self._read_types()
        if unknown := set(self.types).difference(TokenType):
            raise ValueError(
                f"{metadata.path}: {tokenizer_keys.TOKEN_TYPE} holds {min(unknown)}: supported are "
                f"{min(TokenType)} to {max(TokenType)}"
            )
        self._last_ids = dict(zip(self.tokens, range(len(self.tokens)), strict=True))  # by text
        if len(self._last_ids) < len(self.tokens):
            assert self.ids  # it checks which texts stand twice

    def _read_types(self) -> Sequence[int]:
        keys = self._metadata.values.keys()
        if tokenizer_keys.TOKEN_TYPE in keys or any(
            f"{tokenizer_keys.PREFIX}{role}_token_id" in keys for role in _ROLES.values()
        ):
            return self.numbers(tokenizer_keys.TOKEN_TYPE, (int,))
        return [TokenType.NORMAL] * len(self.tokens)  # no token is special

    @cached_property
    def ids(self) -> dict[str, int]:
        """Of all tokens that stand for text.

        Rows of the model without a token have a placeholder or an empty text, perhaps the same.
        """
        ids = self._last_ids
        unused = TokenType.UNUSED
        if len(ids) == len(self.tokens) and unused not in self.types and "" not in ids:
            return ids
        used = [
            (token, token_id)
            for token_id, token in enumerate(self.tokens)
            if token and self.types[token_id] != unused
        ]
        ids = dict(used)
        if len(ids) < len(used):
            twice = next(token for token, token_id in used if ids[token] != token_id)
            raise ValueError(
                f"{self._metadata.path}: {tokenizer_keys.TOKENS} holds {shown(twice)} twice"
            )
        return ids

    @cached_property
    def type_array(self) -> npt.NDArray[np.int64]:
        """The types, by id."""
        return np.array(self.types, np.int64)

    def ids_of_types(self, types: Iterable[int]) -> list[int]:
        """Of the tokens of these types, in rising order."""
        is_wanted = np.zeros(max(TokenType) + 1, bool)
        is_wanted[list(types)] = True
        found: list[int] = np.flatnonzero(is_wanted[self.type_array]).tolist()
        return found

    def numbers(self, key: str, types: tuple[type, ...] = (int, float)) -> Sequence[Any]:
        """One number per token, of one of the types.

        Raises:
            ValueError: it is no such list.
        """
        values: Any = self._metadata.values.get(key)
        is_list = isinstance(values, list) and len(values) == len(self.tokens)
        if not is_list or not set(map(type, values)) <= set(types):
            kind = "number" if float in types else "whole number"
            raise self._metadata.error(
                key, f"must hold a {kind} for each of the {len(self.tokens)} tokens"
            )
        checked: list[Any] = values
        return checked

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
