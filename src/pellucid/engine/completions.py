"""The unfinished completions: the tokens that each step adds to them, and how they end."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pellucid.engine.output_processor import Completion, OutputProcessor, error_message
from pellucid.engine.request_maker import PreparedRequest
from pellucid.engine.step_recorder import StepRecorder
from pellucid.execution.model_runner import StepResult
from pellucid.inputs.beam_search_params import BeamSearchParams
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.outputs import CompletionDelta, RequestOutput
from pellucid.scheduling.beam_search import BeamGroup, Hypothesis
from pellucid.scheduling.request import FinishReason, Request
from pellucid.scheduling.scheduler import Scheduler


@dataclass(frozen=True)
class NewTokens:
    """The tokens of a step that their requests take, by request id, in the order of the step.

    Attributes:
        token_ids: up to the token that ends the request.
        stop_strings: the stop string that the last of these tokens completes.
    """

    token_ids: dict[str, list[int]] = field(default_factory=dict)
    stop_strings: dict[str, str] = field(default_factory=dict)


class Completions:
    """Owns the completions of unfinished requests. A failure in one of them ends that one alone.

    Whatever ends a request calls `Scheduler.finish`. The engine takes the ended requests from the
    scheduler once a step, and hands them to `deltas` and to `close`.

    Args:
        output_processor: makes text of tokens.
        scheduler: finishes requests and reassigns beams.
        recorder: closes ledgers.

    Attributes:
        unfinished: by the id of the scheduler's request.
        outputs: of the callers' unfinished requests, by id.
    """

    def __init__(
        self, output_processor: OutputProcessor, scheduler: Scheduler, recorder: StepRecorder
    ) -> None:
        self.unfinished: dict[str, Completion] = {}
        self.outputs: dict[str, RequestOutput] = {}
        self._output_processor = output_processor
        self._scheduler = scheduler
        self._recorder = recorder
        # By caller's request: how many of the completions that were made are kept.
        self._num_best: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.unfinished)

    def start(
        self, output: RequestOutput, requests: Sequence[Request], prepared: PreparedRequest
    ) -> None:
        """Adds the completions of a caller's request that has been queued.

        Args:
            output: to be filled.
            requests: the scheduler's, one for each completion or beam.
            prepared: what the caller asked for.
        """
        params = prepared.params
        beams = None
        if isinstance(params, BeamSearchParams):
            beams = BeamGroup.starting(params, requests)
        for request in requests:
            completion = self._output_processor.start(
                request, output, prepared.stop_strings, prepared.reasoning, beams
            )
            self.unfinished[request.request_id] = completion
        if isinstance(params, SamplingParams) and params.ranks:
            self._num_best[output.request_id] = params.n
        self.outputs[output.request_id] = output

    def fail(self, errors: Mapping[str, Exception]) -> None:
        """Finishes requests whose step has failed, and the other beams of their searches."""
        for request_id, error in errors.items():
            for request in self.unfinished[request_id].requests:
                self._scheduler.finish(request, FinishReason.ERROR, error_message(error))

    def abort(self, request_id: str) -> None:
        """Finishes a caller's request; ignores an unknown id."""
        output = self.outputs.get(request_id)
        for completion in output.outputs if output is not None else ():
            if completion.finish_reason is None:
                for request in self.unfinished[f"{request_id}/{completion.index}"].requests:
                    self._scheduler.finish(request, FinishReason.ABORT)

    def append(self, result: StepResult, now: float) -> NewTokens:
        """Appends the sampled tokens of a step to the completions, before `Scheduler.update` appends them to
        the requests.

        Args:
            result: the step's.
            now: when the tokens had been sampled.

        Returns:
            The tokens that the requests keep, for `Scheduler.update`.
        """
        for request_id, logprobs in result.prompt_logprobs.items():
            completion = self.unfinished[request_id]
            try:
                self._output_processor.append_prompt_logprobs(completion.request_output, logprobs)
            except Exception as error:
                self.fail({request_id: error})
        new = NewTokens()
        for request_id, sampled in result.sampled.items():
            completion = self.unfinished[request_id]
            try:
                token_ids = self._output_processor.append(completion, sampled)
            except Exception as error:
                self.fail({request_id: error})
                continue
            completion.request_output.metrics.token_times += [now] * len(token_ids)
            new.token_ids[request_id] = token_ids
            if completion.stop_strings.matched is not None:
                new.stop_strings[request_id] = completion.stop_strings.matched
        return new

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
                self._close(completion)
                completions[request.request_id] = completion
            elif completion.beams not in closed_searches:
                closed_searches.add(completion.beams)
                for result in self._close_search(completion.beams):
                    completions[result.request.request_id] = result
        return [
            self._output_processor.take_delta(completion)
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
                    best += self._output_processor.keep_best(output, num_best)
        return best

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
            self._close(completion, hypothesis)
        return completions[: len(found)]

    def _close(self, completion: Completion, found: Hypothesis | None = None) -> None:
        try:
            self._output_processor.close(completion, found)
        except Exception as error:
            self._output_processor.fail(completion, error)
