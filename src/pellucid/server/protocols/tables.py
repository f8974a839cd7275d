"""The tables of fields of all routes."""

from pellucid.server.protocols.openai_chat import CHAT_FIELDS
from pellucid.server.protocols.openai_completions import COMPLETION_FIELDS

FIELD_TABLES = (COMPLETION_FIELDS, CHAT_FIELDS)
