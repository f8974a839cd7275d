"""The tables of fields of all routes."""

from pellucid.server.page import fields as page
from pellucid.server.protocols import tokens
from pellucid.server.protocols.anthropic_api import fields as anthropic
from pellucid.server.protocols.ollama_api import fields as ollama
from pellucid.server.protocols.openai_chat_api import fields as openai_chat
from pellucid.server.protocols.openai_completions_api import fields as openai_completions
from pellucid.server.protocols.openai_responses_api import fields as openai_responses
from pellucid.server.protocols.openai_shared import fields as openai_shared

FIELD_TABLES = (
    openai_chat.CHAT_FIELDS,
    openai_chat.INPUT_TOKENS_FIELDS,
    openai_completions.COMPLETION_FIELDS,
    openai_shared.STREAM_OPTION_FIELDS,
    openai_responses.RESPONSES_FIELDS,
    openai_responses.INPUT_TOKENS_FIELDS,
    openai_responses.REASONING_FIELDS,
    openai_responses.TEXT_FIELDS,
    openai_responses.PROMPT_CACHE_FIELDS,
    anthropic.MESSAGES_FIELDS,
    anthropic.COUNT_FIELDS,
    anthropic.THINKING_FIELDS,
    anthropic.OUTPUT_CONFIG_FIELDS,
    anthropic.DIAGNOSTICS_FIELDS,
    ollama.CHAT_FIELDS,
    ollama.GENERATE_FIELDS,
    ollama.OPTION_FIELDS,
    ollama.SHOW_FIELDS,
    tokens.TOKENIZE_FIELDS,
    tokens.DETOKENIZE_FIELDS,
    tokens.APPLY_TEMPLATE_FIELDS,
    page.COMPARE_FIELDS,
    page.LOAD_FIELDS,
    page.FORK_FIELDS,
)
