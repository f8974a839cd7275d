"""The sampling parameters that decide which token comes next: how each changes the candidates, and a row for
each, in the order of these stages.

Masks may leave no candidate; every other stage is given at least one and leaves at least one.
Where candidates are equal, the lower token id comes first.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from pellucid.execution.candidates import Candidates
from pellucid.execution.odds import Odds, mass_to_reach
from pellucid.execution.selection import largest, shortest_prefix
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.scheduling.scheduler_output import TokenBudget, TokenGrammar


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


class SamplingRow(NamedTuple):
    """All inputs of the choice of one token, besides the logits.

    Attributes:
        seed: the request's.
        stream: which of the request's completions.
        stop_token_ids: end and stop tokens, which `min_tokens` forbids.
        bad_words_token_ids: each way to write a bad word in tokens, none of them empty.
        grammar: says which tokens may come next.
        thinking_budget: says which token must come next.
    """

    params: SamplingParams
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    seed: int
    stream: int
    stop_token_ids: frozenset[int] = frozenset()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    grammar: TokenGrammar | None = None
    thinking_budget: TokenBudget | None = None

    @property
    def position(self) -> int:
        """Index of the token to be sampled, in prompt and output."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    def last_token_ids(self, count: int) -> list[int]:
        """The last `count` tokens of prompt and output, or all there are."""
        num_prompt_tokens = len(self.prompt_token_ids)
        start = max(0, self.position - count)
        prompt = self.prompt_token_ids[start:]
        return [*prompt, *self.output_token_ids[max(0, start - num_prompt_tokens) :]]

    @property
    def forced_token(self) -> int | None:
        """The token that the budget of reasoning forces, if the grammar allows it; None: any may come."""
        budget = self.thinking_budget
        forced = None if budget is None else budget.forced_token(self.output_token_ids)
        if forced is None or self.grammar is None:
            return forced
        return forced if self.mask[forced >> 3] >> (forced & 7) & 1 else None

    @property
    def mask(self) -> bytes:
        """The tokens that the grammar allows, a bit for each; there is one.

        Raises:
            ValueError: nothing can be said of this completion.
        """
        assert self.grammar is not None
        return self.grammar.mask(self.output_token_ids)

    @property
    def bad_word_ends(self) -> set[int]:
        """The tokens that would complete a bad word."""
        words = self.bad_words_token_ids
        return completions(words, self.last_token_ids(max(map(len, words))))


@dataclass(frozen=True)
class Stage:
    """A step from the model's distribution to the one sampled from, named after its parameter."""

    name: str
    apply: Callable[[Candidates], Candidates]


class Parameter(NamedTuple):
    """A parameter of `SamplingParams` that has a stage.

    Attributes:
        name: of the parameter, and of its stage.
        is_set: whether a row asks for the stage.
        apply: what the stage leaves of a row's candidates.
    """

    name: str
    is_set: Callable[[SamplingRow], bool]
    apply: Callable[[Candidates, SamplingRow], Candidates]

    def stage(self, row: SamplingRow) -> Stage:
        return Stage(self.name, lambda candidates: self.apply(candidates, row))


def _number(name: str, stage: Callable[[Candidates, float], Candidates], off: float) -> Parameter:
    """A parameter whose stage needs its value alone, and is left out where this is `off`."""
    return Parameter(
        name,
        lambda row: bool(getattr(row.params, name) != off),
        lambda candidates, row: stage(candidates, getattr(row.params, name)),
    )


# Masks come first, so that nothing forbidden takes part in what follows. Penalties act on the model's own logits, so
# that their strength does not depend on the temperature. Truncation comes last, on the distribution that the
# temperature gave; each truncation sees what the one before it left, renormalised.
PARAMETERS = (
    Parameter(
        "structured_outputs",
        lambda row: row.grammar is not None,
        lambda candidates, row: allow_bits(candidates, row.mask),
    ),
    Parameter(
        "allowed_token_ids",
        lambda row: row.params.allowed_token_ids is not None,
        lambda candidates, row: allow(candidates, row.params.allowed_token_ids or ()),
    ),
    Parameter(
        "bad_words",
        lambda row: bool(row.bad_words_token_ids),
        lambda candidates, row: forbid(candidates, row.bad_word_ends),
    ),
    Parameter(
        "min_tokens",
        lambda row: len(row.output_token_ids) < row.params.min_tokens and bool(row.stop_token_ids),
        lambda candidates, row: forbid(candidates, row.stop_token_ids),
    ),
    Parameter(
        "logit_bias",
        lambda row: bool(row.params.logit_bias),
        lambda candidates, row: add(candidates, dict(row.params.logit_bias)),
    ),
    Parameter(
        "repetition_penalty",
        lambda row: row.params.repetition_penalty != 1,
        lambda candidates, row: penalise_repetition(
            candidates,
            {*row.prompt_token_ids, *row.output_token_ids},
            row.params.repetition_penalty,
        ),
    ),
    Parameter(
        "presence_penalty",
        lambda row: row.params.presence_penalty != 0,
        lambda candidates, row: penalise_presence(
            candidates, row.output_token_ids, row.params.presence_penalty
        ),
    ),
    Parameter(
        "frequency_penalty",
        lambda row: row.params.frequency_penalty != 0,
        lambda candidates, row: penalise_frequency(
            candidates, row.output_token_ids, row.params.frequency_penalty
        ),
    ),
    _number("temperature", scale, off=1),
    Parameter(
        "top_k",
        lambda row: row.params.top_k > 0,
        lambda candidates, row: top_k(candidates, row.params.top_k),
    ),
    _number("top_p", top_p, off=1),
    _number("min_p", min_p, off=0),
    _number("typical_p", typical_p, off=1),
)


def sampling_stages(row: SamplingRow) -> Iterator[Stage]:
    """The stages that `row` asks for, in the order of `PARAMETERS`. A token that the budget of reasoning forces is the
    only one; only a grammar can forbid it."""
    if (forced := row.forced_token) is not None:
        yield Stage("thinking_token_budget", partial(allow, token_ids=(forced,)))
        return
    for parameter in PARAMETERS:
        if parameter.is_set(row):
            yield parameter.stage(row)
