"""Grammars of structured outputs: llguidance compiles a rule to masks of the allowed next tokens."""

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from pellucid.inputs.structured_outputs import StructuredOutputsParams
from pellucid.scheduling.answer_tokens import SeenTokens

if TYPE_CHECKING:
    from pellucid.text.tokenizer import Tokenizer

MAX_CACHED = 64  # compiled grammars
MAX_CACHED_BYTES = 256 << 20  # ... and their bytes, by an estimate
# llguidance does not say how large a grammar is. Measured: 200 to 300 bytes for each character of a schema; and what
# takes 2 s to compile has 100 MB.
_BYTES_PER_CHAR, _BYTES_PER_SECOND = 300, 50e6


class GrammarMatcher:
    """The rule of one answer. Its masks are a function of the answer's tokens alone.

    It knows the tokens of the last call, so that a call with one more token costs one step.

    Args:
        matcher: llguidance's, of this answer alone.
        end_token_ids: tokens that may end the answer wherever the rule allows an end.
    """

    def __init__(self, matcher: Any, end_token_ids: Sequence[int], vocab_size: int) -> None:
        self._matcher = matcher
        self._end_token_ids = end_token_ids
        self._vocab_size = vocab_size
        self._seen = SeenTokens()

    def copy(self) -> "GrammarMatcher":
        """The same rule for another answer, from its first token on."""
        matcher = self._matcher.deep_copy()
        matcher.reset()
        return GrammarMatcher(matcher, self._end_token_ids, self._vocab_size)

    def mask(self, token_ids: Sequence[int]) -> bytes:
        """The tokens that may follow: [ceil(V / 32)] words of 32 bits, the lowest of each first.

        Raises:
            ValueError: the answer breaks the rule, or the rule is too complex.
        """
        self._go_to(token_ids)
        num_bytes = 4 * -(-self._vocab_size // 32)
        mask = bytearray(self._matcher.compute_bitmask()[:num_bytes])
        if self._matcher.is_error():
            raise ValueError(f"structured_outputs: {_first_line(self._matcher.get_error())}")
        if self._matcher.is_accepting():
            for token_id in self._end_token_ids:
                mask[token_id >> 3] |= 1 << (token_id & 7)
        return bytes(mask)

    def is_complete(self, token_ids: Sequence[int]) -> bool:
        """Whether nothing may follow an answer."""
        try:
            self._go_to(token_ids)
        except ValueError:
            return False
        return bool(self._matcher.is_stopped())

    def _go_to(self, token_ids: Sequence[int]) -> None:
        num_equal, new = self._seen.compare(token_ids)
        if num_equal < len(self._seen):  # drafts were wrong
            self._matcher.rollback(len(self._seen) - num_equal)
            self._seen.cut(num_equal)
        # A token that the rule does not allow would leave the matcher in an error for ever
        if new and not (
            self._matcher.validate_tokens(new) == len(new) and self._matcher.consume_tokens(new)
        ):
            is_complex = self._matcher.is_error()
            reason = self._matcher.get_error() if is_complex else "the answer breaks the rule"
            raise ValueError(f"structured_outputs: {_first_line(reason)}")
        self._seen.extend(new, token_ids)


class GrammarCompiler:
    """Compiles rules for one tokenizer, and keeps the latest. Threads may share it.

    Args:
        eos_token_ids: the model's. Tokens that end a turn of the chat template end an answer as well.
    """

    def __init__(
        self,
        tokenizer: "Tokenizer",
        eos_token_ids: Iterable[int],
        max_cached_bytes: int = MAX_CACHED_BYTES,
    ) -> None:
        self._tokenizer = tokenizer
        self._end_token_ids = tuple(eos_token_ids)
        self._lock = threading.Lock()
        self._vocabulary: Any = None  # llguidance's LLTokenizer
        self._compiled: OrderedDict[StructuredOutputsParams, _Compiled] = OrderedDict()
        self._num_bytes = 0  # of these
        self._max_bytes = max_cached_bytes

    def compile(self, rule: StructuredOutputsParams) -> GrammarMatcher:
        """A matcher for one answer; `copy` makes those of others.

        Raises:
            ValueError: the rule has an error or is too complex, or llguidance is not installed.
        """
        with self._lock:
            known = self._compiled.get(rule)
            if known is not None:
                self._compiled.move_to_end(rule)
                return known.matcher.copy()
            vocabulary = self._llguidance_vocabulary()
        started = time.thread_time()
        matcher = self._matcher(rule, vocabulary)
        seconds = time.thread_time() - started
        with self._lock:
            self._keep(rule, _Compiled(matcher, _num_bytes(rule, seconds)))
            return matcher.copy()

    def _keep(self, rule: StructuredOutputsParams, compiled: "_Compiled") -> None:
        if rule in self._compiled or compiled.num_bytes > self._max_bytes:
            return
        self._compiled[rule] = compiled
        self._num_bytes += compiled.num_bytes
        while len(self._compiled) > MAX_CACHED or self._num_bytes > self._max_bytes:
            _, oldest = self._compiled.popitem(last=False)
            self._num_bytes -= oldest.num_bytes

    def _matcher(self, rule: StructuredOutputsParams, vocabulary: Any) -> GrammarMatcher:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(
            # A grammar takes 2 s and 100 MB at most, a mask some tens of milliseconds. The time to compile an
            # object grows with the square of its properties: 15,000 symbols are about 1,600 properties.
            max_lexer_states=50_000,
            max_grammar_size=15_000,
            verbose_errors=False,  # they repeat the rule
        )
        try:
            matcher = LLMatcher(vocabulary, _grammar(rule), log_level=0, limits=limits)
        except ValueError as error:
            raise ValueError(f"structured_outputs.{rule.kind}: {_first_line(str(error))}") from None
        if matcher.is_error():
            raise ValueError(f"structured_outputs.{rule.kind}: {_first_line(matcher.get_error())}")
        made = GrammarMatcher(matcher, self._end_token_ids, self._tokenizer.vocab_size)
        try:
            allows_any = any(made.mask(()))
        except ValueError:
            allows_any = False
        if not allows_any:  # a schema that refers to itself, say
            raise ValueError(f"structured_outputs.{rule.kind}: no text can satisfy this rule")
        return made

    def _llguidance_vocabulary(self) -> Any:
        if self._vocabulary is None:
            try:
                from llguidance import LLTokenizer, TokenizerWrapper
            except ImportError:
                raise ValueError(
                    "structured_outputs: needs llguidance: pip install 'pellucid[server]'"
                ) from None
            if not self._tokenizer.makes_text:
                raise ValueError("structured_outputs: needs a tokenizer")
            listed = self._tokenizer.answer_ends(self._end_token_ids)
            end_of_turn = self._tokenizer.end_of_turn_token_ids()
            self._end_token_ids = tuple(dict.fromkeys((*listed, *end_of_turn)))
            if not self._end_token_ids:
                raise ValueError("structured_outputs: needs a model with an end token")
            self._vocabulary = LLTokenizer(
                TokenizerWrapper(_Vocabulary(self._tokenizer, self._end_token_ids[0])),
                n_vocab=self._tokenizer.vocab_size,
                eos_token=list(self._end_token_ids),
            )
        return self._vocabulary


class _Compiled(Struct, frozen=True):
    """A rule that is kept; its matcher is only copied."""

    matcher: GrammarMatcher
    num_bytes: int


def _num_bytes(rule: StructuredOutputsParams, seconds: float) -> int:
    """An estimate of what a compiled rule takes.

    Args:
        seconds: of processor time, for compiling it.
    """
    given = (rule.json, rule.regex, rule.grammar, *(rule.choice or ()))
    num_chars = sum(len(text) for text in given if isinstance(text, str))
    return int(_BYTES_PER_CHAR * num_chars + _BYTES_PER_SECOND * seconds)


class _Vocabulary:
    """The tokens in llguidance's form."""

    def __init__(self, tokenizer: "Tokenizer", eos_token_id: int) -> None:
        self.eos_token_id = eos_token_id
        self.bos_token_id = tokenizer.bos_token_id
        self.tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(
            token_id for token_id in tokenizer.special_token_ids if token_id < tokenizer.vocab_size
        )
        self._tokenizer = tokenizer

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(text.decode("utf-8", "replace"), add_special_tokens=False)


def _grammar(rule: StructuredOutputsParams) -> str:
    """In llguidance's own form."""
    from llguidance import LLMatcher

    if rule.json is not None or rule.json_object:
        schema = '{"type": "object"}' if rule.json is None else rule.json
        # One way to write white space, Python's: small models write line breaks without end
        return str(
            LLMatcher.grammar_from_json_schema(
                str(schema),
                defaults={
                    "whitespace_flexible": False,
                    "item_separator": ", ",
                    "key_separator": ": ",
                },
            )
        )
    if rule.regex is not None:
        return str(LLMatcher.grammar_from_regex(rule.regex))
    if rule.choice is not None:
        choices = " | ".join(json.dumps(text) for text in rule.choice)
        return str(LLMatcher.grammar_from_lark(f"start: {choices}"))
    return str(LLMatcher.grammar_from_lark(_as_lark(rule.grammar or "")))


def _as_lark(grammar: str) -> str:
    """A grammar in Lark's syntax; llama.cpp's GBNF, which is known by its `::=`, is translated."""
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return str(any_to_lark(grammar))
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except Exception as error:  # the library's own, also for a rule that is missing
        raise ValueError(str(error)) from None


def _first_line(error: str) -> str:
    return error.strip().partition("\n")[0][:500]
