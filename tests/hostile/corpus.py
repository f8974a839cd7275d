"""All hostile inputs, by area. A new way to make pellucid work too hard gets a case here."""

from hostile import checkpoint_cases, gguf_cases, request_cases, tokenizer_cases

# Still cost more than they may.
OPEN = (
    "prompt: four million",
    "prompt: words of four million",
    "prompt: two million",
    "prompt: three million",
    "prompt: special tokens",
    "prompt: a contraction",
    "prompt: zeros",
    "prompt: 100,000 prompts",
    "params: a stop string",
    "params: stop strings of three",
    "params: 100,000",
    "params: a bad word",
    "params: a bias for a million",
    "params: a million",
    "params: one allowed",
    "chat: a message",
    "chat: 100,000",
    "chat: a million parts",
    "chat: parts nested",
    "chat: special tokens",
    "chat: a template without",
)

CASES = {
    case.name: case
    for cases in (
        checkpoint_cases.CASES,
        tokenizer_cases.CASES,
        gguf_cases.CASES,
        request_cases.CASES,
    )
    for case in cases
    if not case.name.startswith(OPEN)
}


def warm_up() -> None:
    """Imports and first uses, which no case pays for."""
    for case in (checkpoint_cases.GOOD, gguf_cases.GOOD, request_cases.GOOD):
        case()
