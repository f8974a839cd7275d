"""From sampled tokens to text: detokenization, stop strings, log-probabilities for callers."""

from collections.abc import Sequence
from dataclasses import dataclass

from pellucid.execution.sampler import SampledToken, TokenLogprob, TokenLogprobs
from pellucid.outputs import CompletionDelta, CompletionOutput, Logprob, LogprobsAt, RequestOutput
from pellucid.scheduling.beam_group import BeamGroup
from pellucid.scheduling.beam_search import Hypothesis
from pellucid.scheduling.request import FinishReason, Request, RequestStatus
from pellucid.text.detokenizer import IncrementalDetokenizer
from pellucid.text.stop_strings import StopStringMatcher
from pellucid.text.tokenizer import Tokenizer


@dataclass(eq=False)
class Answer:
    """One sequence of a request on its way to the caller, or a beam of a search. Owned by the engine."""

    request: Request
    request_output: RequestOutput
    detokenizer: IncrementalDetokenizer
    stop_strings: StopStringMatcher
    beams: BeamGroup | None = None  # whose k-th best sequence becomes the k-th of its answers

    @property
    def completion(self) -> CompletionOutput:
        return self.request_output.outputs[self.request.stream]

    @property
    def members(self) -> tuple[Request, ...]:
        """The requests that end together."""
        return (self.request,) if self.beams is None else self.beams.members


def failure(error: Exception) -> str:
    """What an error says to the caller of the request that it ended."""
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


class OutputProcessor:
    """Turns what the runner sampled into what callers read.

    Args:
        tokenizer: the model's.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def start(
        self, request: Request, request_output: RequestOutput, beams: BeamGroup | None = None
    ) -> Answer:
        params = request.params
        if params.logprobs is not None:
            request_output.outputs[request.stream].logprobs = []
        if params.num_logprobs is not None:
            request_output.outputs[request.stream].cumulative_logprob = 0.0
        return Answer(
            request,
            request_output,
            IncrementalDetokenizer(
                self.tokenizer, request.prompt_token_ids, params.skip_special_tokens
            ),
            StopStringMatcher(params.stop, params.include_stop_str_in_output),
            beams,
        )

    def append(self, answer: Answer, sampled: SampledToken) -> CompletionDelta:
        """Adds one token to an answer.

        The scheduler has booked the token already. If the delta's finish_reason is set and the
        request is not finished yet, a stop string has ended it: the engine tells the scheduler.
        """
        request, completion = answer.request, answer.completion
        ended = request.status is RequestStatus.FINISHED
        text = ""
        if not self._ends_unseen(request, sampled.token_id):
            text = answer.detokenizer.push(sampled.token_id)
        if ended:
            text += answer.detokenizer.flush()
        # min_tokens holds for stop strings too: text before it is not searched.
        if request.num_output_tokens > request.params.min_tokens:
            text = answer.stop_strings.push(text)
            if ended:
                text += answer.stop_strings.flush()

        completion.text += text
        completion.token_ids.append(sampled.token_id)
        logprobs = None
        if completion.cumulative_logprob is not None:
            assert sampled.chosen is not None
            completion.cumulative_logprob += sampled.chosen.logprob
            if completion.logprobs is not None:
                logprobs = [self._logprobs_at(sampled.chosen, sampled.top)]
                completion.logprobs += logprobs
        if answer.stop_strings.matched is not None:
            completion.finish_reason = FinishReason.STOP.value
            completion.stop_reason = answer.stop_strings.matched
        elif request.finish_reason is not None:
            completion.finish_reason = request.finish_reason.value
            completion.stop_reason = request.stop_reason
        return self._delta(answer, text, [sampled.token_id], logprobs)

    def end(self, answer: Answer) -> CompletionDelta:
        """Closes an answer that ended without a new token: aborted, expired or failed."""
        text = answer.stop_strings.push(answer.detokenizer.flush()) + answer.stop_strings.flush()
        assert answer.request.finish_reason is not None
        answer.completion.text += text
        answer.completion.finish_reason = answer.request.finish_reason.value
        answer.completion.stop_reason = answer.request.stop_reason
        return self._delta(answer, text, [], None)

    def complete(self, answer: Answer, found: Hypothesis) -> CompletionDelta:
        """Makes what a beam search has found the whole of an answer."""
        stopped = found.finish_reason is FinishReason.STOP
        shown = found.token_ids[:-1] if stopped else found.token_ids
        text = "".join(map(answer.detokenizer.push, shown)) + answer.detokenizer.flush()
        completion = answer.completion
        completion.text = text
        completion.token_ids = list(found.token_ids)
        completion.cumulative_logprob = found.cumulative_logprob
        completion.score = found.score
        completion.finish_reason = found.finish_reason.value
        completion.stop_reason = found.stop_reason
        return self._delta(answer, text, completion.token_ids, None)

    def fail(self, answer: Answer, error: Exception) -> CompletionDelta:
        """Closes an answer whose text could not be made."""
        answer.completion.finish_reason = FinishReason.ERROR.value
        answer.completion.stop_reason = failure(error)
        return self._delta(answer, "", [], None)

    def keep_best(self, request_output: RequestOutput, n: int) -> list[CompletionDelta]:
        """Leaves a finished request the n best of its answers, best first.

        Returns:
            Each of them whole.
        """
        best = sorted(request_output.outputs, key=_badness)[:n]
        for index, completion in enumerate(best):
            completion.index = index
        request_output.outputs[:] = best
        return [
            CompletionDelta(
                request_output.request_id,
                completion.index,
                completion.text,
                completion.token_ids,
                completion.logprobs,
                completion.finish_reason,
                completion.stop_reason,
            )
            for completion in best
        ]

    def append_prompt_logprobs(
        self, request_output: RequestOutput, logprobs: Sequence[TokenLogprobs]
    ) -> None:
        if request_output.prompt_logprobs is None:
            request_output.prompt_logprobs = [None]
        for at in logprobs:
            request_output.prompt_logprobs.append(self._logprobs_at(at.chosen, at.top))

    def _ends_unseen(self, request: Request, token_id: int) -> bool:
        """Whether this is the stop token that ended the request, whose text is not shown."""
        return (
            request.finish_reason is FinishReason.STOP
            and request.stop_reason == token_id
            and not request.params.include_stop_str_in_output
        )

    def _logprobs_at(self, chosen: TokenLogprob, top: Sequence[TokenLogprob]) -> LogprobsAt:
        return {
            entry.token_id: Logprob(
                entry.logprob,
                entry.final_logprob,
                entry.rank,
                self.tokenizer.token_text(entry.token_id),
            )
            for entry in (*top, chosen)
        }

    def _delta(
        self, answer: Answer, text: str, token_ids: list[int], logprobs: list[LogprobsAt] | None
    ) -> CompletionDelta:
        completion = answer.completion
        return CompletionDelta(
            answer.request_output.request_id,
            completion.index,
            text,
            token_ids,
            logprobs,
            completion.finish_reason,
            completion.stop_reason,
        )


def _badness(completion: CompletionOutput) -> tuple[bool, float]:
    """Sorts answers as `SamplingParams.best_of` says."""
    failed = completion.finish_reason == FinishReason.ERROR.value or not completion.token_ids
    return failed, -(completion.cumulative_logprob or 0.0) / max(1, len(completion.token_ids))
