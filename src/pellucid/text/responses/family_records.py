"""What is known of the answers of families of models, as data: `families/*.json`."""

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

_FOLDER = Path(__file__).with_name("families")
# The first that fits counts: those that say more come before those that say less
FAMILIES = (
    "harmony",
    "qwen3_coder",
    "glm",
    "gemma4",
    "functiongemma",
    "mistral_args",
    "mistral",
    "hermes",
    "phi4",
    "llama3",
    "think",
)


class AnswerEnds(Struct, frozen=True):
    """Which tokens end an answer that consists of several messages.

    Attributes:
        of_answers: their texts; empty where the checkpoint and its chat template say it.
        of_messages: the texts of tokens after which an answer goes on with its next message, although chat
            templates write them after an answer, and files list them as ends.
    """

    of_answers: tuple[str, ...] = ()
    of_messages: tuple[str, ...] = ()


class FamilyRecord(Struct, frozen=True):
    """A family's file, parsed."""

    name: str
    values: Mapping[str, Any]

    @property
    def has_tool_calls(self) -> bool:
        """Whether answers may hold tool calls."""
        return "tool_calls" in self.values["response_template"]["fields"]


def find_family_record(chat_template: str, tokens: Collection[str]) -> FamilyRecord | None:
    """The record of a model's family; None if no family is known.

    Args:
        chat_template: the model's.
        tokens: the texts of its added tokens.
    """
    for family, record in _records():
        if _fits(record, chat_template, tokens):
            return FamilyRecord(family, record)
    return None


def find_answer_ends(chat_template: str | None, tokens: Collection[str]) -> AnswerEnds:
    """The tokens that end an answer in the format of a model's answers.

    Args:
        chat_template: the model's; without one its vocabulary alone tells.
    """
    for _, record in _records():
        ends = AnswerEnds(*(tuple(texts) for texts in record.get("ends", {}).values()))
        if not {*ends.of_answers, *ends.of_messages} <= {*tokens}:
            continue
        if chat_template is None or _fits(record, chat_template, tokens):
            return ends
    return AnswerEnds()


def _records() -> Iterator[tuple[str, dict[str, Any]]]:
    for family in FAMILIES:
        yield family, json.loads((_FOLDER / f"{family}.json").read_text(encoding="utf-8"))


def _fits(record: Mapping[str, Any], chat_template: str, tokens: Collection[str]) -> bool:
    """Whether the chat template has all the texts, and the vocabulary all the tokens that a family has."""
    return all(text in chat_template for text in record["chat_template"]["has"]) and all(
        token in tokens for token in record.get("tokens", ())
    )
