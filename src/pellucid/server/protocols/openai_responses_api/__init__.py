"""OpenAI's /v1/responses: calls (fields, input_items, tools, kept_items), replies (response_object, item_events,
event_writer), and the routes."""
