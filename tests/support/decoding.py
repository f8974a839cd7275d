"""Runs decoders step by step over known texts, or greedily, without an engine."""

from collections.abc import Sequence

import numpy as np

from pellucid.backends.base import Backend
from pellucid.backends.ops import Decoder, HostArray
from pellucid.facts.kv_groups import kv_groups
from pellucid.facts.model_config import ModelConfig
from support.batches import Share, forward_batch, scattered_block_tables
from support.steps import Step, whole


def logits_in_steps(
    decoder: Decoder,
    config: ModelConfig,
    backend: Backend,
    texts: Sequence[Sequence[int]],
    steps: Sequence[Step],
    *,
    block_size: int = 16,
    kv_dtype: str = "f32",
    num_prompt_tokens: int | None = None,
) -> list[HostArray]:
    """Logits [length, V] of every token of each text, whatever steps compute them.

    Args:
        texts: token ids of each request.
        steps: what each step computes.
        num_prompt_tokens: how many of each text are the prompt; None: all.
    """
    tables = scattered_block_tables([len(text) for text in texts], block_size)
    num_groups = len(kv_groups(config))
    num_blocks = num_groups * sum(map(len, tables))
    kv_cache = backend.make_kv_cache(config, num_blocks, block_size, kv_dtype, len(texts))
    logits = [np.full((len(text), config.vocab_size), np.nan, np.float64) for text in texts]
    for step in steps:
        shares = [
            Share(texts[request], start, stop, tables[request], num_prompt_tokens, request)
            for request, start, stop in step
        ]
        batch = forward_batch(shares, block_size, num_groups=num_groups)
        rows = np.split(decoder.forward(batch, kv_cache), batch.query_start[1:-1])
        for (request, start, stop), own in zip(step, rows, strict=True):
            logits[request][start:stop] = own
    return logits


def prompt_logits(
    decoder: Decoder, config: ModelConfig, backend: Backend, prompt: Sequence[int]
) -> HostArray:
    """Logits [length, V] of a prompt that is computed whole."""
    return logits_in_steps(decoder, config, backend, [prompt], whole([len(prompt)]))[0]


def greedy_tokens(
    decoder: Decoder, config: ModelConfig, backend: Backend, prompt: Sequence[int], num_tokens: int
) -> list[int]:
    """The most likely continuation, one token at a time from the cache."""
    block_size, block_ids = 16, range(-(-(len(prompt) + num_tokens) // 16))
    num_groups = len(kv_groups(config))
    kv_cache = backend.make_kv_cache(config, num_groups * len(block_ids), block_size, "f32")
    token_ids, start = list(prompt), 0
    for _ in range(num_tokens):
        share = Share(token_ids, start, len(token_ids), block_ids, len(prompt))
        last_row = len(token_ids) - start - 1
        batch = forward_batch([share], block_size, [last_row], num_groups)
        logits = decoder.forward(batch, kv_cache)
        start = len(token_ids)
        token_ids.append(int(logits[0].argmax()))
    return token_ids[len(prompt) :]
