"""Options and commands of Ollama, llama.cpp and vLLM, and their equivalents here."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

from pellucid.cli.parsing.models import looks_like_model

_LEAVE_OUT = "leave it out"
_ONE_MACHINE = f"pellucid runs on one machine: {_LEAVE_OUT}"
_BY_TEMPLATE = f"the chat template says the form of calls and reasoning: {_LEAVE_OUT}"
_BY_MODEL = f"the model's own is used: {_LEAVE_OUT}"
_NO_LORA = "there are no LoRA adapters: merge it into the model first"

_VERBS = {
    "bench latency, benchmark, llama-bench": "pellucid bench",
    "bench serve": "pellucid bench-serve",
    "bench throughput": "pellucid bench --batch 1,8,32",
    "complete": 'pellucid run --raw "Once upon a time"',
    "convert": "pellucid quantize writes a copy of a model in fewer bits",
    "cp": "models are named by their repositories, and have no other names",
    "create": "pellucid run path/to/model.gguf, which takes a file as it is",
    "delete, remove": "pellucid rm",
    "download, install": "pellucid pull",
    "embed": "models here write text; none makes embeddings",
    "generate": 'pellucid run "Once upon a time"',
    "info, show": "pellucid check says what a model is, and pellucid plan what it needs",
    "llama-cli": "pellucid run",
    "llama-server, start": "pellucid serve",
    "login": "hf auth login, or HF_TOKEN, opens models that ask for an agreement",
    "models": "pellucid list",
    "openai": "pellucid serve, which speaks OpenAI's protocol",
    "perplexity": "pellucid eval-kv measures perplexity",
    "ps, stop": "a model is in memory only while a command runs",
    "push": "models are downloaded only",
    "search": "huggingface.co/models finds models, and pellucid pull OWNER/NAME downloads one",
    "tokenize": "the server has the route /tokenize",
    "update": "to download a newer version of a model: pellucid pull NAME",
    "version": "pellucid --version",
}
VERBS = {name: advice for names, advice in _VERBS.items() for name in names.split(", ")}
_COMMAND = re.compile(r"pellucid (run|chat|serve|bench|explain|pull|list|rm|--version)\b")
_BEGIN_WITH_RUN = 'to run a prompt: pellucid run "{word}"'
_RUN_A_MODEL = 'to run a model: pellucid run {word} "Why is the sky blue?"'

_OPTIONS = {
    "--alias --served-model-name -a": "--model-name",
    "--batch-size --ubatch-size -b -ub": "--max-num-batched-tokens",
    "--best-of": "best_of is a parameter of SamplingParams in Python",
    "--cache-type-k --cache-type-v -ctk -ctv": "--kv-cache-dtype",
    "--chat-template-file": "--chat-template FILE",
    "--color -co": f"colours are used where the terminal has them: {_LEAVE_OUT}",
    "--cont-batching -cb": f"requests are always computed together: {_LEAVE_OUT}",
    "--cpu": "--device cpu",
    "--data-parallel-size --pipeline-parallel-size --tensor-parallel-size -tp": _ONE_MACHINE,
    "--disable-log-requests": f"calls are logged only with --log-calls: {_LEAVE_OUT}",
    "--dtype": f"--quantization, or {_LEAVE_OUT}: the weights are used as they are stored",
    "--enable-auto-tool-choice --reasoning-parser --tool-call-parser": _BY_TEMPLATE,
    "--enable-chunked-prefill": f"long prompts are always read in chunks: {_LEAVE_OUT}",
    "--enable-lora --lora": _NO_LORA,
    "--enable-prefix-caching": f"prefixes are always kept: {_LEAVE_OUT}",
    "--enforce-eager --insecure --mlock --no-mmap --numa --prio": _LEAVE_OUT,
    "--escape -e": r"in most shells, $'one\ntwo' has a newline",
    "--flash-attn -fa": f"attention is always computed in that way: {_LEAVE_OUT}",
    "--force -f": "--yes",
    "--format": "--json",
    "--gpu-memory-utilization": "--kv-cache-memory 4GiB",
    "--gpu-layers --n-gpu-layers -ngl": "--device cuda, which takes all layers",
    "--grammar-file": "--grammar FILE",
    "--hf-repo -hf": "the model is named owner/name: pellucid run owner/name",
    "--hidethinking": "--no-think",
    "--host": "pellucid serve --host",
    "--interactive -cnv -i": "pellucid chat",
    "--jinja": f"chat templates are always read: {_LEAVE_OUT}",
    "--keepalive": f"a model is in memory only while a command runs: {_LEAVE_OUT}",
    "--length --max-new-tokens --n-predict --num-predict --predict": "--max-tokens",
    "--load-format": f"the files say their format: {_LEAVE_OUT}",
    "--metrics": f"the server always has /metrics: {_LEAVE_OUT}",
    "--mirostat": "--temperature, --top-p or --min-p",
    "--mmproj": f"images are not read: {_LEAVE_OUT}",
    "--no-cnv --no-conversation -no-cnv": "--raw",
    "--no-display-prompt": f"the prompt is shown on a terminal only: {_LEAVE_OUT}",
    "--nowordwrap": "a pipe gets the text as it is: pellucid run ... | cat",
    "--num-ctx": "--max-model-len",
    "--parallel -np": "--max-num-seqs",
    "--prompt-cache": "--prefix-store DIR",
    "--reverse-prompt": "--stop",
    "--rope-freq-base --rope-scaling": _BY_MODEL,
    "--sampling-seed": "--seed",
    "--speculative-config": "--speculation",
    "--stream": f"text is always streamed: {_LEAVE_OUT}",
    "--swap-space": "only LLM(swap_space=...) in Python has it",
    "--system-prompt -sys": "--system",
    "--threads-batch -tb": "--num-threads",
    "--tokenizer": "the model's own tokenizer is used",
    "--trust-remote-code": f"no code of a model is ever run: {_LEAVE_OUT}",
    "-n": "--gen",
    "-p": "--prompt",
    "-st": "pellucid run",
}
OPTIONS = {name: advice for names, advice in _OPTIONS.items() for name in names.split(" ")}


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
        if option in own or (short_only and (option.startswith("--") or len(option) == 2)):
            continue
        spelled = option.replace("_", "-")
        advice = spelled if spelled in own else OPTIONS.get(spelled)
        if advice is None or (
            own and advice.startswith("-") and advice.split()[0].rstrip(",") not in own
        ):
            continue  # it is not known, or the command has nothing like it
        return f"no such option: {option}; {_advice(advice)}"
    return None
