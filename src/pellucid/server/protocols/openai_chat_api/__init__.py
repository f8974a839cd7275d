"""OpenAI's /v1/chat/completions: calls (fields), replies (reply_objects, choice_writer), and the route."""
