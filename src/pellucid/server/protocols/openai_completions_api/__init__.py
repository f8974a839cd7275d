"""OpenAI's /v1/completions: calls (fields), replies (reply_objects, choice_writer), and the route."""
