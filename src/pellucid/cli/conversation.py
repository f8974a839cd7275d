"""The messages of a chat, and the file that stores them, one JSON object per line."""

import json
from dataclasses import dataclass, field
from pathlib import Path

Message = dict[str, str]  # {"role": "user", "content": "..."}


@dataclass
class Conversation:
    """A system message, or none, and turns: a user's message and its answer, the oldest first."""

    system: str | None = None
    turns: list[tuple[str, str]] = field(default_factory=list)

    def messages(self, question: str | None = None) -> list[Message]:
        """All messages so far, and `question`."""
        messages = []
        if self.system is not None:
            messages.append({"role": "system", "content": self.system})
        for user, assistant in self.turns:
            messages.append({"role": "user", "content": user})
            messages.append({"role": "assistant", "content": assistant})
        if question is not None:
            messages.append({"role": "user", "content": question})
        return messages

    def save(self, path: Path) -> None:
        """Writes one message a line.

        Raises:
            OSError: the file cannot be written.
        """
        lines = (json.dumps(message, ensure_ascii=False) + "\n" for message in self.messages())
        path.write_text("".join(lines), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Conversation":
        """Reads what `save` wrote.

        Raises:
            ValueError: the file is not such a conversation; the message names the line.
            OSError: the file cannot be read.
        """
        messages = [
            _message(line, f"{path}:{number}")
            for number, line in enumerate(path.read_bytes().splitlines(), start=1)
        ]
        conversation = cls()
        if messages and messages[0]["role"] == "system":
            conversation.system = messages.pop(0)["content"]
        roles = [message["role"] for message in messages]
        if len(roles) % 2 or roles != ["user", "assistant"] * (len(roles) // 2):
            raise ValueError(
                f"{path}: must be an optional system message, then user and assistant in turn"
            )
        contents = [message["content"] for message in messages]
        conversation.turns = list(zip(contents[::2], contents[1::2], strict=True))
        return conversation


def _message(line: bytes, where: str) -> Message:
    try:
        message = json.loads(line)
    except ValueError as error:  # JSON's and UTF-8's
        raise ValueError(f"{where}: not JSON: {error}") from None
    if (
        not isinstance(message, dict)
        or message.keys() != {"role", "content"}
        or not all(isinstance(value, str) for value in message.values())
    ):
        raise ValueError(f'{where}: must be {{"role": "...", "content": "..."}}')
    return message
