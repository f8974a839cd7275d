"""Anthropic's /v1/messages: calls (fields, input_messages), replies (message_writer), and the routes."""
