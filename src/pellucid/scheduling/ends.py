"""Ends: why a generation ends, and the rule that its tokens obey."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias


class FinishReason(Enum):
    STOP = "stop"  # an end token, a stop token or a stop string
    LENGTH = "length"  # max_tokens, max_time or the context length
    ABORT = "abort"  # the caller gave up
    ERROR = "error"  # this request failed; the engine and the others did not


End: TypeAlias = tuple[FinishReason, int | str]  # and the stop reason


class Taken(NamedTuple):
    """What a request takes of the tokens that a step has sampled for it.

    Attributes:
        token_ids: up to the one that ends the request.
        end: why the request ends with the last of them; None: it goes on.
    """

    token_ids: Sequence[int]
    end: End | None = None


@dataclass(frozen=True, slots=True)
class EndRule:
    """Which token ends an output.

    Args:
        stop_token_ids: end and stop tokens.
        max_tokens: of the request and of the context, the smaller.
        limit: what sets `max_tokens`, as the stop reason says it.
    """

    stop_token_ids: frozenset[int]
    max_tokens: int
    limit: str

    def end_after(self, token_id: int, num_output_tokens: int) -> End | None:
        """Why an output ends with a token, if it does.

        Args:
            token_id: the last output token.
            num_output_tokens: output tokens up to and including that one.
        """
        if token_id in self.stop_token_ids:
            return FinishReason.STOP, token_id
        if num_output_tokens < self.max_tokens:
            return None
        return FinishReason.LENGTH, self.limit

    def take(self, token_ids: Sequence[int], num_output_tokens: int) -> Taken:
        """What an output takes of tokens that follow it.

        Args:
            token_ids: the tokens that were sampled.
            num_output_tokens: output tokens before them.
        """
        for number, token_id in enumerate(token_ids, 1):
            if (end := self.end_after(token_id, num_output_tokens + number)) is not None:
                return Taken(token_ids[:number], end)
        return Taken(token_ids)
