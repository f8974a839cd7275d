"""A tokenizer of a large vocabulary, which the tokenizers library makes when it is needed."""

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from tokenizers import AddedToken, Encoding, Tokenizer

# A tokenizer of one text takes some 20 microseconds for each character, the whole one of 262,144 tokens a second.
MAX_PARTIAL_CHARACTERS = 8192  # of all texts that are encoded without the whole tokenizer


class MergingVocabulary(Protocol):
    """Tokens that stand for text, and how they are merged."""

    @property
    def ids(self) -> dict[str, int]:
        """Of the tokens, by their texts, in rising order."""
        ...

    @property
    def sizes(self) -> Collection[int]:
        """The characters of the tokens that a text can have, 1 among them."""
        ...

    def merges(self) -> list[tuple[str, str]]:
        """Both sides of each merge, in the order in which merges have precedence."""
        ...

    def part(self, texts: Iterable[str]) -> "MergingVocabulary":
        """The tokens among `texts`, with those merges whose sides and results they are. `texts` hold all parts of each
        of them."""
        ...


class PartialTokenizer:
    """BPE, with those methods of the library's tokenizers that pellucid calls.

    Of a large vocabulary a text can only have the tokens that are parts of it. So the first short texts are
    encoded by a tokenizer of their parts each, which gives the ids of the whole one, and takes a millisecond.
    The whole one is made once many texts, a long one or `make_whole` call for it. Threads may share it.

    Args:
        vocabulary: all tokens.
        tokens: their texts by id; ids whose text has another id stand for none.
        added: those that are found in a text before it is normalized; all of them are in the vocabulary, and no
            merge makes them.
        always: tokens that texts without these characters may have: bytes and the unknown token. No merge makes or
            joins them.
        make: a tokenizer with some of the tokens, and some of the added ones.
        write: a text in the characters of tokens. Of each part of a text it writes a part of what it writes of the
            whole, but where `composes`.
        composes: whether neighbouring characters may become one. Texts with added tokens, beside which they do
            not, are then encoded by the whole tokenizer.

    Attributes:
        decoder: of the whole tokenizer, and of each other.
    """

    def __init__(
        self,
        vocabulary: MergingVocabulary,
        tokens: Sequence[str],
        added: Sequence[AddedToken],
        always: Collection[str],
        make: Callable[[MergingVocabulary, Sequence[AddedToken]], Tokenizer],
        write: Callable[[str], str],
        composes: bool,
    ) -> None:
        self._vocabulary = vocabulary
        self._added = added
        self._always = always
        self._make = make
        self._tokens = tokens
        self._write = write
        self._composes = composes
        self.decoder = make(vocabulary.part(()), ()).decoder
        self._lock = threading.Lock()
        self._whole: Tokenizer | None = None
        self._num_characters = 0  # encoded without the whole tokenizer

    def encode(self, text: str, add_special_tokens: bool = True) -> Encoding:
        return self._for(text).encode(text, add_special_tokens=add_special_tokens)

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[Encoding]:
        whole = self.make_whole()
        found: list[Encoding] = whole.encode_batch(texts, add_special_tokens=add_special_tokens)
        return found

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        special = self._special if skip_special_tokens else ()
        tokens = (self.id_to_token(each) for each in token_ids if each not in special)
        text: str = self.decoder.decode([token for token in tokens if token is not None])
        return text

    def token_to_id(self, token: str) -> int | None:
        return self._vocabulary.ids.get(token)

    def id_to_token(self, token_id: int) -> str | None:
        if not 0 <= token_id < len(self._tokens):
            return None
        token = self._tokens[token_id]
        return token if self._vocabulary.ids.get(token) == token_id else None

    def get_vocab(self) -> dict[str, int]:
        return dict(self._vocabulary.ids)

    def get_vocab_size(self) -> int:
        return len(self._vocabulary.ids)

    def get_added_tokens_decoder(self) -> dict[int, AddedToken]:
        return {self._vocabulary.ids[token.content]: token for token in self._added}

    def make_whole(self) -> Tokenizer:
        """The whole tokenizer. The first call makes it, which takes a second and holds the GIL for half of it."""
        with self._lock:
            if self._whole is None:
                self._whole = self._make(self._vocabulary, self._added)
            return self._whole

    def make_partial(self, text: str) -> Tokenizer:
        """A tokenizer that knows the tokens which this text can have."""
        parts = _parts(self._write(text), self._vocabulary.sizes)
        added = self._added_in(text)
        parts.update(self._always, (token.content for token in added))
        return self._make(self._vocabulary.part(parts), added)

    def _for(self, text: str) -> Tokenizer:
        if self._whole is None:
            self._num_characters += len(text)
            is_short = self._num_characters <= MAX_PARTIAL_CHARACTERS
            if is_short and not (self._composes and self._added_in(text)):
                return self.make_partial(text)
        return self.make_whole()

    def _added_in(self, text: str) -> list[AddedToken]:
        return [token for token in self._added if token.content in text]

    @property
    def _special(self) -> set[int]:
        return {each for each, token in self.get_added_tokens_decoder().items() if token.special}


def _parts(text: str, sizes: Iterable[int]) -> set[str]:
    """All parts of a text that have one of these numbers of characters."""
    return {text[at : at + size] for size in sizes for at in range(len(text) - size + 1)}
