"""The model runner: computes a scheduled step: forward, logits, tokens."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from pellucid.backends.base import StepDecoder
from pellucid.backends.drawing import DrawTable
from pellucid.backends.ops import Array, ForwardBatch, KVCache
from pellucid.execution.block_transfer import BlockTransfer
from pellucid.execution.candidates import Candidates
from pellucid.execution.forward_batch import build_forward_batch
from pellucid.execution.request_draws import RequestDraws
from pellucid.execution.sampler import SampledToken, Sampler, SamplingRow, TokenLogprobs
from pellucid.execution.token_observation import TokenObservation
from pellucid.scheduling.beam_search import BeamCandidate
from pellucid.scheduling.block_ops import BlockOp
from pellucid.scheduling.request import Request
from pellucid.scheduling.scheduler_output import ScheduledRequest


@dataclass(frozen=True)
class ComputedStep:
    """The results of a step's forward.

    Attributes:
        rows: [R, V] logits of all `logits_rows`.
        drawn: tokens that the decoder has drawn, by request id and row of the logits. None: the parameters
            or the logits leave no token.
        expert_bytes: bytes of the experts' weights that the step read.
    """

    rows: Array
    drawn: Mapping[tuple[str, int], int | None]
    expert_bytes: int = 0


@dataclass(frozen=True)
class StepResult:
    """The results of a step for each request, by request id.

    Attributes:
        sampled: the sampled tokens, in order.
        beam_candidates: the candidates of beams, which get no token.
        observations: the observations of sampled tokens, where a subscriber wants them.
        draft_targets: for the same requests, the model's distribution for each draft, given the drafts before
            it. The list ends before the first draft for which the parameters leave no token.
        errors: the errors of requests that failed.
        expert_bytes: as in `ComputedStep`.
    """

    sampled: dict[str, list[SampledToken]] = field(default_factory=dict)
    prompt_logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    beam_candidates: dict[str, tuple[BeamCandidate, ...]] = field(default_factory=dict)
    observations: dict[str, list[TokenObservation]] = field(default_factory=dict)
    draft_targets: dict[str, list[Candidates]] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)
    expert_bytes: int = 0

    @property
    def token_ids(self) -> dict[str, list[int]]:
        """The ids of the sampled tokens."""
        return {
            request_id: [token.token_id for token in sampled]
            for request_id, sampled in self.sampled.items()
        }


class ModelRunner:
    """Owns the decoder and its KV cache: runs forwards and samples tokens.

    Args:
        decoder: the model.
        kv_cache: the arrays that the scheduler's block ids index.
        block_size: tokens per block.
        sampler: chooses tokens.
        block_transfer: copies, saves and loads blocks; left out, it only copies within `kv_cache`.
    """

    def __init__(
        self,
        decoder: StepDecoder,
        kv_cache: KVCache,
        block_size: int,
        sampler: Sampler,
        block_transfer: BlockTransfer | None = None,
    ) -> None:
        self.decoder = decoder
        self.kv_cache = kv_cache
        self.block_size = block_size
        self.sampler = sampler
        self._block_transfer = block_transfer or BlockTransfer(kv_cache)

    def transfer(self, ops: Sequence[BlockOp]) -> None:
        """Runs the operations on block contents that the KV cache manager has listed, before the forward.

        Raises:
            OSError: the swap file cannot be read or written.
        """
        self._block_transfer.run(ops)

    def execute(self, scheduled_requests: Sequence[ScheduledRequest]) -> ComputedStep:
        """Computes the requests of one step, at least one."""
        batch = build_forward_batch(scheduled_requests, self.block_size)
        if self.decoder.draws_tokens:
            return self._execute_and_draw(batch, scheduled_requests)
        logits = self.decoder.step(batch, self.kv_cache)
        return ComputedStep(logits.rows, {}, logits.expert_bytes)

    def _execute_and_draw(
        self, batch: ForwardBatch, scheduled_requests: Sequence[ScheduledRequest]
    ) -> ComputedStep:
        """The step of a decoder that draws tokens itself."""
        draws, drawn = DrawTable(), list[tuple[str, int]]()
        takes_largest: list[tuple[str, int]] = []
        end = 0
        for scheduled in scheduled_requests:
            end += scheduled.num_logits
            for num_drafts, row in enumerate(range(end - len(scheduled.sampled_rows), end)):
                for request in scheduled.samplers:
                    if request.num_candidates:
                        continue
                    own = request.draws
                    if own is None:
                        own = request.draws = RequestDraws(request, self.decoder.vocab_size)
                    assert isinstance(own, RequestDraws)
                    if not own.are_complete:
                        continue  # the sampler chooses
                    if own.takes_largest:
                        takes_largest.append((request.request_id, row))
                    else:
                        own.add_to(draws, row, num_drafts)
                        drawn.append((request.request_id, row))
        logits = self.decoder.step(batch, self.kv_cache, draws)
        token_ids = dict(zip(drawn, logits.drawn, strict=True))
        token_ids.update((key, logits.largest[key[1]]) for key in takes_largest)
        return ComputedStep(logits.rows, token_ids, logits.expert_bytes)

    def sample(
        self,
        scheduled_requests: Sequence[ScheduledRequest],
        computed: ComputedStep,
        watches: Callable[[str], bool] | None = None,
    ) -> StepResult:
        """Samples tokens and computes log-probabilities from the rows of logits of a step. An error fails one
        request alone.

        Args:
            computed: the result of `execute`.
            watches: whether to observe the tokens of a request, by its id; None: no request's.
        """
        result = StepResult(expert_bytes=computed.expert_bytes)
        end = 0
        for scheduled in scheduled_requests:
            begin, end = end, end + scheduled.num_logits
            try:
                if scheduled.request.params.prompt_logprobs is not None:
                    self._read_prompt(scheduled, computed.rows[begin:end], result)
            except Exception as error:
                result.errors[scheduled.request.request_id] = error
            for request in scheduled.samplers:
                if request.request_id in result.errors:
                    continue
                try:
                    observe = watches is not None and watches(request.request_id)
                    first = end - 1 - scheduled.num_draft_tokens
                    self._sample(request, computed, first, result, observe)
                except Exception as error:
                    result.errors[request.request_id] = error
        return result

    def _read_prompt(self, scheduled: ScheduledRequest, logits: Array, result: StepResult) -> None:
        """Takes the log-probabilities of prompt tokens from a request's own rows of logits."""
        request = scheduled.request
        rows = scheduled.prompt_logprob_rows
        if not rows:
            return
        # The row at position p predicts the token at p + 1.
        following = request.token_ids(
            scheduled.start + rows.start + 1, scheduled.start + rows.stop + 1
        )
        num_top = request.params.prompt_logprobs
        assert num_top is not None
        result.prompt_logprobs[request.request_id] = self.sampler.prompt_logprobs(
            logits[: len(rows)], following, num_top
        )

    def _sample(
        self,
        request: Request,
        computed: ComputedStep,
        first: int,
        result: StepResult,
        observe: bool,
    ) -> None:
        """Chooses a request's next tokens, or its beam's candidates.

        A draft is right if it equals the token that is chosen from the row before it: then the row of
        the draft gives the token after it.

        Args:
            first: index of the row of the last known token; those of the drafts follow it.
        """
        row = SamplingRow.of(request)
        if request.num_candidates:
            result.beam_candidates[request.request_id] = self.sampler.beam_candidates(
                computed.rows[first], row, request.num_candidates
            )
            return
        sampled = [self._choose(request, computed, first, row, result, observe)]
        result.sampled[request.request_id] = sampled
        for number, draft in enumerate(request.draft_token_ids, 1):
            if sampled[-1].token_id != draft:
                break
            row = SamplingRow.of(request, number)
            try:
                sampled.append(
                    self._choose(request, computed, first + number, row, result, observe)
                )
            except Exception:
                break  # the next step, which computes this row again, reports the error
        if observe and request.draft_token_ids:
            targets = self._draft_targets(request, computed.rows[first:])
            result.draft_targets[request.request_id] = targets

    def distribution(self, request: Request, logits: Array, num_drafts: int = 0) -> Candidates:
        """The distribution that the token after a request's output and its first `num_drafts` drafts is drawn from.

        Args:
            logits: [V].

        Raises:
            ValueError: the logits or the parameters leave no token.
        """
        row = SamplingRow.of(request, num_drafts)
        return self.sampler.distribution(logits, row)

    def _draft_targets(self, request: Request, logits: Array) -> list[Candidates]:
        """The distribution that each draft is compared with, wrong drafts and those after them included.

        Args:
            logits: [>= drafts, V] from the row of the last known token on.
        """
        targets: list[Candidates] = []
        # After a wrong draft the parameters may leave no token: nothing to compare
        with suppress(Exception):
            targets.extend(
                self.distribution(request, logits[number], number)
                for number in range(len(request.draft_token_ids))
            )
        return targets

    def _choose(
        self,
        request: Request,
        computed: ComputedStep,
        index: int,
        row: SamplingRow,
        result: StepResult,
        observe: bool,
    ) -> SampledToken:
        """Chooses one token from row `index` of the logits."""
        drawn = computed.drawn.get((request.request_id, index))
        if not observe:
            return self.sampler.sample(computed.rows[index], row, drawn)
        sampled, observation = self.sampler.observe(
            computed.rows[index], row, drawn, self.decoder.summarize
        )
        result.observations.setdefault(request.request_id, []).append(observation)
        return sampled
