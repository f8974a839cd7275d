"""What the text of a model's answer means: reasoning, content and tool calls, read as it comes."""
