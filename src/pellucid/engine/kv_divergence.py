"""How far a format of the KV cache moves the distribution of the next token."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from pellucid.backends.ops import Array
from pellucid.execution.candidates import Candidates
from pellucid.execution.model_runner import build_forward_batch
from pellucid.facts.kv_groups import kv_groups
from pellucid.loaded_model import LoadedModel
from pellucid.scheduling.scheduler_output import ScheduledRequest

_BLOCK_SIZE = 32
_STEP_TOKENS = 64  # logits of all tokens of a step are kept, of all formats: few at a time


@dataclass(frozen=True)
class Divergence:
    """Means over tokens.

    Args:
        nats: KL(reference || format) of the distributions of the next token.
        same_top: share of tokens whose likeliest next token is the reference's.
    """

    nats: float
    same_top: float


class DivergenceMeter:
    """Reads texts with several formats of the KV cache side by side, some tokens at a time.

    Args:
        texts: token ids; at least one token in all.
        kv_cache_dtypes, reference: formats that the backend has.

    Attributes:
        num_tokens: read so far.
    """

    def __init__(
        self,
        model: LoadedModel,
        texts: Sequence[Sequence[int]],
        kv_cache_dtypes: Sequence[str],
        reference: str,
    ) -> None:
        self.num_tokens = 0
        self._nats: dict[str, list[float]] = {name: [] for name in kv_cache_dtypes}
        self._same: dict[str, list[bool]] = {name: [] for name in kv_cache_dtypes}
        self._steps = self._read(model, texts, reference)

    def step(self) -> bool:
        """Reads some tokens more with all formats. False: there are none left."""
        return next(self._steps, False)

    def divergence(self, kv_cache_dtype: str) -> Divergence:
        """Of what has been read."""
        nats, same = self._nats[kv_cache_dtype], self._same[kv_cache_dtype]
        return Divergence(float(np.mean(nats)), float(np.mean(same)))

    def _read(
        self, model: LoadedModel, texts: Sequence[Sequence[int]], reference: str
    ) -> Iterator[bool]:
        names = [reference, *self._nats]
        for token_ids in texts:
            readings = [_logits_in_steps(model, token_ids, name) for name in names]
            for expected, *others in zip(*readings, strict=True):
                for name, found in zip(self._nats, others, strict=True):
                    self._compare(name, expected, found)
                self.num_tokens += len(expected)
                yield True

    def _compare(self, kv_cache_dtype: str, expected: Array, found: Array) -> None:
        for expected_row, row in zip(expected, found, strict=True):
            p, q = Candidates.of(np.asarray(expected_row)), Candidates.of(np.asarray(row))
            self._nats[kv_cache_dtype].append(
                float((p.probabilities * (p.logprobs - q.logprobs)).sum())
            )
            self._same[kv_cache_dtype].append(bool(p.logits.argmax() == q.logits.argmax()))


def measure_divergence(
    model: LoadedModel, texts: Sequence[Sequence[int]], kv_cache_dtype: str, reference: str
) -> Divergence:
    """Reads the texts with two formats side by side. Arguments are those of `DivergenceMeter`."""
    meter = DivergenceMeter(model, texts, [kv_cache_dtype], reference)
    while meter.step():
        pass
    return meter.divergence(kv_cache_dtype)


def _logits_in_steps(
    model: LoadedModel, token_ids: Sequence[int], kv_cache_dtype: str
) -> Iterator[Array]:
    """[tokens of a step, V], of each step."""
    num_groups, num_blocks = len(kv_groups(model.config)), -(-len(token_ids) // _BLOCK_SIZE)
    own_model = model.beside(_BLOCK_SIZE, kv_cache_dtype)
    kv_cache = own_model.make_kv_cache(num_groups * num_blocks, _BLOCK_SIZE, kv_cache_dtype)
    tables = tuple(
        tuple(range(group * num_blocks, (group + 1) * num_blocks)) for group in range(num_groups)
    )
    with closing(own_model):
        for start in range(0, len(token_ids), _STEP_TOKENS):
            own = token_ids[start : start + _STEP_TOKENS]
            step = ScheduledRequest(
                *("text", start, start + len(own), own, 0, 0, (), len(token_ids), 0),
                prompt_logprob_rows=range(len(own)),
            )
            batch = build_forward_batch([step], [tables], _BLOCK_SIZE)
            yield model.decoder.forward(batch, kv_cache)
