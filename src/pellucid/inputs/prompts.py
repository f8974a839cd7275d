"""Prompts: text, token ids, or a conversation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pellucid.inputs.conversation import (
    Message,
    Tool,
    checked_json,
    checked_messages,
    checked_tools,
)
from pellucid.inputs.parameter_checks import CheckedFields, check_text

__all__ = ["ChatPrompt", "EncodedPrompt", "Message", "Prompt", "PromptTooLongError", "Tool"]

# Variables of chat templates that ChatPrompt has fields for
_RESERVED_VARIABLES = ("add_generation_prompt", "continue_final_message", "messages", "tools")
# Jinja takes any text for true, "false" too
_BOOLEAN_VARIABLES = ("enable_thinking", "thinking")


@dataclass(frozen=True)
class ChatPrompt(CheckedFields):
    """A conversation that the assistant continues.

    Checked when made, and copied: later changes of the caller's lists change nothing here. The model's chat template
    makes tokens of it. The token that the template writes after an answer ends the answer, besides the model's own
    end tokens.

    Args:
        messages: the oldest first. The roles are system, developer, user, assistant and tool; the content is text or
            a list of text parts. An assistant's message may have `tool_calls` and `reasoning_content`, a tool's
            message `tool_call_id`.
        tools: functions that the model may call, with JSON schemas of their parameters.
        chat_template: a template in place of the model's own, in Jinja.
        chat_template_kwargs: variables for the template, such as {"enable_thinking": False}.
        add_generation_prompt: end with what opens the assistant's answer; left out, unless the final message is
            continued.
        continue_final_message: end within the final message, which the answer then continues.

    Raises:
        ValueError: names the message, the key, the value and what is allowed.
    """

    messages: Sequence[Message]
    tools: Sequence[Tool] | None = None
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False

    def __post_init__(self) -> None:
        self._normalise("messages", checked_messages(self.messages))
        self._normalise("tools", checked_tools(self.tools))
        self._normalise("chat_template_kwargs", _checked_variables(self.chat_template_kwargs))
        if self.chat_template is not None:
            if not isinstance(self.chat_template, str):
                raise ValueError(f"chat_template={self.chat_template!r}: must be text")
            check_text(self.chat_template, "chat_template")
        if not isinstance(self.continue_final_message, bool):
            raise ValueError(
                f"continue_final_message={self.continue_final_message!r}: must be True or False"
            )
        if self.add_generation_prompt is None:
            self._normalise("add_generation_prompt", not self.continue_final_message)
        if not isinstance(self.add_generation_prompt, bool):
            raise ValueError(
                f"add_generation_prompt={self.add_generation_prompt!r}: must be True or False"
            )
        if self.continue_final_message:
            if self.add_generation_prompt:
                raise ValueError(
                    "add_generation_prompt=True: must be False with continue_final_message=True"
                )
            if not self.messages[-1]["content"]:
                raise ValueError("continue_final_message=True: the final message has no content")


# Token ids are taken as they are: no BOS is added.
Prompt: TypeAlias = str | Sequence[int] | ChatPrompt


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt in token ids, checked against the model. `LLMEngine.encode` makes it.

    Attributes:
        text: None if token ids or a conversation were given.
        is_chat: whether a conversation was given.
        end_token_ids: the tokens that end its answer, unless `ignore_eos`.
        arrival_time: when it was given to the engine, in seconds on the engine's clock.
        encoded_time: when its encoding ended.
    """

    text: str | None
    is_chat: bool
    token_ids: tuple[int, ...]
    end_token_ids: frozenset[int]
    arrival_time: float
    encoded_time: float


class PromptTooLongError(ValueError):
    """A prompt leaves no room for an answer in the context.

    Args:
        max_model_len: longest prompt + output.
        at_least: the prompt was not counted to its end.

    Attributes:
        counted: `num_tokens` for people, who are told if it is a lower bound.
    """

    def __init__(self, num_tokens: int, max_model_len: int, at_least: bool = False) -> None:
        self.counted = f"{'at least ' * at_least}{num_tokens}"
        super().__init__(
            f"prompt: has {self.counted} tokens; the context of {max_model_len} tokens"
            " must hold it and at least one more"
        )
        self.num_tokens = num_tokens
        self.max_model_len = max_model_len


def _checked_variables(variables: Mapping[str, Any] | None) -> dict[str, Any]:
    if variables is None:
        return {}
    if not isinstance(variables, Mapping):
        raise ValueError(
            f"chat_template_kwargs={variables!r}: must be a mapping of names to values"
        )
    for name, value in variables.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"chat_template_kwargs: {name!r} is not the name of a variable")
        if name in _RESERVED_VARIABLES:
            raise ValueError(
                f"chat_template_kwargs: {name} must be passed by itself, not as a template variable"
            )
        if name in _BOOLEAN_VARIABLES and not isinstance(value, bool):
            raise ValueError(f"chat_template_kwargs.{name}={value!r}: must be True or False")
    checked: dict[str, Any] = checked_json(variables, "chat_template_kwargs")
    return checked
