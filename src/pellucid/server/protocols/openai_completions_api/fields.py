"""The body of a call to /v1/completions, and how each of its fields is treated."""

from typing import Any

from pellucid.server.fields import FieldTable, honoured, not_served
from pellucid.server.protocols.openai_shared.fields import (
    SAMPLING_FIELDS,
    STREAM_OPTION_FIELDS,
    SamplingFields,
)


class CompletionBody(SamplingFields, kw_only=True):
    prompt: str | list[Any]
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None

    @property
    def is_prompt_only(self) -> bool:
        """Whether the reply is the prompt, without an answer."""
        return self.max_tokens == 0 and bool(self.echo)


COMPLETION_FIELDS = FieldTable(
    "POST /v1/completions",
    CompletionBody,
    (
        *honoured(
            prompt="a string, token ids, or a list of strings and lists of token ids",
            max_tokens="left out, 16; the answer ends when the context is full; 0 with echo"
            " gives the prompt alone",
            best_of="completions to generate; the n best are returned",
            echo="the reply begins with the prompt and its log-probabilities",
            logprobs="0..20 likeliest tokens at each position, the chosen one always with them",
        ),
        *SAMPLING_FIELDS,
        *not_served(suffix="no model with a fill-in-the-middle form is supported"),
    ),
    objects={"stream_options": STREAM_OPTION_FIELDS},
    example={"prompt": "Once upon a time", "max_tokens": 32},
)
