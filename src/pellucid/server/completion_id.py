"""The names of calls, of the engine's requests and of completions, which contain each other."""

import re
from dataclasses import dataclass

# By the engine's name, "CALL/0" or "CALL-PROMPT/0", or by what its protocol calls the reply
_NAME = re.compile(r"(?:[\w-]*[_-])?([0-9a-f]{24})(?:-(\d{1,6}))?(?:/(\d{1,6}))?")
_CALL_ID_CHARS = 24


@dataclass(frozen=True)
class CompletionId:
    """A completion, or all completions of a prompt.

    Attributes:
        call_id: the id of the call that asks for it.
        prompt_index: which of the call's prompts it answers.
        index: which of the prompt's completions it is; None: any.
    """

    call_id: str
    prompt_index: int
    index: int | None = None

    @classmethod
    def parse(cls, name: str) -> "CompletionId | None":
        """The completion of a name, the engine's or a client's; None: it is no such name."""
        if (found := _NAME.fullmatch(name)) is None:
            return None
        call_id, prompt, index = found.groups()
        return cls(call_id, int(prompt or 0), None if index is None else int(index))

    @property
    def request_id(self) -> str:
        """What the engine calls the request of the prompt."""
        return f"{self.call_id}-{self.prompt_index}" if self.prompt_index else self.call_id

    def __str__(self) -> str:
        return self.request_id if self.index is None else f"{self.request_id}/{self.index}"


def call_id_in(name: str) -> str:
    """The id of a call, from the engine's name of one of its completions."""
    return name[:_CALL_ID_CHARS]


def call_id_of(reply_id: str) -> str:
    """The id of a call, from what its protocol calls the reply."""
    return reply_id.rpartition("_")[2].rpartition("-")[2]
