"""Chat templates in the style of well-known families, shortened to their differences: files of `templates`."""

from pathlib import Path

NAMES = (
    "qwen",  # ChatML with tools in XML tags (Qwen 2.5, Qwen 3, Hermes), reasoning of the last turn only
    # One system message and only at the beginning, at least one question, calls in XML, so arguments as objects
    "qwen3.5",
    "llama",  # one call in JSON, its content trimmed, a date, results in the role ipython (Llama 3.1)
    "mistral",  # turns must alternate, ids of calls have nine characters
    # The system prompt at the beginning alone, turns must alternate, ids of calls have nine characters (3.1)
    "mistral small",
    "gemma",  # parts of content, no tools, the system prompt in the first turn (Gemma 3)
    "gemma4",  # each role as a turn of its own, calls in a notation of their own, thinking on demand
    # Knows the role developer at the beginning alone, drops later system messages, writes one call of a message, and
    # takes no text beside reasoning and a call (gpt-oss)
    "harmony",
    "text arguments",  # joins the arguments of calls as text, and takes no None (DeepSeek)
    "parts only",  # takes lists of parts alone (SmolVLM)
)
_FOLDER = Path(__file__).with_name("templates")
FAMILIES = {it: (_FOLDER / f"{it}.jinja").read_text().removesuffix("\n") for it in NAMES}
