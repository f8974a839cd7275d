"""What execution keeps of a request from its first step to its end."""

from collections.abc import Sequence

from pellucid.execution.sampling_order import SamplingRow
from pellucid.scheduling.answer_tokens import AnswerTokens
from pellucid.scheduling.scheduler_output import ScheduledRequest, StartedRequest


class RequestState:
    """A request's text, as far as its steps have told it.

    A step tells the tokens that it computes. The last token of a text is always computed, and drafts are before they
    become text. So when a step samples for a request, all its tokens are known here.

    Args:
        started: what does not change.

    Attributes:
        output_token_ids: with the drafts of the last step at the end.
        num_output_tokens: of these, without the drafts.
        num_settled_tokens: of these, the first ones, which no later step replaces.
        draft_token_ids: of the last step.
        wants_logprobs: whether log-probabilities are to be given of its tokens.
    """

    __slots__ = (
        "draft_token_ids",
        "num_output_tokens",
        "num_settled_tokens",
        "output_token_ids",
        "started",
        "wants_logprobs",
    )

    def __init__(self, started: StartedRequest) -> None:
        self.started = started
        self.wants_logprobs = started.params.num_logprobs is not None
        self.output_token_ids = [*started.output_token_ids]
        self.num_output_tokens = self.num_settled_tokens = len(self.output_token_ids)
        self.draft_token_ids: Sequence[int] = ()

    def follow(self, scheduled: ScheduledRequest) -> None:
        """Takes note of the tokens that a step computes."""
        num_prompt_tokens = scheduled.num_prompt_tokens
        end = scheduled.end - num_prompt_tokens
        if end > 0:
            start = max(0, scheduled.start - num_prompt_tokens)
            self.output_token_ids[start:end] = scheduled.token_ids[start - end :]
        if scheduled.samplers:
            del self.output_token_ids[end:]
            num_drafts = scheduled.num_draft_tokens
            self.draft_token_ids = scheduled.draft_token_ids if num_drafts else ()
            self.num_output_tokens = end - num_drafts
            self.num_settled_tokens = self.num_output_tokens - scheduled.num_guessed_tokens

    def row(self, num_drafts: int = 0) -> SamplingRow:
        """The inputs of the choice of the token after the output and the first `num_drafts` drafts."""
        started = self.started
        num_tokens = self.num_output_tokens + num_drafts
        return SamplingRow(
            started.params,
            started.prompt_token_ids,
            AnswerTokens(self.output_token_ids, num_tokens, (), self.num_settled_tokens),
            started.seed,
            started.stream,
            started.stop_token_ids,
            started.bad_words_token_ids,
            started.grammar,
            started.thinking_budget,
        )
