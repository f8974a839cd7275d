"""Turns the fields of a chat completion into a conversation."""

from pellucid.inputs.prompts import ChatPrompt
from pellucid.server.protocols.conversation import ConversationBuilder
from pellucid.server.protocols.openai_chat_api.fields import SWITCH, ChatBody
from pellucid.text.tokenizer import Tokenizer


def conversation_of(body: ChatBody, tokenizer: Tokenizer, warnings: list[str]) -> ChatPrompt:
    """The conversation of a call.

    Tools stand in it even if none may be called: without them the prompt would differ from its beginning, and the
    prefix cache would find nothing of it.

    Raises:
        ApiError: a field asks for what is not served.
        ValueError: names the message, the key, the value and what is allowed.
    """
    builder = ConversationBuilder(tokenizer, warnings)
    builder.set_effort(body.reasoning_effort, "reasoning_effort")
    builder.set_switch(body.wants_thinking, "enable_thinking")
    if body.tool_choice == "none":  # then it is no fault if the template does not take them
        builder.offer_tools(body.tools)
    else:
        builder.require_tools(body.tools)
    builder.add_sent(body.messages)
    given = body.chat_template_kwargs or {}
    builder.set_variables({name: value for name, value in given.items() if name != SWITCH})
    return builder.prompt(
        is_continued=bool(body.continue_final_message),
        add_generation_prompt=body.add_generation_prompt,
    )
