"""Builds the conversation of a call in the form that all protocols share."""

from collections.abc import Mapping, Sequence
from typing import Any

from pellucid.inputs.prompts import ChatPrompt
from pellucid.server.protocols.messages import readable_messages
from pellucid.text.tokenizer import Tokenizer


class ConversationBuilder:
    """Collects the messages, the tools and the template's variables of one call. What the model's template does not
    read is left out, with a warning.

    Args:
        tokenizer: the model's; it has the template.
        warnings: gets a line for each thing that has no effect.

    Attributes:
        messages: so far.
        variables: of the template.
    """

    def __init__(self, tokenizer: Tokenizer, warnings: list[str]) -> None:
        self.messages: list[Any] = []
        self.variables: dict[str, Any] = {}
        self._tools: Sequence[Any] | None = None
        self._tokenizer = tokenizer
        self._warnings = warnings

    def add(self, role: Any, content: Any, **others: Any) -> None:
        """Adds a message."""
        self.messages.append({"role": role, "content": content, **others})

    def add_sent(self, messages: Sequence[Any]) -> None:
        """Adds messages in the form of chat completions, as a client sent them: see `readable_messages`."""
        self.messages += readable_messages(messages, self._warnings)

    def add_result(self, call_id: Any, text: str) -> None:
        """Adds the result of a tool's call."""
        self.add("tool", text, tool_call_id=call_id)

    @property
    def is_unfinished(self) -> bool:
        """Whether the last message is an assistant's text, which the answer is to continue."""
        last = self.messages[-1] if self.messages else None
        return (
            isinstance(last, dict)
            and last.get("role") == "assistant"
            and bool(last.get("content"))
            and not last.get("tool_calls")
        )

    def require_tools(self, tools: Sequence[Any] | None) -> None:
        """Shows tools to the model; `prompt` refuses them if its template does not."""
        self._tools = tools or None

    def offer_tools(self, tools: Sequence[Any] | None) -> None:
        """Shows tools to the model if its template does. It is no error if it does not: agents send tools with every
        request."""
        if tools and not self._tokenizer.chat_template_mentions("tools"):
            self._warnings.append("tools: has no effect: the model's template does not show tools")
            tools = None
        self._tools = tools or None

    def set_effort(self, effort: str | None, field: str) -> None:
        """Sets the template's variable for an effort of reasoning.

        Args:
            effort: the client's; None: it gave none.
            field: its name.
        """
        mentions = self._tokenizer.chat_template_mentions
        if effort is not None and mentions("reasoning_effort"):
            self.variables["reasoning_effort"] = effort
        elif effort == "none" and mentions("enable_thinking"):
            self.variables["enable_thinking"] = False
        elif effort is not None:
            self._warn_of_reasoning(field)

    def set_switch(self, wanted: bool | None, field: str) -> None:
        """Sets the template's variable that switches reasoning; arguments as those of `set_effort`."""
        if wanted is not None and self._tokenizer.chat_template_mentions("enable_thinking"):
            self.variables["enable_thinking"] = wanted
        elif wanted is not None:
            self._warn_of_reasoning(field)

    def set_variables(self, given: Mapping[str, Any]) -> None:
        """Sets those of a client's variables that the template mentions."""
        for name, value in given.items():
            if self._tokenizer.chat_template_mentions(name):
                self.variables[name] = value
            else:
                self._warnings.append(
                    f"chat_template_kwargs.{name[:64]}: has no effect: the model's template has no such variable"
                )

    def _warn_of_reasoning(self, field: str) -> None:
        """A model whose reasoning is known gets a budget instead."""
        if not self._tokenizer.response_format.knows_reasoning:
            self._warnings.append(f"{field}: has no effect: the model's template does not read it")

    def prompt(
        self, *, is_continued: bool = False, add_generation_prompt: bool | None = None
    ) -> ChatPrompt:
        """The conversation.

        Args:
            is_continued: the answer continues the last message.
            add_generation_prompt: as in `ChatPrompt`.

        Raises:
            ValueError: names the message, the key, the value and what is allowed.
        """
        return ChatPrompt(
            self.messages,
            self._tools,
            chat_template_kwargs=self.variables,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=is_continued,
        )


def function_call(call_id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """A call in a message of the assistant's."""
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
