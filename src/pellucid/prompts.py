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


class PromptTooLongError(ValueError):
    """A prompt leaves no room for an answer in the context.

    Args:
        num_tokens: of the prompt.
        max_model_len: longest prompt + output.
    """

    def __init__(self, num_tokens: int, max_model_len: int) -> None:
        super().__init__(
            f"prompt: has {num_tokens} tokens; the context of {max_model_len} tokens"
            " must hold it and at least one more"
        )
        self.num_tokens = num_tokens
        self.max_model_len = max_model_len
