"""The draft-model proposer: a smaller model with the same tokenizer, which draws with the same noise."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from pellucid.execution.candidates import Candidates
from pellucid.execution.model_runner import ComputedStep, ModelRunner
from pellucid.scheduling.kv_cache_manager import KVCacheManager
from pellucid.scheduling.request import Request
from pellucid.scheduling.scheduler_output import BlockIds, ScheduledRequest, SchedulerOutput
from pellucid.speculation.proposers.common_vocabulary import CommonVocabulary
from pellucid.speculation.proposers.proposer import Proposer


class Twin(NamedTuple):
    """A request, and the draft model's own one.

    Attributes:
        request: whose next tokens are guessed.
        own: with the same text, whose drafts are the guesses. No scheduler knows of it.
    """

    request: Request
    own: Request


class DraftModel(Proposer):
    """Runs a smaller model over the requests' texts, all requests together.

    Each request has a twin here, with the same text, parameters, seed and stream, so that both models mostly draw
    the same token. The twins' blocks come from a separate pool. If too few are free, twins
    of requests that get no drafts in this step give back theirs; if these are not enough, there are no drafts.

    Recurrent states of the draft model are kept before the first draft is computed. A twin whose drafts were
    wrong goes back there, and its text is computed from there on. Blocks leave a window only with the text that is
    known, never with drafts.

    Args:
        model_runner: of the draft model.
        blocks: of the draft model's cache, without a prefix cache.
        vocab_size: of the model: no other tokens are drafted.
        max_num_batched_tokens: most tokens of texts that one call reads: a long prompt is read in chunks,
            and has drafts once it is read.
        max_model_len: tokens that the draft model can read.
        watches: whether a subscriber wants the distributions of a request's drafts, by its id.
    """

    def __init__(
        self,
        model_runner: ModelRunner,
        blocks: KVCacheManager,
        vocab_size: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        watches: Callable[[str], bool] = lambda request_id: False,
    ) -> None:
        self._distributions: dict[str, list[Candidates]] = {}  # of watched requests, by id
        self._model_runner = model_runner
        self._blocks = blocks
        self._common = CommonVocabulary(vocab_size, model_runner.decoder.vocab_size)
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_model_len = max_model_len
        self._watches = watches
        # By id, least recently asked for first.
        self._twins: dict[str, Twin] = {}
        # By id, the requests that the draft model cannot read or draw for.
        self._foreign: dict[str, Request] = {}

    def distributions(self, request_id: str) -> Sequence[Candidates]:
        return self._distributions.get(request_id, ())

    def propose(
        self, requests: Sequence[Request], max_drafts: Mapping[str, int]
    ) -> dict[str, list[int]]:
        self._distributions = {}
        wanted: dict[str, int] = {}
        twins: dict[str, Twin] = {}
        for request in requests:
            name = request.request_id
            room = self._max_model_len - request.num_known_tokens
            num_drafts = min(max_drafts[name], room)
            if num_drafts > 0 and (twin := self._twin(request)) is not None:
                wanted[name], twins[name] = num_drafts, twin
        try:
            return self._draft(twins, wanted)
        except BaseException:
            for name in twins:  # what was computed of them is undefined
                self._forget(name)
            raise

    def _draft(self, twins: Mapping[str, Twin], wanted: Mapping[str, int]) -> dict[str, list[int]]:
        """The drafts of those twins whose texts can be computed."""
        ready = {name: twins[name] for name in self._read_texts(twins, wanted)}
        drafts: dict[str, list[int]] = {name: [] for name in ready}
        while ready:
            for name, token_id in self._step([twin.own for twin in ready.values()]).items():
                twins[name].own.draft_token_ids += (token_id,)
                drafts[name].append(token_id)
            ready = {
                name: twin
                for name, twin in ready.items()
                if len(drafts[name]) < wanted[name]
                and twin.own.num_computed_tokens < twin.own.num_tokens
                and self._allocate(twin, twin.own.num_tokens, twins)
            }
            self._checkpoint([twin.own for name, twin in ready.items() if len(drafts[name]) == 1])
        return drafts

    def forget(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._distributions.pop(request.request_id, None)
            if self._foreign.get(request.request_id) is request:
                del self._foreign[request.request_id]
            twin = self._twins.get(request.request_id)
            if twin is not None and twin.request is request:
                self._forget(request.request_id)

    def _twin(self, request: Request) -> Twin | None:
        """The request's twin, with its text and as much of it computed as is still right, but the last token; None
        if the draft model cannot read the text."""
        name = request.request_id
        if self._foreign.get(name) is request:
            return None
        twin = self._twins.get(name)
        if (
            twin is not None and twin.request is not request
        ):  # it has ended, and this one has its name
            self._forget(name)
            twin = None
        if twin is None:
            if not self._common.can_draft(request):
                self._foreign[name] = request
                return None
            twin = Twin(request, self._own_request(request))
            started = self._common.restricted(twin.own.started())
            self._model_runner.follow(SchedulerOutput(started=(started,)))
        else:
            del self._twins[name]
        self._twins[name] = twin  # behind the others
        own = twin.own
        num_right, drafts = own.num_known_tokens, own.draft_token_ids  # of the last call
        new = request.output_token_ids[own.num_output_tokens :]
        if not self._common.has_all(new):
            self._forget(name)
            self._foreign[name] = request
            return None
        own.output_token_ids += new
        own.draft_token_ids = ()
        num_right += _num_equal(drafts, tuple(new))
        num_computed = min(own.num_computed_tokens, num_right, own.num_tokens - 1)
        own.num_computed_tokens = self._blocks.rewind(own, num_computed)
        self._blocks.free_out_of_window(own)
        return twin

    def _own_request(self, request: Request) -> Request:
        """A request for the draft model that has no output yet, and draws as `request` does."""
        grammar, budget = request.grammar, request.thinking_budget
        return Request(
            request.request_id,
            request.prompt_token_ids,
            replace(request.params, n=1, best_of=None, logprobs=None, prompt_logprobs=None),
            request.seed,
            request.arrival_time,
            request.max_tokens,
            request.eos_token_ids,
            request.bad_words_token_ids,
            None if grammar is None else grammar.copy(),
            None if budget is None else budget.copy(),
            request.index,
        )

    def _read_texts(self, twins: Mapping[str, Twin], wanted: Mapping[str, int]) -> list[str]:
        """Allocates blocks for texts and drafts, and computes texts up to their last token.

        Returns:
            Those that miss no more than can be computed together with the others' in one step.
        """
        budget = self._max_num_batched_tokens - len(twins)
        ready: list[str] = []
        chunks: dict[str, ScheduledRequest] = {}
        for name, twin in twins.items():
            # The last draft is not computed.
            own = twin.own
            if not self._allocate(twin, own.num_tokens + wanted[name] - 1, twins):
                continue
            num_missing = own.num_tokens - own.num_computed_tokens
            if num_missing - 1 <= budget:
                budget -= num_missing - 1
                ready.append(name)
            elif budget > 0:
                chunks[name] = self._scheduled(own, budget, samples=False)
                budget = 0
        if chunks:
            tables = [self._blocks.block_tables(twins[name].own) for name in chunks]
            self._compute([*chunks.values()], tables)
            for name, chunk in chunks.items():
                twins[name].own.num_computed_tokens = chunk.end
                self._blocks.free_out_of_window(twins[name].own)
        return ready

    def _allocate(self, twin: Twin, num_tokens: int, asked: Mapping[str, Twin]) -> bool:
        while not self._blocks.allocate(twin.own, num_tokens):
            other = next((name for name in self._twins if name not in asked), None)
            if other is None:
                return False
            self._forget(other)
        return True

    def _forget(self, name: str) -> None:
        self._blocks.forget(self._twins.pop(name).own)
        self._model_runner.follow(SchedulerOutput(ended=(name,)))

    def _checkpoint(self, twins: Sequence[Request]) -> None:
        """Keeps the recurrent states of twins whose next step computes a draft."""
        for twin in twins:
            self._blocks.checkpoint(twin)
        self._model_runner.transfer(self._blocks.take_block_ops())

    def _compute(
        self, scheduled: Sequence[ScheduledRequest], tables: Sequence[BlockIds]
    ) -> ComputedStep:
        return self._model_runner.execute(scheduled, self._model_runner.send(scheduled, tables))

    def _step(self, twins: Sequence[Request]) -> dict[str, int]:
        """The next token of each twin; twins whose parameters leave no token are left out."""
        scheduled = [
            self._scheduled(twin, twin.num_tokens - twin.num_computed_tokens, samples=True)
            for twin in twins
        ]
        tables = [self._blocks.block_tables(twin) for twin in twins]
        computed = self._compute(scheduled, tables)
        result = self._model_runner.sample(scheduled, computed)
        for row, twin in enumerate(twins):
            twin.num_computed_tokens = twin.num_tokens
            name = twin.request_id
            if self._watches(name) and name in result.sampled:
                distribution = self._model_runner.distribution(name, computed.rows[row])
                self._distributions.setdefault(name, []).append(distribution)
        return {name: token_ids[0] for name, token_ids in result.token_ids.items()}

    def _scheduled(self, twin: Request, num_tokens: int, samples: bool) -> ScheduledRequest:
        start = twin.num_computed_tokens
        end = start + num_tokens
        return ScheduledRequest(
            twin.request_id,
            start,
            end,
            twin.token_ids(start, end),
            num_recomputed_tokens=0,
            num_draft_tokens=0,
            samplers=(twin.request_id,) if samples else (),
            num_prompt_tokens=twin.num_prompt_tokens,
            state_slot=self._blocks.state_slot(twin),
            num_guessed_tokens=len(twin.draft_token_ids),
        )


def _num_equal(token_ids: Sequence[int], others: Sequence[int]) -> int:
    """How many tokens two texts begin with in common."""
    shorter = min(len(token_ids), len(others))
    if token_ids[:shorter] == others[:shorter]:
        return shorter
    return next(index for index in range(shorter) if token_ids[index] != others[index])
