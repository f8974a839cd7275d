"""OpenAI's /v1/responses: calls (fields, input_items), replies (response_object, event_writer), and the routes."""
