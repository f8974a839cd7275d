"""A completion: the text and the log-probabilities of its tokens, and how it ends."""

from collections.abc import Sequence
from dataclasses import dataclass

from pellucid.execution.logprobs import TokenLogprob
from pellucid.execution.sampler import SampledToken
from pellucid.outputs import CompletionDelta, CompletionOutput, Logprob, LogprobsAt, RequestOutput
from pellucid.scheduling.answer_tokens import AnswerTokens
from pellucid.scheduling.beam_search import BeamGroup, Hypothesis
from pellucid.scheduling.offload import BrokenPlanError
from pellucid.scheduling.request import End, FinishReason, Request, Taken
from pellucid.scheduling.scheduler_output import TokenGrammar
from pellucid.text.detokenizer import IncrementalDetokenizer
from pellucid.text.stop_strings import StopStringMatcher
from pellucid.text.tokenizer import Tokenizer


@dataclass(eq=False)
class Completion:
    """One completion of a request on its way to the caller, or a beam of a search.

    Attributes:
        stop_strings: None: it has none.
        beams: the beam search whose k-th best hypothesis becomes the k-th completion.
        num_sent_tokens: how many tokens of `output` the caller has been given.
        unsent_text: the text of `output` that the caller has not been given.
    """

    request: Request
    request_output: RequestOutput
    detokenizer: IncrementalDetokenizer
    stop_strings: StopStringMatcher | None
    tokenizer: Tokenizer
    beams: BeamGroup | None
    num_sent_tokens: int = 0
    unsent_text: str = ""

    def __post_init__(self) -> None:
        params = self.request.params
        if params.logprobs is not None:
            self.output.logprobs = []
        if params.num_logprobs is not None:
            self.output.cumulative_logprob = 0.0

    @property
    def output(self) -> CompletionOutput:
        return self.request_output.outputs[self.request.index]

    @property
    def requests(self) -> tuple[Request, ...]:
        """The requests that end together."""
        return (self.request,) if self.beams is None else self.beams.requests

    def take(self, sampled: Sequence[SampledToken], now: float) -> Taken:
        """Appends sampled tokens up to the one that ends the completion: an end or stop token, one that completes
        its grammar or a stop string, the last one of `max_tokens`, or the last one before `max_time` is over. No
        other code decides that a token ends a completion.

        Args:
            now: when they had been sampled, on the caller's clock.
        """
        token_ids: list[int] = []
        end = None
        for token in sampled:
            token_ids.append(token.token_id)
            end = self._append(token.token_id)
            if token.chosen is not None:
                self._append_logprobs(token.chosen, token.top)
            if end is not None:
                break
        self.request_output.metrics.token_times += [now] * len(token_ids)
        if end is None and now >= self.request.deadline:
            end = (FinishReason.LENGTH, "max_time")
        return Taken(token_ids, end)

    def close(self, found: Hypothesis | None = None) -> None:
        """Completes the output of a request that has ended.

        Args:
            found: the hypothesis of a beam search that becomes the whole completion.
        """
        if found is not None:
            self._take_hypothesis(found)
            return
        text = self.detokenizer.flush()
        if self.stop_strings is not None:
            text = self.stop_strings.push(text) + self.stop_strings.flush()
        self._append_text(text)
        assert self.request.finish_reason is not None
        self.output.finish_reason = self.request.finish_reason.value
        self.output.stop_reason = self.request.stop_reason

    def fail(self, error: Exception) -> None:
        """Completes the output of a request whose text cannot be made."""
        self.output.finish_reason = FinishReason.ERROR.value
        self.output.stop_reason = error_message(error)

    def resume(self, so_far: CompletionOutput) -> None:
        """Goes on behind the tokens that another engine has given the caller, with their text.

        Args:
            so_far: the completion as that engine left it.

        Raises:
            ValueError: the completion ends with one of these tokens.
        """
        for number, token_id in enumerate(so_far.token_ids, 1):
            if self._append(token_id) is not None:
                raise ValueError(
                    f"resumes: completion {so_far.index} ends with token {number} of {len(so_far.token_ids)};"
                    " only an answer that goes on can be resumed"
                )
        if self.output.logprobs is not None:
            self.output.logprobs += so_far.logprobs or ()
        if self.output.cumulative_logprob is not None:
            self.output.cumulative_logprob = so_far.cumulative_logprob
        self.num_sent_tokens, self.unsent_text = len(self.output.token_ids), ""

    def take_delta(self) -> CompletionDelta:
        """The part of the output that the caller has not been given yet."""
        first, text = self.num_sent_tokens, self.unsent_text
        self.num_sent_tokens, self.unsent_text = len(self.output.token_ids), ""
        return delta_of(self.request_output, self.output, text, first)

    def _append_logprobs(self, chosen: TokenLogprob, top: Sequence[TokenLogprob]) -> None:
        output = self.output
        assert output.cumulative_logprob is not None
        output.cumulative_logprob += chosen.logprob
        if output.logprobs is not None:
            output.logprobs.append(logprobs_at(self.tokenizer, chosen, top))

    def _append(self, token_id: int) -> End | None:
        """Appends one token and its text. Returns why the completion ends with it, if it does."""
        output, stop_strings, request = self.output, self.stop_strings, self.request
        params = request.params
        num_output_tokens = len(output.token_ids) + 1
        end = request.end_rule.end_after(token_id, num_output_tokens)
        if request.grammar is not None and (end is None or end[0] is FinishReason.LENGTH):
            end = self._end_of_grammar(request.grammar, token_id) or end
        text = ""
        # The text of a stop token is not shown.
        if end is None or end[1] != token_id or params.include_stop_str_in_output:
            text = self.detokenizer.push(token_id)
        if end is not None:
            text += self.detokenizer.flush()
        # min_tokens holds for stop strings too: text before it is not searched.
        if stop_strings is not None and num_output_tokens > params.min_tokens:
            text = stop_strings.push(text)
            if end is not None:
                text += stop_strings.flush()

        output.append_text(text)
        self.unsent_text += text
        output.token_ids.append(token_id)
        if stop_strings is not None and stop_strings.matched is not None:
            return FinishReason.STOP, stop_strings.matched
        return end

    def _end_of_grammar(self, grammar: TokenGrammar, token_id: int) -> End | None:
        token_ids = self.output.token_ids
        answer = AnswerTokens(token_ids, len(token_ids), (token_id,), len(token_ids))
        return (FinishReason.STOP, "structured_outputs") if grammar.is_complete(answer) else None

    def _append_text(self, text: str) -> None:
        self.output.append_text(text)
        self.unsent_text += text

    def _take_hypothesis(self, found: Hypothesis) -> None:
        stopped = found.finish_reason is FinishReason.STOP
        shown = found.token_ids[:-1] if stopped else found.token_ids
        detokenizer, output = self.detokenizer, self.output
        self._append_text("".join(map(detokenizer.push, shown)) + detokenizer.flush())
        output.token_ids = list(found.token_ids)
        output.cumulative_logprob = found.cumulative_logprob
        output.score = found.score
        output.finish_reason = found.finish_reason.value
        output.stop_reason = found.stop_reason


def delta_of(
    request_output: RequestOutput, output: CompletionOutput, text: str, first: int = 0
) -> CompletionDelta:
    """The tokens of a completion from `first` on, with their text."""
    token_ids = output.token_ids[first:]
    return CompletionDelta(
        request_output.request_id,
        output.index,
        text,
        token_ids,
        output.logprobs[first:] if output.logprobs is not None and token_ids else None,
        output.finish_reason,
        output.stop_reason,
    )


def error_message(error: Exception) -> str:
    """What an error says to the caller of the request that it ended."""
    says_all = isinstance(error, ValueError | BrokenPlanError)
    return str(error) if says_all else f"{type(error).__name__}: {error}"


def logprobs_at(
    tokenizer: Tokenizer, chosen: TokenLogprob, top: Sequence[TokenLogprob]
) -> LogprobsAt:
    """The log-probabilities of the likeliest tokens at a position and of the one that stands there, with their
    texts."""
    return {
        entry.token_id: Logprob(
            entry.logprob, entry.final_logprob, entry.rank, tokenizer.token_text(entry.token_id)
        )
        for entry in (*top, chosen)
    }
