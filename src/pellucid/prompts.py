"""What a request goes on from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Message: TypeAlias = Mapping[str, str]  # {"role": "user", "content": "..."}


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation, the oldest message first, which the assistant goes on with.

    The model's chat template makes tokens of it, and the token that the template writes after an
    answer ends the answer, besides the model's own end tokens.
    """

    messages: Sequence[Message]


Prompt: TypeAlias = (
    str | Sequence[int] | ChatPrompt
)  # token ids are taken as they are, no BOS added


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt in token ids, checked against the model. `LLMEngine.encode` makes it.

    Attributes:
        text: None if token ids or a conversation were given.
        end_token_ids: the tokens that end its answer, unless `ignore_eos`.
        arrival_time: when it was given to the engine, in seconds on the engine's clock.
        encoded_time: when this was made of it.
    """

    text: str | None
    token_ids: tuple[int, ...]
    end_token_ids: frozenset[int]
    arrival_time: float
    encoded_time: float
