"""The sampling parameters that decide which token comes next: a row for each, in the order of their stages."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from pellucid.execution import sampling_stages as stages
from pellucid.execution.candidates import Candidates
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.scheduling.scheduler_output import TokenBudget, TokenGrammar


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
    stream: int = 0
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
        return stages.completions(words, self.last_token_ids(max(map(len, words)) - 1))


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
        is_native: whether the native draw knows it (csrc/draw.cpp); else the sampler draws. A parameter whose name is
            a key of `DrawSettings` is native without saying so.
    """

    name: str
    is_set: Callable[[SamplingRow], bool]
    apply: Callable[[Candidates, SamplingRow], Candidates]
    is_native: bool = False

    def stage(self, row: SamplingRow) -> Stage:
        return Stage(self.name, lambda candidates: self.apply(candidates, row))


def _number(
    name: str,
    stage: Callable[[Candidates, float], Candidates],
    off: float,
    is_native: bool = False,
) -> Parameter:
    """A parameter whose stage needs its value alone, and is left out where this is `off`."""
    return Parameter(
        name,
        lambda row: bool(getattr(row.params, name) != off),
        lambda candidates, row: stage(candidates, getattr(row.params, name)),
        is_native,
    )


# Masks come first, so that nothing forbidden takes part in what follows. Penalties act on the model's own logits, so
# that their strength does not depend on the temperature. Truncation comes last, on the distribution that the
# temperature gave; each truncation sees what the one before it left, renormalised.
PARAMETERS = (
    Parameter(
        "structured_outputs",
        lambda row: row.grammar is not None,
        lambda candidates, row: stages.allow_bits(candidates, row.mask),
        is_native=True,
    ),
    Parameter(
        "allowed_token_ids",
        lambda row: row.params.allowed_token_ids is not None,
        lambda candidates, row: stages.allow(candidates, row.params.allowed_token_ids or ()),
        is_native=True,
    ),
    Parameter(
        "bad_words",
        lambda row: bool(row.bad_words_token_ids),
        lambda candidates, row: stages.forbid(candidates, row.bad_word_ends),
        is_native=True,
    ),
    Parameter(
        "min_tokens",
        lambda row: len(row.output_token_ids) < row.params.min_tokens and bool(row.stop_token_ids),
        lambda candidates, row: stages.forbid(candidates, row.stop_token_ids),
        is_native=True,
    ),
    Parameter(
        "logit_bias",
        lambda row: bool(row.params.logit_bias),
        lambda candidates, row: stages.add(candidates, dict(row.params.logit_bias)),
        is_native=True,
    ),
    Parameter(
        "repetition_penalty",
        lambda row: row.params.repetition_penalty != 1,
        lambda candidates, row: stages.penalise_repetition(
            candidates,
            {*row.prompt_token_ids, *row.output_token_ids},
            row.params.repetition_penalty,
        ),
    ),
    Parameter(
        "presence_penalty",
        lambda row: row.params.presence_penalty != 0,
        lambda candidates, row: stages.penalise_presence(
            candidates, row.output_token_ids, row.params.presence_penalty
        ),
    ),
    Parameter(
        "frequency_penalty",
        lambda row: row.params.frequency_penalty != 0,
        lambda candidates, row: stages.penalise_frequency(
            candidates, row.output_token_ids, row.params.frequency_penalty
        ),
    ),
    _number("temperature", stages.scale, off=1, is_native=True),
    Parameter(
        "top_k",
        lambda row: row.params.top_k > 0,
        lambda candidates, row: stages.top_k(candidates, row.params.top_k),
    ),
    _number("top_p", stages.top_p, off=1),
    _number("min_p", stages.min_p, off=0),
    _number("typical_p", stages.typical_p, off=1),
)


def sampling_stages(row: SamplingRow) -> Iterator[Stage]:
    """The stages that `row` asks for, in the order of `PARAMETERS`. A token that the budget of reasoning forces is the
    only one; only a grammar can forbid it."""
    if (forced := row.forced_token) is not None:
        yield Stage("thinking_token_budget", partial(stages.allow, token_ids=(forced,)))
        return
    for parameter in PARAMETERS:
        if parameter.is_set(row):
            yield parameter.stage(row)
