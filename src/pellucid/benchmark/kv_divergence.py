"""How far a format of the KV cache moves the distribution of the next token."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pellucid.backends.ops import Array
from pellucid.execution.model_runner import build_forward_batch
from pellucid.facts.kv_groups import kv_groups
from pellucid.loaded_model import LoadedModel
from pellucid.scheduling.scheduler_output import ScheduledRequest

_BLOCK_SIZE = 32
_STEP_TOKENS = 64  # logits of all tokens of a step are kept, of two formats: few at a time


@dataclass(frozen=True)
class Divergence:
    """Means over tokens.

    Args:
        nats: KL(reference || format) of the distributions of the next token.
        same_top: share of tokens whose likeliest next token is the reference's.
    """

    nats: float
    same_top: float


def measure_divergence(
    model: LoadedModel, texts: Sequence[Sequence[int]], kv_cache_dtype: str, reference: str
) -> Divergence:
    """Reads the texts with two formats side by side.

    Args:
        texts: token ids; at least one token in all.
        kv_cache_dtype, reference: formats that the backend has.
    """
    nats, same = [], []
    for token_ids in texts:
        for expected, found in zip(
            _logits_in_steps(model, token_ids, reference),
            _logits_in_steps(model, token_ids, kv_cache_dtype),
            strict=True,
        ):
            p, q = _log_softmax(expected), _log_softmax(found)
            nats.append((np.exp(p) * (p - q)).sum(axis=-1))
            same.append(p.argmax(axis=-1) == q.argmax(axis=-1))
    return Divergence(float(np.concatenate(nats).mean()), float(np.concatenate(same).mean()))


def _logits_in_steps(
    model: LoadedModel, token_ids: Sequence[int], kv_cache_dtype: str
) -> Iterator[Array]:
    """[tokens of a step, V], of each step."""
    num_groups, num_blocks = len(kv_groups(model.config)), -(-len(token_ids) // _BLOCK_SIZE)
    kv_cache = model.backend.make_kv_cache(
        model.config, num_groups * num_blocks, _BLOCK_SIZE, kv_cache_dtype
    )
    tables = tuple(
        tuple(range(group * num_blocks, (group + 1) * num_blocks)) for group in range(num_groups)
    )
    for start in range(0, len(token_ids), _STEP_TOKENS):
        own = token_ids[start : start + _STEP_TOKENS]
        step = ScheduledRequest(
            *("text", start, start + len(own), own, 0, 0, (), len(token_ids), 0),
            prompt_logprob_rows=range(len(own)),
        )
        yield model.decoder.forward(build_forward_batch([step], [tables], _BLOCK_SIZE), kv_cache)


def _log_softmax(logits: Array) -> Array:
    shifted = np.asarray(logits, np.float64)
    shifted = shifted - shifted.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))
