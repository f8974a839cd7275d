"""A tokenizer of a large vocabulary, which the tokenizers library makes when it is needed."""

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol, TypeAlias

from tokenizers import AddedToken, Encoding, Tokenizer

MakeTokenizer: TypeAlias = Callable[
    [dict[str, int], list[tuple[str, str]], Iterable[AddedToken]], Tokenizer
]

# A tokenizer of one text takes some 20 microseconds for each character, the whole one of 262,144 tokens a second.
MAX_PARTIAL_CHARACTERS = 8192  # of all texts that are encoded without the whole tokenizer


class Tokens(Protocol):
    """The tokens of a vocabulary that stand for text."""

    @property
    def num_tokens(self) -> int: ...

    def find(self, text: str) -> int | None:
        """The id of the token that stands for a text; None if there is none."""
        ...

    def token(self, token_id: int) -> str | None:
        """What a token stands for; None if there is none with this id."""
        ...

    def ids(self, texts: Iterable[str] | None = None) -> dict[str, int]:
        """The ids of the tokens among `texts`, rising; None: of all tokens."""
        ...


class Merges(Protocol):
    """How the tokens of a vocabulary are merged."""

    @property
    def sizes(self) -> Collection[int]:
        """The characters of the tokens that merges make."""
        ...

    def among(self, ids: dict[str, int]) -> list[tuple[str, str]]:
        """Both sides of each merge whose sides and result are among some tokens, in the order in which merges have
        precedence.

        Args:
            ids: of these tokens by their texts. Of each token, all of its parts that are tokens are there.
        """
        ...


class PartialTokenizer:
    """BPE, with those methods of the library's tokenizers that pellucid calls.

    Of a large vocabulary a text can only have the tokens that are parts of it. So the first short texts are
    encoded by a tokenizer of their parts each, which gives the ids of the whole one, and takes a millisecond.
    The whole one is made once many texts, a long one or `make_whole` call for it. Threads may share it.

    Args:
        vocabulary: all tokens.
        merges: of these.
        added: those that are found in a text before it is normalized, by id; all of them are in the vocabulary, and
            no merge makes them.
        always: tokens that texts without these characters may have: bytes and the unknown token. No merge makes or
            joins them.
        make: a tokenizer of the ids of tokens, of merges, and of added tokens.
        write: a text in the characters of tokens. Of each part of a text it writes a part of what it writes of the
            whole, but where `composes`.
        composes: whether neighbouring characters may become one. Texts with added tokens, beside which they do
            not, are then encoded by the whole tokenizer.

    Attributes:
        decoder: of the whole tokenizer, and of each other.
    """

    def __init__(
        self,
        vocabulary: Tokens,
        merges: Merges,
        added: dict[int, AddedToken],
        always: Collection[str],
        make: MakeTokenizer,
        write: Callable[[str], str],
        composes: bool,
    ) -> None:
        self._vocabulary = vocabulary
        self._added = added
        self._added_texts = {token.content: token for token in added.values()}
        self._always = always
        self._make = make
        self._merges = merges
        self._write = write
        self._composes = composes
        self.decoder = make({}, [], ()).decoder
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
        return self._vocabulary.find(token)

    def id_to_token(self, token_id: int) -> str | None:
        return self._vocabulary.token(token_id)

    def get_vocab(self) -> dict[str, int]:
        return self._vocabulary.ids()

    def get_vocab_size(self) -> int:
        return self._vocabulary.num_tokens

    def get_added_tokens_decoder(self) -> dict[int, AddedToken]:
        return dict(self._added)

    def make_whole(self) -> Tokenizer:
        """The whole tokenizer. The first call makes it, which takes a second and holds the GIL for half of it."""
        with self._lock:
            if self._whole is None:
                self._whole = self._made_of(self._vocabulary.ids(), self._added.values())
            return self._whole

    def make_partial(self, text: str) -> Tokenizer:
        """A tokenizer that knows the tokens which this text can have."""
        parts = _parts(self._write(text), {1, *self._merges.sizes})
        added = self._added_in(text)
        parts.update(self._always, added)
        return self._made_of(self._vocabulary.ids(parts), added.values())

    def _made_of(self, ids: dict[str, int], added: Iterable[AddedToken]) -> Tokenizer:
        return self._make(ids, self._merges.among(ids), added)

    def _for(self, text: str) -> Tokenizer:
        if self._whole is None:
            self._num_characters += len(text)
            is_short = self._num_characters <= MAX_PARTIAL_CHARACTERS
            if is_short and not (self._composes and self._added_in(text)):
                return self.make_partial(text)
        return self.make_whole()

    def _added_in(self, text: str) -> dict[str, AddedToken]:
        return {added: token for added, token in self._added_texts.items() if added in text}

    @property
    def _special(self) -> set[int]:
        return {token_id for token_id, token in self._added.items() if token.special}


def _parts(text: str, sizes: Iterable[int]) -> set[str]:
    """All parts of a text that have one of these numbers of characters."""
    return {text[at : at + size] for size in sizes for at in range(len(text) - size + 1)}
