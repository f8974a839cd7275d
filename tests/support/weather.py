"""A question whose scripted answer is reasoning and a call of a tool."""

from typing import Any

ANSWER_WITH_CALL = (
    "<think>Lima is far away.</think>I look.\n"
    '<tool_call>{"name": "weather", "arguments": {"city": "Lima", "days": 2}}</tool_call>'
)
ARGUMENTS = {"city": "Lima", "days": 2}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
QUESTION: list[Any] = [{"role": "user", "content": "Weather in Lima?"}]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "Weather.", "parameters": SCHEMA},
    }
]
