"""Encodes text by the tokenizers library: panics become errors, and long texts do not block other threads."""

from functools import cached_property

from tokenizers import Encoding

from pellucid.inputs.prompts import PromptTooLongError
from pellucid.loading.stored_model import TextTokenizer

# The library holds the GIL while it encodes one text, some 2 microseconds a character, and not while it
# encodes a batch of them.
_LONG_CHARS = 2048
# Text that is surely too long is counted in pieces, so that it takes neither the time nor the memory (700
# bytes a character) of its whole length. A cut adds a few tokens at most.
_PIECE_CHARS = 1 << 16
_CHARS_PER_TOKEN = 5  # a prompt with more of them for each token that fits is counted first
_CUT_TOLERANCE = 0.9


def is_panic(error: BaseException) -> bool:
    """Whether this is a panic of a Rust library, which is no Exception."""
    return type(error).__name__ == "PanicException"


class TextEncoder:
    """Encodes text. Threads may share it."""

    def __init__(self, hf_tokenizer: TextTokenizer, model: str) -> None:
        self.hf_tokenizer = hf_tokenizer
        self.model = model

    def encode(self, text: str, add_special_tokens: bool = False) -> Encoding:
        """The tokens of a text.

        Raises:
            ValueError: the library failed on the text.
        """
        try:
            if len(text) < _LONG_CHARS:
                return self.hf_tokenizer.encode(text, add_special_tokens=add_special_tokens)
            return self.hf_tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0]
        except BaseException as error:
            if isinstance(error, Exception) or is_panic(error):
                raise ValueError(
                    f"text: the tokenizer of {self.model} failed on it: {error}"
                ) from None
            raise

    def check_length(self, text: str, max_model_len: int) -> None:
        """Refuses a text that certainly has too many tokens, without encoding all of it.

        Raises:
            PromptTooLongError: the text does not fit.
        """
        self.check_num_chars(len(text), max_model_len)
        if len(text) <= _CHARS_PER_TOKEN * max_model_len:
            return
        num_tokens = 0
        for start in range(0, len(text), _PIECE_CHARS):
            num_tokens += len(self.encode(text[start : start + _PIECE_CHARS]).ids)
            certain = int(_CUT_TOLERANCE * num_tokens)
            if certain >= max_model_len:
                raise PromptTooLongError(certain, max_model_len, at_least=True)

    def check_num_chars(self, num_chars: int, max_model_len: int) -> None:
        """Refuses more characters than the longest tokens could stand for.

        Raises:
            PromptTooLongError: there are too many.
        """
        if num_chars < max_model_len:  # the longest token need not be looked for
            return
        if num_chars >= max_model_len * self._longest_token:
            raise PromptTooLongError(num_chars // self._longest_token, max_model_len, at_least=True)

    @cached_property
    def _longest_token(self) -> int:
        """The characters of the longest token. Byte-level tokens have one for each byte."""
        return max(map(len, self.hf_tokenizer.get_vocab()), default=1) or 1
