"""Parameters of structured outputs: JSON by a schema, a choice, a regular expression, a grammar."""

import json as json_format
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pellucid.inputs.parameter_checks import CheckedFields, checked_strings, refuse

MAX_GRAMMAR_CHARS = 200_000
_KINDS = ("json", "regex", "choice", "grammar", "json_object")


@dataclass(frozen=True, kw_only=True)
class StructuredOutputsParams(CheckedFields):
    """One rule for the whole text of an answer. Names are vLLM's.

    The answer ends as soon as nothing can follow, or where the rule allows an end and the model ends it.

    Args:
        json: a JSON schema, as an object or as text; kept as text.
        regex: a regular expression.
        choice: texts, one of which the answer is.
        grammar: a context-free grammar in Lark's syntax, as llguidance reads it, or in llama.cpp's GBNF.
        json_object: any JSON object.

    Raises:
        ValueError: not exactly one is given, or it has another form.
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool = False

    def __post_init__(self) -> None:
        given = [name for name in _KINDS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            raise ValueError(
                f"structured_outputs: {', '.join(given) or 'nothing'} given; exactly one of"
                f" {', '.join(_KINDS)} is allowed"
            )
        if self.json is not None:
            self._normalise("json", _schema_text(self.json))
        if self.choice is not None:
            if isinstance(self.choice, str):
                refuse("structured_outputs.choice", self.choice, "a list of texts")
            self._normalise("choice", checked_strings("structured_outputs.choice", self.choice))
            if not self.choice:
                refuse("structured_outputs.choice", self.choice, "a list of at least one text")
        for name in ("json", "regex", "grammar"):
            text = getattr(self, name)
            if text is None:
                continue
            if not isinstance(text, str) or not text:
                refuse(f"structured_outputs.{name}", text, "text")
            if len(text) > MAX_GRAMMAR_CHARS:
                raise ValueError(
                    f"structured_outputs.{name}: has {len(text)} characters; at most"
                    f" {MAX_GRAMMAR_CHARS} are allowed"
                )
        if not isinstance(self.json_object, bool):
            refuse("structured_outputs.json_object", self.json_object, "True or False")

    @property
    def kind(self) -> str:
        """Which of them is given."""
        return next(name for name in _KINDS if getattr(self, name) not in (None, False))


def _schema_text(schema: Any) -> str:
    if not isinstance(schema, str | Mapping):
        refuse("structured_outputs.json", schema, "a JSON schema, as an object or as text")
    try:
        value = json_format.loads(schema) if isinstance(schema, str) else schema
        text = json_format.dumps(value, allow_nan=False)
    except (RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"structured_outputs.json: is not JSON: {error}") from None
    if not isinstance(value, Mapping | bool):
        refuse("structured_outputs.json", schema, "a JSON schema, which is an object")
    return text
