"""Conversations of `pellucid chat`: saved to a file and read back."""

import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.cli.conversation import Conversation

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.none() | TEXT, st.lists(st.tuples(TEXT, TEXT), max_size=4))
def test_what_was_saved_is_loaded(system: str | None, turns: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "chat.jsonl"
        Conversation(system, turns).save(file)
        assert Conversation.load(file) == Conversation(system, turns)


def test_messages_alternate_after_the_system_message() -> None:
    conversation = Conversation("be brief", [("hi", "hello")])
    assert [tuple(message.values()) for message in conversation.messages("how are you")] == [
        ("system", "be brief"),
        ("user", "hi"),
        ("assistant", "hello"),
        ("user", "how are you"),
    ]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"hello\n", ":1: not JSON"),
        (b'{"role": "user", "content": "\xff"}\n', ":1: not JSON"),
        (b'{"role": "user", "content": "a"}\n[]\n', ':2: must be {"role"'),
        (b'{"role": "user", "content": 3}\n', ':1: must be {"role"'),
        (b'{"role": "user", "content": "a", "name": "b"}\n', ':1: must be {"role"'),
        (b'{"role": "user", "content": "a"}\n', "user and assistant in turn"),
        (b'{"role": "tool", "content": "a"}\n', "user and assistant in turn"),
    ],
)
def test_a_file_that_is_no_conversation(tmp_path: Path, content: bytes, named: str) -> None:
    file = tmp_path / "chat.jsonl"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(named)) as error:
        Conversation.load(file)
    assert str(error.value).startswith(str(file))
