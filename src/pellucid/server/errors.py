"""Errors of calls, and the form of errors in each protocol."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec

from pellucid.async_engine import EngineStoppedError, TooManyRequestsError
from pellucid.inputs.prompts import PromptTooLongError


@dataclass(eq=False)
class ApiError(Exception):
    """An error reply.

    Attributes:
        status: of HTTP.
        message: names the field, the value and what is allowed.
        param: the field, if it is one.
        code: for programs; OpenAI's name where OpenAI has one.
        headers: of the reply.
        prompt_too_long: the prompt's tokens and the most that are allowed, if that is the reason.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    prompt_too_long: tuple[int, int] | None = None

    def __str__(self) -> str:
        return self.message


class ErrorShape(Enum):
    """The protocol whose form an error has."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    OLLAMA = "ollama"

    @classmethod
    def of_path(cls, path: str) -> "ErrorShape":
        if path.startswith("/v1/messages"):
            return cls.ANTHROPIC
        return cls.OLLAMA if path.startswith("/api/") else cls.OPENAI

    def body(self, error: ApiError, request_id: str) -> bytes:
        """The JSON of an error."""
        return msgspec.json.encode(self.fields(error, request_id))

    def fields(self, error: ApiError, request_id: str) -> dict[str, Any]:
        if self is ErrorShape.OLLAMA:
            return {"error": error.message}
        if self is ErrorShape.ANTHROPIC:
            message = error.message
            if error.prompt_too_long is not None:  # the words that agents look for
                message = "prompt is too long: {} tokens > {} maximum".format(
                    *error.prompt_too_long
                )
            kind = "api_error" if error.status >= 500 else "invalid_request_error"
            return {
                "type": "error",
                "error": {
                    "type": _ANTHROPIC_TYPES.get(error.status, kind),
                    "message": message,
                },
                "request_id": request_id,
            }
        kind = "server_error" if error.status >= 500 else "invalid_request_error"
        fields: dict[str, Any] = {
            "message": error.message,
            "type": _OPENAI_TYPES.get(error.status, kind),
            "param": error.param,
            "code": error.code,
        }
        if error.prompt_too_long is not None:  # llama.cpp's clients read its type and counts
            num_tokens, longest = error.prompt_too_long
            fields["type"] = "exceed_context_size_error"
            fields |= {"n_prompt_tokens": num_tokens, "n_ctx": longest + 1}
        return {"error": fields}


_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def refused(message: str, param: str | None = None) -> ApiError:
    """A call that asks for something the server does not do: status 400."""
    return ApiError(400, message, param)


def rule_refused(error: ValueError, field: str) -> ApiError:
    """A rule for answers that cannot be compiled.

    Args:
        error: the engine's error, which names the field `structured_outputs`.
        field: the field by which the client gave the rule.
    """
    name, _, what = str(error).partition(": ")
    if not name.startswith("structured_outputs"):
        return error_of(error)
    part = name.removeprefix("structured_outputs") if field == "structured_outputs" else ""
    return refused(f"{field}{part}: {what}", field)


def overloaded(message: str, retry_after: float) -> ApiError:
    """There is no room now: status 429. Codex CLI reads the words "try again in"."""
    seconds = max(1, round(retry_after))
    return ApiError(
        429,
        f"{message}; try again in {seconds}s",
        code="rate_limit_exceeded",
        headers={"retry-after": str(seconds)},
    )


def not_serving(message: str) -> ApiError:
    return ApiError(503, message, code="unavailable", headers={"retry-after": "5"})


def error_of(error: Exception) -> ApiError:
    """The error reply for an exception. It gives no details of internal errors."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, PromptTooLongError):
        return ApiError(
            400,
            f"This model's maximum context length is {error.max_model_len} tokens. However, your"
            f" prompt has {error.counted} tokens, and the answer needs at least one.",
            "prompt",
            "context_length_exceeded",
            prompt_too_long=(error.num_tokens, error.max_model_len - 1),
        )
    if isinstance(error, TooManyRequestsError):
        return overloaded(str(error), 1)
    if isinstance(error, EngineStoppedError):
        return not_serving(str(error))
    if isinstance(error, ValueError):
        return refused(str(error), _field_of(str(error)))
    return ApiError(500, "the server made a mistake; its log says more", code="internal_error")


def _field_of(message: str) -> str | None:
    """The field that a ValueError of ours begins with: "top_p=2: must be ..." or "messages[0].role: is missing"."""
    found = re.match(r"([a-z_]+(?:\[\d+\]|\.[a-z_]+)*)(?:=|: )", message)
    return found[1] if found else None
