"""All hostile inputs, by area. A new way to make pellucid work too hard gets a case here."""

from hostile import checkpoint_cases, gguf_cases, request_cases, tokenizer_cases

CASES = {
    case.name: case
    for cases in (
        checkpoint_cases.CASES,
        tokenizer_cases.CASES,
        gguf_cases.CASES,
        request_cases.CASES,
    )
    for case in cases
}


def warm_up() -> None:
    """Imports and first uses, which no case pays for."""
    for case in (checkpoint_cases.GOOD, gguf_cases.GOOD, request_cases.GOOD):
        case()
