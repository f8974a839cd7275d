"""Ollama's protocol: fields of calls, input (the conversation), writer of replies, routes."""
