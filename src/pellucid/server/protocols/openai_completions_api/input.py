"""Turns the prompt of a completion into the engine's prompts."""

from typing import Any

from pellucid.inputs.prompts import Prompt
from pellucid.server.errors import refused


def prompts_of(prompt: str | list[Any]) -> list[Prompt]:
    """The prompts of a call: one, unless it is a list of strings and of lists of token ids."""
    if isinstance(prompt, str):
        return [prompt]
    if all(type(element) is int for element in prompt) and prompt:
        return [prompt]
    for index, element in enumerate(prompt):
        if isinstance(element, list) and all(type(token_id) is int for token_id in element):
            continue
        if not isinstance(element, str):
            raise refused(
                f"prompt[{index}]: must be a string or a list of token ids", f"prompt[{index}]"
            )
    return list(prompt)
