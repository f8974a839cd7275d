"""The body of a call to /v1/completions, and how each of its fields is treated."""

from typing import Any

from pellucid.inputs.sampling_params import DEFAULT_MAX_TOKENS, SamplingParams
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

    def sampling_params(self, defaults: SamplingParams) -> SamplingParams:
        limit = self.limit or {"max_tokens": DEFAULT_MAX_TOKENS}
        if self.is_prompt_only:
            limit = {"max_tokens": 1}  # the engine computes a prompt to go on
        prompt_logprobs = [self.prompt_logprobs, self.num_logprobs if self.echo else None]
        return self.params(
            defaults,
            **limit,
            **self.aliased("logprobs", "n_probs"),
            best_of=self.best_of,
            # Echo wants as many as logprobs
            prompt_logprobs=max((num for num in prompt_logprobs if num is not None), default=None),
        )

    @property
    def num_logprobs(self) -> int | None:
        """How many likeliest tokens stand beside each token; None: the client wants no log-probabilities."""
        return next(iter(self.aliased("logprobs", "n_probs").values()), None)

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
