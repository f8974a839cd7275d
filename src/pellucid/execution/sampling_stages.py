"""The sampling stages: how each sampling parameter changes the candidates. `sampling_order` gives their
order.

Masks may leave no candidate; every other stage is given at least one and leaves at least one.
Where candidates are equal, the lower token id comes first.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from pellucid.execution.candidates import Candidates
from pellucid.execution.odds import Odds, mass_to_reach
from pellucid.execution.selection import largest, shortest_prefix


def allow(candidates: Candidates, token_ids: Iterable[int]) -> Candidates:
    """Keeps only `token_ids`."""
    return candidates.keep(candidates.indices(token_ids))


def allow_bits(candidates: Candidates, mask: bytes) -> Candidates:
    """Keeps only the tokens whose bit is set, the lowest bit of a byte first."""
    allowed = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little").astype(np.bool_)
    return candidates.keep(allowed[candidates.token_ids])


def forbid(candidates: Candidates, token_ids: Iterable[int]) -> Candidates:
    """Removes `token_ids`."""
    kept = np.ones(len(candidates), dtype=np.bool_)
    kept[candidates.indices(token_ids)] = False
    return candidates.keep(kept)


def completions(words: Iterable[Sequence[int]], token_ids: Sequence[int]) -> set[int]:
    """The tokens that would complete one of `words` after a text that ends with `token_ids`.

    Args:
        words: token ids of each word, at least one each.
        token_ids: at least as many as the longest word has before its last token, or all there are.
    """
    return {last for *start, last in words if [*token_ids[len(token_ids) - len(start) :]] == start}


def add(candidates: Candidates, amounts: Mapping[int, float]) -> Candidates:
    """Adds `amounts`, by token id, to the logits. What was removed stays removed."""
    changed = candidates.indices(amounts)
    logits = candidates.logits.copy()
    logits[changed] += [amounts[token_id] for token_id in candidates.token_ids[changed].tolist()]
    return Candidates(candidates.token_ids, logits)


def penalise_repetition(
    candidates: Candidates, token_ids: Iterable[int], penalty: float
) -> Candidates:
    """Divides positive logits of `token_ids` by `penalty` and multiplies negative ones (CTRL,
    Keskar et al. 2019, with the usual repair for negative logits).

    Raises:
        ValueError: the penalty is so extreme that a logit leaves float32.
    """
    seen = candidates.indices(token_ids)
    logits = candidates.logits.copy()
    with np.errstate(over="ignore"):
        logits[seen] = np.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
        rounded = logits[seen].astype(np.float32)
    if not np.isfinite(rounded).all():
        raise ValueError(f"repetition_penalty={penalty}: too extreme for the model's logits")
    return Candidates(candidates.token_ids, logits)


def penalise_presence(
    candidates: Candidates, token_ids: Iterable[int], penalty: float
) -> Candidates:
    """Subtracts `penalty` from the logits of `token_ids` (OpenAI's definition)."""
    return add(candidates, dict.fromkeys(token_ids, -penalty))


def penalise_frequency(
    candidates: Candidates, token_ids: Iterable[int], penalty: float
) -> Candidates:
    """Subtracts `penalty` once per occurrence in `token_ids` (OpenAI's definition)."""
    counts = Counter(token_ids)
    return add(candidates, {token_id: -penalty * count for token_id, count in counts.items()})


def scale(candidates: Candidates, temperature: float) -> Candidates:
    """Divides the logits by `temperature` (Ackley et al. 1985); 0, its limit, keeps the largest."""
    if temperature == 0:
        return candidates.keep(np.array([candidates.logits.astype(np.float32).argmax()]))
    odds = Odds.of(candidates.logits, temperature)
    # Differences to the largest can only overflow towards -inf, which is a probability of 0.
    with np.errstate(over="ignore"):
        logits = (candidates.logits - candidates.logits.max()) / temperature
    scaled = Candidates(candidates.token_ids, logits, odds)
    return scaled if logits.min() > -np.inf else scaled.keep(logits > -np.inf)


def top_k(candidates: Candidates, k: int) -> Candidates:
    """Keeps the `k` most probable (Fan et al. 2018)."""
    if k >= len(candidates):
        return candidates
    return candidates.truncate(largest(candidates.odds.logits, k))


def top_p(candidates: Candidates, p: float) -> Candidates:
    """Keeps the fewest of the most probable that reach probability `p`: the nucleus (Holtzman et
    al. 2020)."""
    odds = candidates.odds
    masses = odds.masses
    return candidates.truncate(shortest_prefix(-odds.logits, masses, mass_to_reach(p, masses)))


def min_p(candidates: Candidates, share: float) -> Candidates:
    """Keeps those with at least `share` of the largest probability (Nguyen et al. 2024)."""
    return candidates.truncate(candidates.odds.weights >= np.float32(share))


def typical_p(candidates: Candidates, p: float) -> Candidates:
    """Keeps the fewest that reach probability `p`, taken by how close their surprise, -log of the
    probability, is to the entropy: locally typical sampling (Meister et al. 2022).

    Entropy is mean surprise, so the distance is that of a token's exponent from the mean exponent.
    """
    exponents = candidates.odds.exponents.astype(np.float64)
    masses = candidates.odds.masses
    mean = np.trunc(masses * exponents).sum() / masses.sum()
    distances = np.abs(exponents - mean)
    return candidates.truncate(shortest_prefix(distances, masses, mass_to_reach(p, masses)))
