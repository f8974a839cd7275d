"""The tables of fields of all routes."""

from pellucid.server.protocols import ollama, openai_chat, openai_completions, tokens

FIELD_TABLES = (
    openai_chat.CHAT_FIELDS,
    openai_completions.COMPLETION_FIELDS,
    ollama.CHAT_FIELDS,
    ollama.GENERATE_FIELDS,
    ollama.OPTION_FIELDS,
    tokens.TOKENIZE_FIELDS,
    tokens.DETOKENIZE_FIELDS,
    tokens.APPLY_TEMPLATE_FIELDS,
)
