"""Anthropic's /v1/messages: fields of calls, input (the conversation), writer of replies, routes."""
