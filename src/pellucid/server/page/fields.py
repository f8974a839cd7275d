"""Bodies of the routes that run something for the live page, and the tables of their fields."""

from typing import Literal

import msgspec

from pellucid.inputs.config import MAX_DRAFT_TOKENS
from pellucid.server.errors import refused
from pellucid.server.fields import FieldTable, honoured

MAX_NEW_TOKENS = 512
MAX_PROMPT_TOKENS = 4096
MAX_BATCH = 64
MAX_REQUESTS = 500
MAX_RUNS = 9


class CompareBody(msgspec.Struct, kw_only=True):
    prompt: str | list[int]
    kind: Literal["cache", "kv_dtype", "batch", "drafts"] = "cache"
    max_tokens: int = 64
    temperature: float = 0.0
    seed: int | None = None
    batch: int = 8
    drafter: Literal["ngram", "draft"] = "ngram"
    num_drafts: int = 4
    runs: int = 3
    ignore_eos: bool = True

    def check(self) -> None:
        """Raises an ApiError for more than a demonstration may take."""
        _check("max_tokens", self.max_tokens, 1, MAX_NEW_TOKENS)
        _check("batch", self.batch, 2, MAX_BATCH)
        _check("num_drafts", self.num_drafts, 1, MAX_DRAFT_TOKENS)
        _check("runs", self.runs, 1, MAX_RUNS)


class LoadBody(msgspec.Struct, kw_only=True):
    num_requests: int = 32
    rate: float | None = None
    concurrency: int = 4
    prompt_tokens: str = "32-256"
    output_tokens: str = "16-64"
    prefix_tokens: int = 0
    num_prefixes: int = 1
    discipline: Literal["continuous", "static"] = "continuous"
    static_batch: int = 8
    seed: int = 0
    ttft_slo: float | None = None
    itl_slo: float | None = None

    def check(self) -> None:
        """Raises an ApiError for more than a demonstration may take."""
        _check("num_requests", self.num_requests, 1, MAX_REQUESTS)
        _check("concurrency", self.concurrency, 1, MAX_REQUESTS)
        _check("prefix_tokens", self.prefix_tokens, 0, MAX_PROMPT_TOKENS)
        _check("num_prefixes", self.num_prefixes, 1, MAX_REQUESTS)
        _check("static_batch", self.static_batch, 1, MAX_BATCH)


class ForkBody(msgspec.Struct, kw_only=True):
    req: str
    position: int
    token_id: int
    max_tokens: int = 64

    def check(self) -> None:
        """Raises an ApiError for more than a demonstration may take."""
        _check("max_tokens", self.max_tokens, 1, MAX_NEW_TOKENS)


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise refused(f"{name}={value}: must be in {low}..{high}", name)


COMPARE_FIELDS = FieldTable(
    "POST /v1/compare",
    CompareBody,
    honoured(
        prompt=f"a text or token ids, at most {MAX_PROMPT_TOKENS} tokens",
        kind="cache: with and without the KV cache; kv_dtype: formats of the KV cache; batch: requests"
        " one after the other and together; drafts: without and with drafts",
        max_tokens=f"of each answer, 1..{MAX_NEW_TOKENS}",
        temperature="as everywhere",
        seed="as everywhere; left out, one is drawn for all arms",
        batch=f"requests of the kind batch, 2..{MAX_BATCH}",
        drafter="of the kind drafts: ngram looks drafts up in the text, draft asks the draft model",
        num_drafts=f"of the kind drafts: most drafts of a round, 1..{MAX_DRAFT_TOKENS}",
        runs=f"how often each arm runs, the arms in turn, 1..{MAX_RUNS}",
        ignore_eos="continue after the model's end tokens, so that all arms have the same length",
    ),
)
LOAD_FIELDS = FieldTable(
    "POST /v1/load",
    LoadBody,
    honoured(
        num_requests=f"in all, 1..{MAX_REQUESTS}",
        rate="arrivals a second, a Poisson process; left out, each follows when another one ends",
        concurrency=f"requests at a time without a rate, 1..{MAX_REQUESTS}",
        prompt_tokens="N, FROM-TO (uniform) or MEDIAN:P95 (log-normal), without the shared prefix",
        output_tokens="likewise",
        prefix_tokens=f"of each shared prefix; 0: none, 0..{MAX_PROMPT_TOKENS}",
        num_prefixes=f"each prompt begins with one of so many, 1..{MAX_REQUESTS}",
        discipline="continuous: requests start as they arrive; static: they wait for a full batch, and no"
        " request starts before the previous batch has ended",
        static_batch=f"requests of a static batch, 1..{MAX_BATCH}",
        seed="of arrivals, lengths and prompts",
        ttft_slo="most seconds to the first token for goodput",
        itl_slo="most seconds between tokens, on average, for goodput",
    ),
)
FORK_FIELDS = FieldTable(
    "POST /v1/page/fork",
    ForkBody,
    honoured(
        req="the completion to continue: an id of a reply, or the engine's name",
        position="position of the token to replace; the prompt's first token is 0",
        token_id="the token that replaces it",
        max_tokens=f"output tokens after the fork, 1..{MAX_NEW_TOKENS}",
    ),
)
