"""The common vocabulary: the tokens of a model that its draft model has too."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from pellucid.inputs.sampling_params import SamplingParams
from pellucid.scheduling.request import Request
from pellucid.scheduling.scheduler_output import StartedRequest, TokenBudget, TokenGrammar


class CommonVocabulary:
    """The ids below both vocabulary sizes. Checkpoints with one tokenizer may have embeddings of different sizes,
    because they are padded; ids of the padding stand for no token.

    Args:
        model_size: V of the model.
        draft_size: V of the draft model.
    """

    def __init__(self, model_size: int, draft_size: int) -> None:
        self._size = min(model_size, draft_size)
        self._draft_size = draft_size
        self._is_whole = model_size == draft_size

    def has_all(self, token_ids: Iterable[int]) -> bool:
        """Whether the draft model can read these tokens."""
        return self._is_whole or all(token_id < self._size for token_id in token_ids)

    def can_draft(self, request: Request) -> bool:
        """Whether the draft model can read a request's prompt, and the request allows a common token."""
        allowed = request.params.allowed_token_ids
        allows_common = allowed is None or any(token_id < self._size for token_id in allowed)
        return allows_common and self.has_all(request.prompt_token_ids)

    def restricted(self, twin: StartedRequest) -> StartedRequest:
        """A twin that draws only common tokens."""
        if self._is_whole:
            return twin
        budget, grammar = twin.thinking_budget, twin.grammar
        if budget is not None:
            budget = _CommonBudget(budget, self._size)
        if grammar is not None or self._draft_size > self._size:
            grammar = _CommonGrammar(grammar, self._size, self._draft_size)
        params = self._params(twin.params)
        return replace(twin, params=params, thinking_budget=budget, grammar=grammar)

    def _params(self, params: SamplingParams) -> SamplingParams:
        """The parameters without tokens that are not common."""
        allowed, size = params.allowed_token_ids, self._size
        return replace(
            params,
            allowed_token_ids=None if allowed is None else [i for i in allowed if i < size],
            logit_bias={i: bias for i, bias in dict(params.logit_bias).items() if i < size},
        )


class _CommonGrammar:
    """A grammar whose masks have the size of the draft model's vocabulary, and allow common tokens alone."""

    def __init__(self, grammar: TokenGrammar | None, size: int, draft_size: int) -> None:
        self._grammar = grammar
        self._size = size
        self._draft_size = draft_size
        bits = np.zeros(-(-draft_size // 32) * 32, np.bool_)
        bits[:size] = True
        self._common = np.packbits(bits, bitorder="little")

    def copy(self) -> "_CommonGrammar":
        grammar = None if self._grammar is None else self._grammar.copy()
        return _CommonGrammar(grammar, self._size, self._draft_size)

    def mask(self, token_ids: Sequence[int]) -> bytes:
        if self._grammar is None:
            return bytes(self._common)
        mask, own = self._common.copy(), np.frombuffer(self._grammar.mask(token_ids), np.uint8)
        num_bytes = min(len(mask), len(own))  # behind them there are no common tokens
        mask[:num_bytes] &= own[:num_bytes]
        return bytes(mask)

    def is_complete(self, token_ids: Sequence[int]) -> bool:
        return self._grammar is not None and self._grammar.is_complete(token_ids)


class _CommonBudget:
    """A budget of reasoning that forces common tokens alone."""

    def __init__(self, budget: TokenBudget, size: int) -> None:
        self._budget = budget
        self._size = size

    def copy(self) -> "_CommonBudget":
        return _CommonBudget(self._budget.copy(), self._size)

    def forced_token(self, token_ids: Sequence[int]) -> int | None:
        forced = self._budget.forced_token(token_ids)
        return forced if forced is None or forced < self._size else None
