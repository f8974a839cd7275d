"""The order of the sampling stages."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from pellucid.execution import sampling_stages as stages
from pellucid.execution.candidates import Candidates
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.scheduling.request import Request, TokenBudget, TokenGrammar


@dataclass(frozen=True)
class SamplingRow:
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

    @classmethod
    def of(cls, request: Request, num_drafts: int = 0) -> "SamplingRow":
        """The inputs for the token of a request after its output and its first `num_drafts` drafts."""
        return cls(
            params=request.params,
            prompt_token_ids=request.prompt_token_ids,
            output_token_ids=request.answer(num_drafts),
            seed=request.seed,
            stream=request.index,
            stop_token_ids=request.stop_token_ids,
            bad_words_token_ids=request.bad_words_token_ids,
            grammar=request.grammar,
            thinking_budget=request.thinking_budget,
        )

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


@dataclass(frozen=True)
class Stage:
    """A step from the model's distribution to the one sampled from, named after its parameter."""

    name: str
    apply: Callable[[Candidates], Candidates]


def forced_token(
    budget: TokenBudget | None, grammar: TokenGrammar | None, token_ids: Sequence[int]
) -> int | None:
    """The token that the budget of reasoning forces after `token_ids`, if the grammar allows it; None: any."""
    forced = None if budget is None else budget.forced_token(token_ids)
    if forced is None or grammar is None:
        return forced
    mask = grammar.mask(token_ids)
    return forced if mask[forced >> 3] >> (forced & 7) & 1 else None


def sampling_stages(row: SamplingRow) -> Iterator[Stage]:
    """The stages that `row` asks for, in the order in which they are applied.

    Masks come first, so that nothing forbidden takes part in what follows. Penalties act on the
    model's own logits, so that their strength does not depend on the temperature. Truncation comes
    last, on the distribution that the temperature gave; each truncation sees what the one before it
    left, renormalised. A token that the budget of reasoning forces is the only one; only a grammar can forbid it.
    """
    params = row.params
    forced = forced_token(row.thinking_budget, row.grammar, row.output_token_ids)
    if forced is not None:
        yield Stage("thinking_token_budget", partial(stages.allow, token_ids=(forced,)))
        return
    if row.grammar is not None:
        mask = row.grammar.mask(row.output_token_ids)
        yield Stage("structured_outputs", partial(stages.allow_bits, mask=mask))
    if params.allowed_token_ids is not None:
        yield Stage("allowed_token_ids", partial(stages.allow, token_ids=params.allowed_token_ids))
    if words := row.bad_words_token_ids:
        completions = stages.completions(words, row.last_token_ids(max(map(len, words)) - 1))
        yield Stage("bad_words", partial(stages.forbid, token_ids=completions))
    if row.stop_token_ids and len(row.output_token_ids) < params.min_tokens:
        yield Stage("min_tokens", partial(stages.forbid, token_ids=row.stop_token_ids))

    if params.logit_bias:
        yield Stage("logit_bias", partial(stages.add, amounts=dict(params.logit_bias)))
    if (penalty := params.repetition_penalty) != 1:
        seen = {*row.prompt_token_ids, *row.output_token_ids}
        repetition = partial(stages.penalise_repetition, token_ids=seen, penalty=penalty)
        yield Stage("repetition_penalty", repetition)
    if (penalty := params.presence_penalty) != 0:
        output = row.output_token_ids
        presence = partial(stages.penalise_presence, token_ids=output, penalty=penalty)
        yield Stage("presence_penalty", presence)
    if (penalty := params.frequency_penalty) != 0:
        output = row.output_token_ids
        frequency = partial(stages.penalise_frequency, token_ids=output, penalty=penalty)
        yield Stage("frequency_penalty", frequency)

    if params.temperature != 1:
        yield Stage("temperature", partial(stages.scale, temperature=params.temperature))
    if params.top_k > 0:
        yield Stage("top_k", partial(stages.top_k, k=params.top_k))
    if params.top_p < 1:
        yield Stage("top_p", partial(stages.top_p, p=params.top_p))
    if params.min_p > 0:
        yield Stage("min_p", partial(stages.min_p, share=params.min_p))
    if params.typical_p < 1:
        yield Stage("typical_p", partial(stages.typical_p, p=params.typical_p))
