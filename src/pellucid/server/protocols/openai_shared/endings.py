"""How answers end, in OpenAI's words."""

CANCELLED = "cancelled"


def openai_finish_reason(finish_reason: str | None) -> str | None:
    """OpenAI has no word for a cancelled answer: like a limit, cancelling cuts an answer off."""
    return "length" if finish_reason == "abort" else finish_reason


def shown_stop_reason(finish_reason: str | None, stop_reason: int | str | None) -> int | str | None:
    """What ended an answer; it tells a cancelled one from one that reached a limit."""
    return CANCELLED if finish_reason == "abort" else stop_reason
