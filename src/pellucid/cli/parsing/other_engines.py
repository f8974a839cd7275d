"""Options and commands of Ollama, llama.cpp and vLLM, and their equivalents here."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

from pellucid.cli.parsing.models import looks_like_model

_LEAVE_OUT = "leave it out"

VERBS = {
    "benchmark": "pellucid bench",
    "complete": 'pellucid run --raw "Once upon a time"',
    "cp": "models are named by their repositories, and have no other names",
    "create": "pellucid run path/to/model.gguf, which takes a file as it is",
    "generate": 'pellucid run "Once upon a time"',
    "perplexity": "pellucid eval-kv measures perplexity",
    "ps": "a model is in memory only while a command runs",
    "push": "models are downloaded only",
    "show": "pellucid check says what a model is, and pellucid plan what it needs",
    "stop": "a model is in memory only while a command runs",
}
_COMMAND = re.compile(r"pellucid (run|chat|serve|bench|explain)\b")
_BEGIN_WITH_RUN = 'to run a prompt: pellucid run "{word}"'
_RUN_A_MODEL = 'to run a model: pellucid run {word} "Why is the sky blue?"'

OPTIONS = {
    "--batch-size": "--max-num-batched-tokens",
    "--best-of": "best_of is a parameter of SamplingParams in Python",
    "--cache-type-k": "--kv-cache-dtype",
    "--cache-type-v": "--kv-cache-dtype",
    "--chat-template-file": "--chat-template FILE",
    "--color": f"colours are used where the terminal has them: {_LEAVE_OUT}",
    "--cpu": f"pellucid runs on the CPU: {_LEAVE_OUT}",
    "--device": "--backend",
    "--dtype": f"--quantization, or {_LEAVE_OUT}: the weights are used as they are stored",
    "--escape": r"in most shells, $'one\ntwo' has a newline",
    "--flash-attn": f"attention is always computed in that way: {_LEAVE_OUT}",
    "--format": "--json",
    "--gpu-layers": f"pellucid runs on the CPU: {_LEAVE_OUT}",
    "--gpu-memory-utilization": "--kv-cache-memory 4GiB",
    "--hf-repo": "the model is named owner/name: pellucid run owner/name",
    "--hidethinking": "--no-think",
    "--host": "pellucid serve --host",
    "--interactive": "pellucid chat",
    "--keepalive": f"a model is in memory only while a command runs: {_LEAVE_OUT}",
    "--length": "--max-tokens",
    "--max-new-tokens": "--max-tokens",
    "--mlock": _LEAVE_OUT,
    "--n-gpu-layers": f"pellucid runs on the CPU: {_LEAVE_OUT}",
    "--n-predict": "--max-tokens",
    "--no-cnv": "--raw",
    "--no-conversation": "--raw",
    "--no-display-prompt": f"the prompt is shown on a terminal only: {_LEAVE_OUT}",
    "--no-mmap": _LEAVE_OUT,
    "--nowordwrap": "a pipe gets the text as it is: pellucid run ... | cat",
    "--num-ctx": "--max-model-len",
    "--num-predict": "--max-tokens",
    "--predict": "--max-tokens",
    "--prompt-cache": "--prefix-cache-dir DIR",
    "--reverse-prompt": "--stop",
    "--sampling-seed": "--seed",
    "--stream": f"text is always streamed: {_LEAVE_OUT}",
    "--system-prompt": "--system",
    "--tensor-parallel-size": f"pellucid runs on one machine: {_LEAVE_OUT}",
    "--tokenizer": "the model's own tokenizer is used",
    "--trust-remote-code": f"no code of a model is ever run: {_LEAVE_OUT}",
    "--ubatch-size": "--max-num-batched-tokens",
    "-b": "--max-num-batched-tokens",
    "-cnv": "pellucid chat",
    "-co": f"colours are used where the terminal has them: {_LEAVE_OUT}",
    "-ctk": "--kv-cache-dtype",
    "-ctv": "--kv-cache-dtype",
    "-e": r"in most shells, $'one\ntwo' has a newline",
    "-fa": f"attention is always computed in that way: {_LEAVE_OUT}",
    "-hf": "the model is named owner/name: pellucid run owner/name",
    "-i": "pellucid chat",
    "-ngl": f"pellucid runs on the CPU: {_LEAVE_OUT}",
    "-no-cnv": "--raw",
    "-st": "pellucid run",
    "-sys": "--system",
    "-tp": f"pellucid runs on one machine: {_LEAVE_OUT}",
    "-ub": "--max-num-batched-tokens",
}


def _advice(text: str) -> str:
    """What to type instead begins with an option or with pellucid; other advice is a sentence."""
    is_typed = text.startswith("-") or _COMMAND.match(text) is not None
    return f"use {text}" if is_typed else text


def instead_of_verb(word: str, verbs: Iterable[str]) -> str:
    """The error for a word that is no verb."""
    verbs = list(verbs)
    if word in VERBS:
        return f"there is no command {word!r}; {_advice(VERBS[word])}"
    if close := get_close_matches(word, verbs, 1):
        return f"there is no command {word!r}; did you mean {close[0]}?"
    if looks_like_model(word):
        return f"a command comes first; {_RUN_A_MODEL.format(word=word)}"
    if " " in word:
        return f"a command comes first; {_BEGIN_WITH_RUN.format(word=word)}"
    return f"there is no command {word!r}; there are {', '.join(verbs)}"


def instead_of_option(
    words: Iterable[str], options: Iterable[str], *, short_only: bool = False
) -> str | None:
    """The error for the first of a command line's words that is another engine's option.

    Args:
        words: of the command line.
        options: that the command has.
        short_only: whether to look for one dash and several letters only, as in -ngl.

    Returns:
        None if no word is one.
    """
    own = set(options)
    for word in words:
        if word == "--":
            break
        option = word.split("=")[0]
        if short_only and (option.startswith("--") or len(option) == 2):
            continue
        if option in OPTIONS and option not in own:
            return f"no such option: {option}; {_advice(OPTIONS[option])}"
    return None
