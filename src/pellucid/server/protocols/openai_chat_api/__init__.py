"""OpenAI's /v1/chat/completions: fields of calls, input (the conversation), writer of replies, routes."""
