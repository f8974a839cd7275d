"""The request maker: checks a caller's request against the model, and makes the scheduler's requests for it."""

import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from msgspec import Struct

from pellucid.facts.model_config import ModelConfig
from pellucid.inputs.beam_search_params import BeamSearchParams, RequestParams
from pellucid.inputs.parameter_checks import Interval
from pellucid.inputs.prompts import ChatPrompt, EncodedPrompt, Prompt, PromptTooLongError
from pellucid.scheduling.block import CacheSalt
from pellucid.scheduling.request import Request
from pellucid.text.grammars import GrammarCompiler, GrammarMatcher
from pellucid.text.reasoning_tokens import ThinkingBudget
from pellucid.text.responses.reasoning_marks import ReasoningMarks
from pellucid.text.stop_strings import StopStrings
from pellucid.text.tokenizer import Tokenizer

SEED_BITS = 48  # of a drawn seed: enough to differ, and exact in the doubles of JSON readers
MAX_CACHE_SALT = 256  # characters
MAX_PRIORITY = 2**31  # either way: times 10 s, still exact to microseconds in a double
_PRIORITY = Interval(-MAX_PRIORITY, MAX_PRIORITY)
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0  # of a caller's share
_WEIGHT = Interval(MIN_WEIGHT, MAX_WEIGHT)


class PreparedRequest(Struct, frozen=True):
    """A request whose text is encoded and compiled: what remains takes no time. `LLMEngine.prepare` makes it.

    Attributes:
        bad_words_token_ids: the tokens of each spelling of each bad word.
        stop_strings: compiled once, for all of the request's completions; None: there are none.
        reasoning: where stop strings do not count; None: they count everywhere.
        grammar: of the first completion; the others get copies.
        thinking_budget: likewise.
    """

    prompt: EncodedPrompt
    params: RequestParams
    bad_words_token_ids: tuple[tuple[int, ...], ...]
    stop_strings: StopStrings | None
    reasoning: ReasoningMarks | None
    grammar: GrammarMatcher | None
    thinking_budget: ThinkingBudget | None


class RequestMaker:
    """Knows what the model can be asked for. Without state: any thread may call it.

    Args:
        max_model_len: longest prompt + output in tokens.
    """

    def __init__(self, config: ModelConfig, tokenizer: Tokenizer, max_model_len: int) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._grammars = GrammarCompiler(tokenizer, config.eos_token_ids)
        # Beyond the trained length these scalings rotate every key by a function of the prompt's length.
        self._trained_lengths = [
            rope.trained_length for rope in config.ropes if rope.trained_length is not None
        ]

    def encode(self, prompt: Prompt, clock: Callable[[], float]) -> EncodedPrompt:
        """The tokens of a prompt.

        Args:
            clock: the engine's, for when it began and when it was done.

        Raises:
            ValueError: the prompt cannot be served.
        """
        arrival_time = clock()
        end_token_ids = frozenset(self._tokenizer.answer_ends(self._config.eos_token_ids))
        if isinstance(prompt, ChatPrompt):
            end_token_ids |= frozenset(self._tokenizer.end_of_turn_token_ids(prompt))
        return EncodedPrompt(
            text=prompt if isinstance(prompt, str) else None,
            is_chat=isinstance(prompt, ChatPrompt),
            token_ids=self._prompt_token_ids(prompt),
            end_token_ids=end_token_ids,
            arrival_time=arrival_time,
            encoded_time=clock(),
        )

    def prepare(
        self, prompt: Prompt | EncodedPrompt, params: RequestParams, clock: Callable[[], float]
    ) -> PreparedRequest:
        """Does what takes time: encodes the prompt and the bad words, compiles the stop strings.

        Raises:
            ValueError: the prompt or a parameter cannot be served.
        """
        if not isinstance(prompt, EncodedPrompt):
            prompt = self.encode(prompt, clock)
        sampling = params.sampling_params if isinstance(params, BeamSearchParams) else params
        if sampling.stop and not self._tokenizer.makes_text:
            raise ValueError(
                f"stop={sampling.stop!r}: needs a tokenizer, and skip_tokenizer_init=True loads none;"
                " stop_token_ids works"
            )
        marks, budget = None, None
        num_tokens = sampling.thinking_token_budget if self._tokenizer.makes_text else None
        if num_tokens is not None or (sampling.stop and not sampling.stop_in_reasoning):
            text = self._tokenizer.decode(prompt.token_ids, skip_special_tokens=False)
            marks = self._tokenizer.response_format.reasoning_marks(text)
        if marks is not None and num_tokens is not None:
            tokenizer = self._tokenizer
            encode = partial(tokenizer.encode, add_special_tokens=False)
            budget = ThinkingBudget.of(marks, num_tokens, tokenizer.token_bytes, encode)
        return PreparedRequest(
            prompt,
            params,
            self._tokenizer.bad_words_token_ids(sampling.bad_words) if sampling.bad_words else (),
            StopStrings(sampling.stop) if sampling.stop else None,
            None if sampling.stop_in_reasoning else marks,
            None
            if sampling.structured_outputs is None
            else self._grammars.compile(sampling.structured_outputs),
            budget,
        )

    def preparing_takes_time(self, prompt: Prompt | EncodedPrompt, params: RequestParams) -> bool:
        """Whether `prepare` has anything to encode, to decode or to compile."""
        sampling = params.sampling_params if isinstance(params, BeamSearchParams) else params
        return (
            not isinstance(prompt, EncodedPrompt)
            or bool(sampling.bad_words or sampling.stop)
            or sampling.structured_outputs is not None
            or sampling.thinking_token_budget is not None
        )

    def make(
        self,
        request_id: str,
        prepared: PreparedRequest,
        priority: int = 0,
        cache_salt: str | None = None,
        caller: str = "",
        caller_weight: float = 1.0,
    ) -> list[Request]:
        """One scheduler's request for each completion, all with the same seed and a stream of their own;
        for a beam search one for each beam.

        Args:
            request_id: the caller's; the requests are called request_id/0 and so on.
            priority, cache_salt, caller, caller_weight: as in `LLMEngine.add_request`.

        Raises:
            ValueError: names the field, the value and what is allowed.
        """
        priority = _PRIORITY.integer("priority", priority)
        prompt, params = prepared.prompt, prepared.params
        salt = self.salt(cache_salt, len(prompt.token_ids))
        sampling = params.sampling_params if isinstance(params, BeamSearchParams) else params
        sampling = sampling.with_max_tokens(is_chat=prompt.is_chat)
        sampling.check_vocabulary(self._config.vocab_size)
        assert sampling.max_tokens != "auto"
        room = self._max_model_len - len(prompt.token_ids)
        first = Request(
            request_id=f"{request_id}/0",
            prompt_token_ids=prompt.token_ids,
            params=sampling,
            seed=secrets.randbits(SEED_BITS) if sampling.seed is None else sampling.seed,
            arrival_time=prompt.arrival_time,
            max_tokens=room if sampling.max_tokens is None else min(sampling.max_tokens, room),
            eos_token_ids=prompt.end_token_ids,
            bad_words_token_ids=prepared.bad_words_token_ids,
            grammar=prepared.grammar,
            thinking_budget=prepared.thinking_budget,
            cache_salt=salt,
            priority=priority,
            caller=caller,
            caller_weight=_WEIGHT.real("caller_weight", caller_weight),
        )
        num_requests = sampling.num_results
        if isinstance(params, BeamSearchParams):
            num_requests = params.beam_width
            num_candidates = params.num_candidates(len(first.end_rule.stop_token_ids))
            first = replace(first, num_candidates=num_candidates)
        others = (
            replace(
                first,
                request_id=f"{request_id}/{index}",
                index=index,
                output_token_ids=[],
                grammar=None if prepared.grammar is None else prepared.grammar.copy(),
                thinking_budget=None
                if prepared.thinking_budget is None
                else prepared.thinking_budget.copy(),
            )
            for index in range(1, num_requests)
        )
        return [first, *others]

    def _prompt_token_ids(self, prompt: Prompt) -> tuple[int, ...]:
        limit = self._max_model_len
        if isinstance(prompt, ChatPrompt):
            token_ids = tuple(self._tokenizer.encode_conversation(prompt, limit))
        elif isinstance(prompt, str):
            token_ids = tuple(self._tokenizer.encode(prompt, max_model_len=limit))
        else:
            token_ids = tuple(prompt)
        vocab_size = self._config.vocab_size
        if not token_ids or prompt == "":
            raise ValueError("prompt: is empty; give at least one token")
        for token_id in token_ids:
            if not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
                raise ValueError(f"prompt: token id {token_id!r} is not in 0 .. {vocab_size - 1}")
        if len(token_ids) >= self._max_model_len:
            raise PromptTooLongError(len(token_ids), self._max_model_len)
        return token_ids

    def salt(self, cache_salt: str | None, num_prompt_tokens: int) -> CacheSalt:
        """The salt of a request: the caller's, and the length that keys depend on, if they do: then only prompts of
        the same length may share blocks.

        Raises:
            ValueError: the caller's salt is no text, or too long.
        """
        if not isinstance(cache_salt, str | None):
            raise ValueError(f"cache_salt={cache_salt!r}: must be text or None")
        if cache_salt is not None and len(cache_salt) > MAX_CACHE_SALT:
            raise ValueError(
                f"cache_salt: has {len(cache_salt)} characters; at most {MAX_CACHE_SALT} are allowed"
            )
        is_longer = any(num_prompt_tokens > length for length in self._trained_lengths)
        return CacheSalt(cache_salt, num_prompt_tokens if is_longer else None)
