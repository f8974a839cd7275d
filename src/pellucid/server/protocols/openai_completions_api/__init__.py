"""OpenAI's /v1/completions: fields of calls, input (the prompts), writer of replies, routes."""
