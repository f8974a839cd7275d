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
