"""OpenAI's /v1/responses: fields of calls, input (the conversation; tools and kept_items beside it), writer of replies
(response_object and item_events beside it), routes."""
