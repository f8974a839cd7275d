"""Ollama's protocol: calls (fields, input_messages), replies (line_writer), and the routes."""
