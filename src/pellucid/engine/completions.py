"""The unfinished completions: the tokens that each step adds to them, and how they end."""

import math
from collections.abc import Iterable, Mapping, Sequence

from pellucid.engine.completion import Completion, delta_of, error_message, logprobs_at
from pellucid.engine.request_maker import PreparedRequest
from pellucid.engine.step_recorder import StepRecorder
from pellucid.execution.model_runner import StepResult
from pellucid.inputs.beam_search_params import BeamSearchParams
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.outputs import CompletionDelta, CompletionOutput, RequestOutput
from pellucid.scheduling.beam_search import BeamGroup, Hypothesis
from pellucid.scheduling.request import FinishReason, Request, Taken
from pellucid.scheduling.scheduler import Scheduler
from pellucid.text.detokenizer import IncrementalDetokenizer
from pellucid.text.stop_strings import StopStringMatcher
from pellucid.text.tokenizer import Tokenizer


class Completions:
    """Owns the completions of unfinished requests. A failure in one of them ends that one alone.

    Whatever ends a request calls `Scheduler.finish`. The engine takes the ended requests from the
    scheduler once a step, and hands them to `deltas` and to `close`.

    Args:
        tokenizer: the model's.
        scheduler: finishes requests and reassigns beams.
        recorder: closes ledgers.

    Attributes:
        unfinished: by the id of the scheduler's request.
        outputs: of the callers' unfinished requests, by id.
    """

    def __init__(self, tokenizer: Tokenizer, scheduler: Scheduler, recorder: StepRecorder) -> None:
        self.unfinished: dict[str, Completion] = {}
        self.outputs: dict[str, RequestOutput] = {}
        self._tokenizer = tokenizer
        self._scheduler = scheduler
        self._recorder = recorder
        # By caller's request: how many of the completions that were made are kept.
        self._num_best: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.unfinished)

    def start(
        self,
        output: RequestOutput,
        requests: Sequence[Request],
        prepared: PreparedRequest,
        resumes: RequestOutput | None = None,
    ) -> None:
        """Adds the completions of a caller's request that is going to be queued.

        Args:
            output: to be filled.
            requests: the scheduler's, one for each completion that has not ended, or for each beam.
            prepared: what the caller asked for.
            resumes: the request as another engine left it.

        Raises:
            ValueError: a completion of `resumes` cannot go on; nothing was added.
        """
        params = prepared.params
        beams = None
        if isinstance(params, BeamSearchParams):
            beams = BeamGroup.starting(params, requests)
        started: dict[str, Completion] = {}
        for request in requests:
            sampling = request.params
            completion = started[request.request_id] = Completion(
                request,
                output,
                IncrementalDetokenizer(
                    self._tokenizer, request.prompt_token_ids, sampling.skip_special_tokens
                ),
                None
                if prepared.stop_strings is None
                else StopStringMatcher(
                    prepared.stop_strings, sampling.include_stop_str_in_output, prepared.reasoning
                ),
                self._tokenizer,
                beams,
            )
            if resumes is not None:
                completion.resume(resumes.outputs[request.index])
        self.unfinished |= started
        if isinstance(params, SamplingParams) and params.ranks:
            self._num_best[output.request_id] = params.n
        self.outputs[output.request_id] = output

    def abort(self, request_id: str) -> None:
        """Finishes a caller's request; ignores an unknown id."""
        output = self.outputs.get(request_id)
        for completion in output.outputs if output is not None else ():
            if completion.finish_reason is None:
                for request in self.unfinished[f"{request_id}/{completion.index}"].requests:
                    self._scheduler.finish(request, FinishReason.ABORT)

    def take(self, result: StepResult, now: float) -> dict[str, Taken]:
        """Finishes the requests that failed in a step, and appends the sampled tokens to the completions.

        Returns:
            What each request takes, by id, in the order of the step.
        """
        self._fail(result.errors)
        for request_id, logprobs in result.prompt_logprobs.items():
            output = self.unfinished[request_id].request_output
            try:
                if output.prompt_logprobs is None:
                    output.prompt_logprobs = [None]
                output.prompt_logprobs += [
                    logprobs_at(self._tokenizer, at.chosen, at.top) for at in logprobs
                ]
            except Exception as error:
                self._fail({request_id: error})
        taken: dict[str, Taken] = {}
        for request_id, sampled in result.sampled.items():
            try:
                new = self.unfinished[request_id].take(sampled, now)
            except Exception as error:
                self._fail({request_id: error})
                continue
            taken[request_id] = new
        return taken

    def advance_searches(self, result: StepResult, now: float) -> None:
        """Advances each beam search whose live beams have all been computed by one token."""
        searches: dict[BeamGroup, RequestOutput] = {}
        for request_id, candidates in result.beam_candidates.items():
            completion = self.unfinished[request_id]
            assert completion.beams is not None
            completion.beams.deliver(completion.request, candidates)
            searches[completion.beams] = completion.request_output
        for beams, output in searches.items():
            if beams.has_ended or not beams.is_ready:
                continue
            output.metrics.token_times.append(now)
            if (step := beams.advance()) is not None:
                self._scheduler.reassign(step.requests, step.parents, step.token_ids)
                continue
            best = beams.search.finished[0]
            for request in beams.requests:
                self._scheduler.finish(request, best.finish_reason, best.stop_reason)

    def deltas(self, request_ids: Iterable[str], ended: Sequence[Request]) -> list[CompletionDelta]:
        """One delta for each completion that got tokens or ended: what its caller does not have yet.

        Args:
            request_ids: the requests with new tokens, in the order of the step.
            ended: the requests that have ended.
        """
        completions = {request_id: self.unfinished[request_id] for request_id in request_ids}
        closed_searches: set[BeamGroup] = set()
        for request in ended:
            completion = self.unfinished[request.request_id]
            if completion.beams is None:
                _close(completion)
                completions[request.request_id] = completion
            elif completion.beams not in closed_searches:
                closed_searches.add(completion.beams)
                for result in self._close_search(completion.beams):
                    completions[result.request.request_id] = result
        return [
            completion.take_delta()
            for completion in completions.values()
            if completion.request_output.request_id not in self._num_best
        ]

    def close(self, ended: Sequence[Request], now: float) -> list[CompletionDelta]:
        """Forgets completions that have ended, and closes their ledgers.

        Returns:
            The best completions, whole, of the requests that rank them and have ended.
        """
        best: list[CompletionDelta] = []
        for request in ended:
            output = self.unfinished.pop(request.request_id).request_output
            output.metrics.num_preemptions += request.num_preemptions
            ledger = self._recorder.close(request.request_id, now)
            if output.finished and self.outputs.pop(output.request_id, None) is not None:
                output.metrics.finished_time = now
                output.ledger = ledger
                if (num_best := self._num_best.pop(output.request_id, None)) is not None:
                    best += _keep_best(output, num_best)
        return best

    def _fail(self, errors: Mapping[str, Exception]) -> None:
        """Finishes requests whose step has failed, and the other beams of their searches."""
        for request_id, error in errors.items():
            for request in self.unfinished[request_id].requests:
                self._scheduler.finish(request, FinishReason.ERROR, error_message(error))

    def _close_search(self, beams: BeamGroup) -> list[Completion]:
        """Completes the output of a beam search with the hypotheses that it found; with none if it was aborted
        or failed."""
        completions = [self.unfinished[request.request_id] for request in beams.requests]
        outputs = completions[0].request_output.outputs
        found: Sequence[Hypothesis | None] = [None] * len(outputs)
        if beams.search.done:
            found = beams.search.finished[: len(outputs)]
            del outputs[len(found) :]
        for completion, hypothesis in zip(completions, found, strict=False):
            _close(completion, hypothesis)
        return completions[: len(found)]


def _close(completion: Completion, found: Hypothesis | None = None) -> None:
    try:
        completion.close(found)
    except Exception as error:
        completion.fail(error)


def _keep_best(output: RequestOutput, n: int) -> list[CompletionDelta]:
    """Leaves a finished request the n best of its completions, best first.

    Returns:
        Each of them whole.
    """
    output.outputs[:] = sorted(output.outputs, key=_badness)[:n]
    for index, completion in enumerate(output.outputs):
        completion.index = index
    return [delta_of(output, completion, completion.text) for completion in output.outputs]


def _badness(completion: CompletionOutput) -> float:
    """Sorts completions as `SamplingParams.best_of` says."""
    if completion.finish_reason == FinishReason.ERROR.value or not completion.token_ids:
        return math.inf
    assert completion.cumulative_logprob is not None  # it is needed here
    return -completion.cumulative_logprob / len(completion.token_ids)
