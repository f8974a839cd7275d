"""The tables of fields of all routes."""

from pellucid.server.protocols import (
    anthropic,
    ollama,
    openai_chat,
    openai_completions,
    openai_responses,
    tokens,
)

FIELD_TABLES = (
    openai_chat.CHAT_FIELDS,
    openai_completions.COMPLETION_FIELDS,
    openai_responses.RESPONSES_FIELDS,
    openai_responses.INPUT_TOKENS_FIELDS,
    anthropic.MESSAGES_FIELDS,
    anthropic.COUNT_FIELDS,
    ollama.CHAT_FIELDS,
    ollama.GENERATE_FIELDS,
    ollama.OPTION_FIELDS,
    tokens.TOKENIZE_FIELDS,
    tokens.DETOKENIZE_FIELDS,
    tokens.APPLY_TEMPLATE_FIELDS,
)
