"""Shared by OpenAI's completions and chat completions: fields, usage, and the writer of replies."""
