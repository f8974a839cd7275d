"""The model runner: computes a scheduled step: its forward batch, logits, tokens."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite

import numpy as np
from msgspec import Struct

from pellucid.backends.base import CompiledDecoder, LogitRows
from pellucid.backends.drawing import DrawTable
from pellucid.backends.ops import ForwardBatch, HostArray, IntArray, KVCache
from pellucid.execution.block_transfer import BlockTransfer
from pellucid.execution.candidates import Candidates
from pellucid.execution.logprobs import TokenLogprobs
from pellucid.execution.request_draws import RequestDraws
from pellucid.execution.request_state import RequestState
from pellucid.execution.sampler import SampledToken, Sampler
from pellucid.execution.token_observation import (
    DrawnToken,
    Observations,
    TokenObservation,
    observe_drawn_tokens,
)
from pellucid.scheduling.block_ops import BlockOp
from pellucid.scheduling.scheduler_output import (
    BeamCandidate,
    BlockIds,
    ScheduledRequest,
    SchedulerOutput,
)


class ComputedStep(Struct, frozen=True):
    """The results of a step's forward.

    Attributes:
        rows: [R, V] logits of all `logits_rows`; those of `drawn` are at hand without their rows.
        drawn: tokens that the decoder has drawn, by request id and row of the logits. None: the parameters
            or the logits leave no token.
        expert_bytes: bytes of the experts' weights that the step read.
    """

    rows: LogitRows
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
    """Owns the decoder, its KV cache and the texts of started requests: runs forwards and samples tokens.

    It knows what its calls say, all of it plain data, and nothing else of requests.

    Args:
        decoder: the model.
        kv_cache: the arrays that the scheduler's block ids index.
        block_size: tokens per block.
        sampler: chooses tokens.
        block_transfer: copies, saves and loads blocks; left out, it only copies within `kv_cache`.
    """

    def __init__(
        self,
        decoder: CompiledDecoder,
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
        self._states: dict[str, RequestState] = {}  # of started requests, by id
        self._draws: dict[str, RequestDraws] = {}  # of those that are drawn natively

    def follow(self, output: SchedulerOutput) -> None:
        """Forgets requests that have ended, and gets to know those that have started. Call it with every step."""
        for request_id in output.ended:
            self._states.pop(request_id, None)  # it may have ended before it started
            self._draws.pop(request_id, None)
        for each in output.started:
            state = self._states[each.request_id] = RequestState(each)
            if self.decoder.draws_tokens and not each.num_candidates:
                draws = RequestDraws(state, self.decoder.vocab_size)
                if draws.are_complete:
                    self._draws[each.request_id] = draws

    def transfer(self, ops: Sequence[BlockOp]) -> None:
        """Runs the operations on block contents that the KV cache manager has listed, before the forward.

        Raises:
            OSError: the swap file cannot be read or written.
        """
        if ops:
            self._block_transfer.run(ops)

    def send(
        self, scheduled_requests: Sequence[ScheduledRequest], block_tables: Sequence[BlockIds]
    ) -> ForwardBatch:
        """Lays out the rows of a step's requests, at least one, over the blocks of each. Other machines begin with
        the step."""
        for scheduled in scheduled_requests:
            self._states[scheduled.request_id].follow(scheduled)
        batch = build_forward_batch(scheduled_requests, block_tables, self.block_size)
        if self.decoder.num_machines > 1:
            batch = self.decoder.send(batch, self.kv_cache)
        return batch

    def execute(
        self, scheduled_requests: Sequence[ScheduledRequest], batch: ForwardBatch
    ) -> ComputedStep:
        """Computes a step that was sent.

        Args:
            batch: as `send` has returned it.
        """
        if not self.decoder.draws_tokens:
            return ComputedStep(self.decoder.step(batch, self.kv_cache).rows, {})
        draws, drawn = DrawTable(), list[tuple[str, int]]()
        takes_largest: list[tuple[str, int]] = []
        end = 0
        for scheduled in scheduled_requests:
            end += scheduled.num_logits
            for num_drafts, row in enumerate(range(end - len(scheduled.sampled_rows), end)):
                for request_id in scheduled.samplers:
                    if (own := self._draws.get(request_id)) is None:
                        continue  # the sampler chooses
                    if own.takes_largest:
                        takes_largest.append((request_id, row))
                    else:
                        own.add_to(draws, row, num_drafts)
                        drawn.append((request_id, row))
        logits = self.decoder.step(batch, self.kv_cache, draws)
        token_ids = dict(zip(drawn, logits.drawn, strict=True))
        token_ids.update((key, logits.largest[key[1]]) for key in takes_largest)
        return ComputedStep(logits.rows, token_ids, logits.expert_bytes)

    def sample(
        self,
        scheduled_requests: Sequence[ScheduledRequest],
        computed: ComputedStep,
        observed_of: Callable[[Iterable[str]], set[str]] | None = None,
    ) -> StepResult:
        """Samples tokens and computes log-probabilities from the rows of logits of a step. An error fails one
        request alone.

        Args:
            computed: the result of `execute`.
            observed_of: of ids of requests, those whose tokens are to be observed; None: no request's.
        """
        result = StepResult(expert_bytes=computed.expert_bytes)
        watched: set[str] = set()
        observed: Observations = {}
        if observed_of is not None:
            started = time.perf_counter()
            ids = (each for scheduled in scheduled_requests for each in scheduled.samplers)
            watched = observed_of(ids)  # asked once: a reader may have a budget
            if watched:
                observed = self._observe_drawn(scheduled_requests, computed, watched, started)
        end = 0
        for scheduled in scheduled_requests:
            begin, end = end, end + scheduled.num_logits
            try:
                if scheduled.prompt_logprob_rows:
                    self._read_prompt(scheduled, computed.rows[begin:end], result)
            except Exception as error:
                result.errors[scheduled.request_id] = error
            for request_id in scheduled.samplers:
                if request_id in result.errors:
                    continue
                try:
                    first = end - 1 - scheduled.num_draft_tokens
                    own = observed if request_id in watched else None
                    self._sample(self._states[request_id], computed, first, result, own)
                except Exception as error:
                    result.errors[request_id] = error
        return result

    def _observe_drawn(
        self,
        scheduled_requests: Sequence[ScheduledRequest],
        computed: ComputedStep,
        watched: Collection[str],
        started: float,
    ) -> Observations:
        """Observes the tokens that the decoder has drawn for the watched requests, where its summaries of
        rows tell all: together, so that no row has to leave a device. `started` is when choosing the requests
        began."""
        drawn: list[DrawnToken] = []
        end = 0
        for scheduled in scheduled_requests:
            end += scheduled.num_logits
            for request_id in scheduled.samplers:
                state = self._states[request_id]
                if state.wants_logprobs or request_id not in watched:
                    continue
                index = end - 1 - scheduled.num_draft_tokens
                for number, draft in enumerate((*state.draft_token_ids, None)):
                    key = request_id, index + number
                    if (token_id := computed.drawn.get(key)) is None:
                        break
                    drawn.append(DrawnToken(key, state.row(number), token_id))
                    if token_id != draft:
                        break
        return observe_drawn_tokens(self.decoder, computed.rows, drawn, started)

    def _read_prompt(
        self, scheduled: ScheduledRequest, logits: LogitRows, result: StepResult
    ) -> None:
        """Takes the log-probabilities of prompt tokens from a request's own rows of logits."""
        started = self._states[scheduled.request_id].started
        rows = scheduled.prompt_logprob_rows
        # The row at position p predicts the token at p + 1.
        first = scheduled.start + rows.start + 1
        num_top = started.params.prompt_logprobs
        assert num_top is not None
        result.prompt_logprobs[scheduled.request_id] = self.sampler.prompt_logprobs(
            logits[: len(rows)], started.prompt_token_ids[first : first + len(rows)], num_top
        )

    def _sample(
        self,
        state: RequestState,
        computed: ComputedStep,
        first: int,
        result: StepResult,
        observed: Observations | None,
    ) -> None:
        """Chooses a request's next tokens, or its beam's candidates.

        A draft is right if it equals the token that is chosen from the row before it: then the row of
        the draft gives the token after it.

        Args:
            first: index of the row of the last known token; those of the drafts follow it.
            observed: tokens that have been observed; None: the request is not observed.
        """
        request_id = state.started.request_id
        if num_candidates := state.started.num_candidates:
            result.beam_candidates[request_id] = self.sampler.beam_candidates(
                computed.rows[first], state.row(), num_candidates
            )
            return
        sampled = [self._choose(state, computed, first, 0, result, observed)]
        result.sampled[request_id] = sampled
        for number, draft in enumerate(state.draft_token_ids):
            if sampled[-1].token_id != draft:
                break
            try:
                sampled.append(self._choose(state, computed, first, number + 1, result, observed))
            except Exception:
                break  # the next step, which computes this row again, reports the error
        if observed is not None and state.draft_token_ids:
            result.draft_targets[request_id] = self._draft_targets(state, computed.rows[first:])

    def distribution(self, request_id: str, logits: HostArray) -> Candidates:
        """The distribution that the token after a started request's text is drawn from.

        Args:
            logits: [V].

        Raises:
            ValueError: the logits or the parameters leave no token.
        """
        return self.sampler.distribution(logits, self._states[request_id].row())

    def _draft_targets(self, state: RequestState, logits: LogitRows) -> list[Candidates]:
        """The distribution that each draft is compared with, wrong drafts and those after them included.

        Args:
            logits: [>= drafts, V] from the row of the last known token on.
        """
        targets: list[Candidates] = []
        # After a wrong draft the parameters may leave no token: nothing to compare
        with suppress(Exception):
            targets.extend(
                self.sampler.distribution(logits[number], state.row(number))
                for number in range(len(state.draft_token_ids))
            )
        return targets

    def _choose(
        self,
        state: RequestState,
        computed: ComputedStep,
        first: int,
        num_drafts: int,
        result: StepResult,
        observed: Observations | None,
    ) -> SampledToken:
        """Chooses the token after the first `num_drafts` drafts."""
        request_id, index = state.started.request_id, first + num_drafts
        drawn = computed.drawn.get((request_id, index))
        if observed is not None and (seen := observed.get((request_id, index))) is not None:
            assert drawn is not None
            result.observations.setdefault(request_id, []).append(seen)
            return SampledToken(drawn)
        if drawn is not None and observed is None and not state.wants_logprobs:
            # A logit that is not finite: the sampler has the error.
            if isfinite(computed.rows[index, drawn]):
                return SampledToken(drawn)
        logits, row = computed.rows[index], state.row(num_drafts)
        if observed is None:
            return self.sampler.sample(logits, row, drawn)
        sampled, observation = self.sampler.observe(logits, row, drawn)
        result.observations.setdefault(request_id, []).append(observation)
        return sampled


def build_forward_batch(
    scheduled_requests: Sequence[ScheduledRequest],
    block_tables: Sequence[BlockIds],
    block_size: int,
) -> ForwardBatch:
    """Lays the rows of a step's requests one after the other.

    Args:
        scheduled_requests: at least one request.
        block_tables: of each.
        block_size: tokens per KV block.
    """
    # Lists, and few calls of NumPy: a step leaves nothing but weights in the caches, and each function
    # that is called then costs more than its loop.
    token_ids: list[int] = []
    positions: list[int] = []
    rope_lens: list[int] = []
    slots: list[list[int]] = [[] for _ in block_tables[0]]
    query_start = [0]
    seq_lens: list[int] = []
    logits_indices: list[int] = []
    for scheduled, tables in zip(scheduled_requests, block_tables, strict=True):
        first, start, end = len(token_ids), scheduled.start, scheduled.end
        rows = scheduled.logits_rows
        logits_indices += range(first + rows.start, first + rows.stop)
        token_ids += scheduled.token_ids
        positions += range(start, end)
        num_prompt_tokens = scheduled.num_prompt_tokens
        rope_lens += [max(num_prompt_tokens, length) for length in range(start + 1, end + 1)]
        for group, block_ids in enumerate(tables):
            slots[group] += [
                block_ids[position // block_size] * block_size + position % block_size
                for position in range(start, end)
            ]
        query_start.append(len(token_ids))
        seq_lens.append(end)
    return ForwardBatch(
        token_ids=np.array(token_ids, np.int32),
        positions=np.array(positions, np.int32),
        rope_lens=np.array(rope_lens, np.int32),
        slot_mapping=np.array(slots, np.int64),
        query_start=np.array(query_start, np.int32),
        seq_lens=np.array(seq_lens, np.int32),
        block_tables=_block_tables(block_tables),
        logits_indices=np.array(logits_indices, np.int32),
        state_slots=np.array([each.state_slot for each in scheduled_requests], np.int32),
    )


def _block_tables(of_requests: Sequence[BlockIds]) -> IntArray:
    """One row for each group and request, filled up with -1: [G, B, blocks of the longest]."""
    num_groups = len(of_requests[0])
    width = max([len(block_ids) for own in of_requests for block_ids in own])
    tables: list[int] = []
    for group in range(num_groups):
        for own in of_requests:
            block_ids = own[group]
            tables += block_ids
            tables += (-1,) * (width - len(block_ids))
    return np.array(tables, np.int32).reshape(num_groups, -1, width)
