"""The output processor: text and log-probabilities of sampled tokens, up to stop strings."""

from collections.abc import Sequence
from dataclasses import dataclass

from pellucid.execution.sampler import SampledToken, TokenLogprob, TokenLogprobs
from pellucid.outputs import CompletionDelta, CompletionOutput, Logprob, LogprobsAt, RequestOutput
from pellucid.scheduling.beam_search import BeamGroup, Hypothesis
from pellucid.scheduling.request import FinishReason, Request
from pellucid.text.detokenizer import IncrementalDetokenizer
from pellucid.text.responses.reasoning_marks import ReasoningMarks
from pellucid.text.stop_strings import StopStringMatcher, StopStrings
from pellucid.text.tokenizer import Tokenizer


@dataclass(eq=False)
class Completion:
    """One completion of a request on its way to the caller, or a beam of a search.

    Attributes:
        beams: the beam search whose k-th best hypothesis becomes the k-th completion.
        text_is_complete: the text of all tokens is in `output`; nothing is held back.
        num_sent_tokens: how many tokens of `output` the caller has been given.
        unsent_text: the text of `output` that the caller has not been given.
    """

    request: Request
    request_output: RequestOutput
    detokenizer: IncrementalDetokenizer
    stop_strings: StopStringMatcher
    beams: BeamGroup | None = None
    text_is_complete: bool = False
    num_sent_tokens: int = 0
    unsent_text: str = ""

    @property
    def output(self) -> CompletionOutput:
        return self.request_output.outputs[self.request.index]

    def append_text(self, text: str) -> None:
        self.output.append_text(text)
        self.unsent_text += text

    @property
    def requests(self) -> tuple[Request, ...]:
        """The requests that end together."""
        return (self.request,) if self.beams is None else self.beams.requests


def error_message(error: Exception) -> str:
    """What an error says to the caller of the request that it ended."""
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


class OutputProcessor:
    """Turns the tokens that the runner sampled into the output that callers read.

    Args:
        tokenizer: the model's.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def start(
        self,
        request: Request,
        request_output: RequestOutput,
        stop_strings: StopStrings,
        reasoning: ReasoningMarks | None = None,
        beams: BeamGroup | None = None,
    ) -> Completion:
        params = request.params
        if params.logprobs is not None:
            request_output.outputs[request.index].logprobs = []
        if params.num_logprobs is not None:
            request_output.outputs[request.index].cumulative_logprob = 0.0
        return Completion(
            request,
            request_output,
            IncrementalDetokenizer(
                self.tokenizer, request.prompt_token_ids, params.skip_special_tokens
            ),
            StopStringMatcher(stop_strings, params.include_stop_str_in_output, reasoning),
            beams,
        )

    def append(self, completion: Completion, sampled: Sequence[SampledToken]) -> list[int]:
        """Appends sampled tokens, before the scheduler does, up to the one that ends the request: an end or stop
        token, the last one of `max_tokens`, or one that completes a stop string.

        Returns:
            The token ids that were appended. `completion.stop_strings.matched` is the stop string.
        """
        token_ids = []
        for token in sampled:
            is_last = self._append_token(completion, token)
            token_ids.append(token.token_id)
            if is_last:
                break
        return token_ids

    def close(self, completion: Completion, found: Hypothesis | None = None) -> None:
        """Completes the output of a request that has ended.

        Args:
            found: the hypothesis of a beam search that becomes the whole completion.
        """
        output = completion.output
        if found is not None:
            self._take_hypothesis(completion, found)
            return
        if not completion.text_is_complete:
            held_back = completion.stop_strings.push(completion.detokenizer.flush())
            completion.append_text(held_back + completion.stop_strings.flush())
        assert completion.request.finish_reason is not None
        output.finish_reason = completion.request.finish_reason.value
        output.stop_reason = completion.request.stop_reason

    def fail(self, completion: Completion, error: Exception) -> None:
        """Completes the output of a request whose text cannot be made."""
        completion.output.finish_reason = FinishReason.ERROR.value
        completion.output.stop_reason = error_message(error)

    def take_delta(self, completion: Completion) -> CompletionDelta:
        """The part of the output that the caller has not been given yet."""
        output = completion.output
        first, text = completion.num_sent_tokens, completion.unsent_text
        completion.num_sent_tokens, completion.unsent_text = len(output.token_ids), ""
        token_ids = output.token_ids[first:]
        return CompletionDelta(
            completion.request_output.request_id,
            output.index,
            text,
            token_ids,
            output.logprobs[first:] if output.logprobs is not None and token_ids else None,
            output.finish_reason,
            output.stop_reason,
        )

    def keep_best(self, request_output: RequestOutput, n: int) -> list[CompletionDelta]:
        """Leaves a finished request the n best of its completions, best first.

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

    def _append_token(self, completion: Completion, sampled: SampledToken) -> bool:
        """Appends one token. Returns whether it ends the request."""
        request, output, stop_strings = (
            completion.request,
            completion.output,
            completion.stop_strings,
        )
        params = request.params
        num_output_tokens = len(output.token_ids) + 1
        end = request.end_after(sampled.token_id, num_output_tokens)
        text = ""
        # The text of a stop token is not shown.
        if end is None or end[1] != sampled.token_id or params.include_stop_str_in_output:
            text = completion.detokenizer.push(sampled.token_id)
        if end is not None:
            text += completion.detokenizer.flush()
            completion.text_is_complete = True
        # min_tokens holds for stop strings too: text before it is not searched.
        if num_output_tokens > params.min_tokens:
            text = stop_strings.push(text)
            if end is not None:
                text += stop_strings.flush()

        completion.append_text(text)
        output.token_ids.append(sampled.token_id)
        if output.cumulative_logprob is not None:
            assert sampled.chosen is not None
            output.cumulative_logprob += sampled.chosen.logprob
            if output.logprobs is not None:
                output.logprobs.append(self._logprobs_at(sampled.chosen, sampled.top))
        return end is not None or stop_strings.matched is not None

    def _take_hypothesis(self, completion: Completion, found: Hypothesis) -> None:
        stopped = found.finish_reason is FinishReason.STOP
        shown = found.token_ids[:-1] if stopped else found.token_ids
        detokenizer, output = completion.detokenizer, completion.output
        completion.append_text("".join(map(detokenizer.push, shown)) + detokenizer.flush())
        output.token_ids = list(found.token_ids)
        output.cumulative_logprob = found.cumulative_logprob
        output.score = found.score
        output.finish_reason = found.finish_reason.value
        output.stop_reason = found.stop_reason

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


def _badness(completion: CompletionOutput) -> tuple[bool, float]:
    """Sorts completions as `SamplingParams.best_of` says."""
    failed = completion.finish_reason == FinishReason.ERROR.value or not completion.token_ids
    return failed, -(completion.cumulative_logprob or 0.0) / max(1, len(completion.token_ids))
