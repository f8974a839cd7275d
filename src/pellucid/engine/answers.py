"""The answers under way: from what a step gave their requests to what callers get, until their ends."""

from collections.abc import Iterable, Mapping, Sequence

from pellucid.beam_search_params import BeamSearchParams, RequestParams
from pellucid.engine.output_processor import Answer, OutputProcessor, failure
from pellucid.engine.step_recorder import StepRecorder
from pellucid.execution.model_runner import StepResult
from pellucid.outputs import CompletionDelta, RequestOutput
from pellucid.sampling_params import SamplingParams
from pellucid.scheduling.beam_group import BeamGroup
from pellucid.scheduling.beam_search import Hypothesis
from pellucid.scheduling.request import FinishReason, Request, RequestStatus
from pellucid.scheduling.scheduler import Scheduler
from pellucid.scheduling.scheduler_output import SchedulerOutput


class Answers:
    """Owns the answers of unfinished requests. Whatever fails in the making of one ends that one alone.

    Args:
        output_processor: makes text.
        scheduler: is told of ends that only text or a search can show.
        recorder: closes ledgers.

    Attributes:
        under_way: by the id of the scheduler's request.
        outputs: of the callers' requests under way, by id.
    """

    def __init__(
        self, output_processor: OutputProcessor, scheduler: Scheduler, recorder: StepRecorder
    ) -> None:
        self.under_way: dict[str, Answer] = {}
        self.outputs: dict[str, RequestOutput] = {}
        self._output_processor = output_processor
        self._scheduler = scheduler
        self._recorder = recorder
        self._ended: list[Answer] = []  # whose ledgers are still open
        self._num_best: dict[str, int] = {}  # by caller's request: answers to keep of those made

    def __len__(self) -> int:
        return len(self.under_way)

    @property
    def requests(self) -> Iterable[Request]:
        return (answer.request for answer in self.under_way.values())

    def start(
        self, output: RequestOutput, requests: Sequence[Request], params: RequestParams
    ) -> None:
        """A caller's request has been queued.

        Args:
            output: to be filled.
            requests: the scheduler's, one for each answer or beam.
            params: what was asked for.
        """
        beams = None
        if isinstance(params, BeamSearchParams):
            beams = BeamGroup.starting(params, requests)
        for request in requests:
            answer = self._output_processor.start(request, output, beams)
            self.under_way[request.request_id] = answer
        if isinstance(params, SamplingParams) and params.ranks:
            self._num_best[output.request_id] = params.n
        self.outputs[output.request_id] = output

    def fail(self, errors: Mapping[str, Exception]) -> None:
        """Ends requests, and those that end with them, whose step has failed."""
        for request_id, error in errors.items():
            for member in self.under_way[request_id].members:
                self._scheduler.finish(member, FinishReason.ERROR, failure(error))

    def emit(self, step: SchedulerOutput, result: StepResult, now: float) -> list[CompletionDelta]:
        """What a step added to each answer, in its order, then what ended without a share in it.

        Args:
            step: as scheduled, and booked by the scheduler.
            result: what it gave.
            now: when its tokens were there.
        """
        found = self._advance_searches(result, now)
        deltas = [
            self._append(request, result, now)
            for share in step.scheduled
            for request in share.samplers or (share.request,)
            if not request.waits_for_group
        ]
        failed = (self.under_way.get(request_id) for request_id in result.errors)
        ends = [self._end(answer) for answer in failed if answer is not None]
        ends += [self._end(self.under_way[request.request_id]) for request in step.expired]
        return [delta for delta in deltas if delta is not None] + found + ends

    def abort(self, request_id: str) -> list[CompletionDelta]:
        """Ends the answers of a caller's request that are still under way."""
        output = self.outputs.get(request_id)
        deltas: list[CompletionDelta] = []
        for completion in output.outputs if output is not None else ():
            if completion.finish_reason is None:
                answer = self.under_way[f"{request_id}/{completion.index}"]
                for member in answer.members:
                    self._scheduler.finish(member, FinishReason.ABORT)
                search = answer.beams
                deltas += [self._end(answer)] if search is None else self._end_search(search)
        return deltas

    def close_ended(self, deltas: list[CompletionDelta], now: float) -> list[CompletionDelta]:
        """Closes the ledgers of what has ended since the last time.

        Returns:
            `deltas`; of a request whose answers are ranked only the best ones, whole, when all have
            ended.
        """
        if self._num_best:
            deltas = [delta for delta in deltas if delta.request_id not in self._num_best]
        for answer in self._ended:
            output = answer.request_output
            ledger = self._recorder.close(answer.request.request_id, now)
            if output.finished and self.outputs.pop(output.request_id, None) is not None:
                output.metrics.finished_time = now
                output.ledger = ledger
                if (num_best := self._num_best.pop(output.request_id, None)) is not None:
                    deltas += self._output_processor.keep_best(output, num_best)
        self._ended.clear()
        return deltas

    def _append(self, request: Request, result: StepResult, now: float) -> CompletionDelta | None:
        """Hands what a step gave a request to its caller."""
        answer = self.under_way[request.request_id]
        sampled = result.sampled.get(request.request_id)
        try:
            if (logprobs := result.prompt_logprobs.get(request.request_id)) is not None:
                self._output_processor.append_prompt_logprobs(answer.request_output, logprobs)
            if sampled is None:  # in the middle of its prompt, or failed
                return self._end(answer) if request.status is RequestStatus.FINISHED else None
            answer.request_output.metrics.token_times.append(now)
            delta = self._output_processor.append(answer, sampled)
        except Exception as error:
            self._scheduler.finish(request, FinishReason.ERROR, failure(error))
            delta = self._output_processor.fail(answer, error)
        if delta.finish_reason is not None:
            # By a stop string, unless the scheduler has ended it already.
            self._scheduler.finish(request, FinishReason.STOP, delta.stop_reason)
            self._drop(answer)
        return delta

    def _advance_searches(self, result: StepResult, now: float) -> list[CompletionDelta]:
        """Takes each beam search one token further whose beams have all been computed.

        Returns:
            The answers of those that are over by that, or have failed.
        """
        touched: dict[BeamGroup, RequestOutput] = {}
        for request_id in (*result.beam_candidates, *result.errors):
            answer = self.under_way[request_id]
            if answer.beams is not None:
                touched[answer.beams] = answer.request_output
                if (candidates := result.beam_candidates.get(request_id)) is not None:
                    answer.beams.deliver(answer.request, candidates)
        deltas: list[CompletionDelta] = []
        for beams, output in touched.items():
            if beams.is_ready and not beams.has_ended:
                output.metrics.token_times.append(now)
                self._advance(beams)
            if beams.has_ended:
                deltas += self._end_search(beams)
        return deltas

    def _advance(self, beams: BeamGroup) -> None:
        step = beams.advance()
        if step is not None:
            self._scheduler.reassign(step.members, step.parents, step.token_ids)
            return
        best = beams.search.finished[0]
        for member in beams.members:
            self._scheduler.finish(member, best.finish_reason, best.stop_reason)

    def _end_search(self, beams: BeamGroup) -> list[CompletionDelta]:
        """Closes the answers of a beam search: with what it found, unless it was cut off."""
        answers = [self.under_way[member.request_id] for member in beams.members]
        outputs = answers[0].request_output.outputs
        found: Sequence[Hypothesis | None] = [None] * len(outputs)
        if beams.search.done:
            found = beams.search.finished[: len(outputs)]
            del outputs[len(found) :]
        deltas = [self._close(*pair) for pair in zip(answers, found, strict=False)]
        for answer in answers:
            self._drop(answer)
        return deltas

    def _end(self, answer: Answer) -> CompletionDelta:
        """Closes an answer that ended without a new token."""
        delta = self._close(answer)
        self._drop(answer)
        return delta

    def _close(self, answer: Answer, found: Hypothesis | None = None) -> CompletionDelta:
        try:
            if found is not None:
                return self._output_processor.complete(answer, found)
            return self._output_processor.end(answer)
        except Exception as error:
            return self._output_processor.fail(answer, error)

    def _drop(self, answer: Answer) -> None:
        answer.request_output.metrics.num_preemptions += answer.request.num_preemptions
        del self.under_way[answer.request.request_id]
        self._ended.append(answer)
