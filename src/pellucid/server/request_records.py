"""Records of running and recent requests, made from the engine's events.

The engine's thread only appends to a queue; the event loop reads it when a route needs it, and when a
request ends.
"""

from array import array
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from pellucid.inputs.sampling_params import SamplingParams
from pellucid.observing import events
from pellucid.observing.event_bus import EventBus
from pellucid.outputs import RequestOutput
from pellucid.server.api_keys import Caller
from pellucid.server.completion_id import call_id_in, call_id_of
from pellucid.server.errors import ApiError

MAX_RECORDS = 1024  # calls of each caller that are remembered
MAX_TOKENS = 4 << 20  # of their prompts and completions, of 4 bytes; divided among the callers
MAX_UNREAD = 1 << 17  # events; more of them wait only if the event loop hangs


@dataclass
class CompletionRecord:
    """What happened to one completion.

    Attributes:
        change: its latest state and the cause.
        prefix: the part of its prompt that was found in the cache when it was first admitted.
    """

    change: events.RequestStateChanged | None = None
    prefix: events.PrefixMatched | None = None
    preemptions: list[events.Preempted] = field(default_factory=list)
    ledger: events.RequestLedger | None = None


@dataclass
class PromptRecord:
    """One prompt of a call, and its completions.

    Attributes:
        token_ids: of the prompt.
        is_chat, end_token_ids: as in `EncodedPrompt`.
        seed: of its completions; None: the prompt has not been queued yet.
        outputs: token ids of its completions, once the call has ended.
    """

    token_ids: "array[int]"
    is_chat: bool
    end_token_ids: frozenset[int]
    seed: int | None = None
    outputs: Sequence["array[int]"] = ()

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) + sum(map(len, self.outputs))


@dataclass
class CallRecord:
    """What happened to one call.

    Attributes:
        owner: the caller that may see it.
        path: of its route.
        prompts: in their order.
        params: how its completions are chosen; None: not known.
        cache_salt: the engine's.
        aspects: digests of what of the call its prompt has ("tools", "system"), to compare calls by.
        completions: by the engine's name of each: the id, "/" and its number.
    """

    id: str
    owner: Caller
    path: str
    prompts: Sequence[PromptRecord]
    params: SamplingParams | None
    cache_salt: str | None
    aspects: Mapping[str, bytes]
    completions: dict[str, CompletionRecord] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """Of prompts, and of completions once the call has ended."""
        return sum(prompt.num_tokens for prompt in self.prompts)

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(prompt.token_ids) for prompt in self.prompts)


@dataclass
class _RecordsOfCaller:
    """Ids of calls, the oldest first, and the tokens of all."""

    call_ids: deque[str] = field(default_factory=deque)
    num_tokens: int = 0


class RequestRecords:
    """Remembers calls.

    The oldest ones of a caller are forgotten for its newer ones, and never for those of others: that would tell one
    caller how many calls another one makes. The newest one is always remembered.

    Args:
        bus: the engine's.
        num_callers: that there can be.
    """

    def __init__(self, bus: EventBus, num_callers: int) -> None:
        self._records: dict[str, CallRecord] = {}
        self._by_caller: defaultdict[str, _RecordsOfCaller] = defaultdict(_RecordsOfCaller)
        self._max_tokens = MAX_TOKENS // num_callers
        self._unread: deque[events.EventRecord] = deque(maxlen=MAX_UNREAD)
        bus.subscribe(self._unread.append, events.Level.STAT)

    def add(self, record: CallRecord) -> None:
        own = self._by_caller[record.owner.name]
        self._records[record.id] = record
        own.call_ids.append(record.id)
        own.num_tokens += record.num_tokens
        self._forget_oldest(own)

    def keep_outputs(self, call_id: str, outputs: Sequence[RequestOutput]) -> None:
        """Stores the tokens of the completions of a call that has ended.

        Args:
            outputs: of its prompts, in their order; fewer if it ended before all were queued.
        """
        if (record := self._records.get(call_id)) is None:
            return
        before = record.num_tokens
        for prompt, output in zip(record.prompts, outputs, strict=False):
            prompt.seed = output.seed
            prompt.outputs = [array("I", each.token_ids) for each in output.outputs]
        own = self._by_caller[record.owner.name]
        own.num_tokens += record.num_tokens - before
        self._forget_oldest(own)

    def _forget_oldest(self, own: _RecordsOfCaller) -> None:
        while len(own.call_ids) > 1 and (
            len(own.call_ids) > MAX_RECORDS or own.num_tokens > self._max_tokens
        ):
            own.num_tokens -= self._records.pop(own.call_ids.popleft()).num_tokens

    def find(self, name: str, caller: Caller) -> CallRecord | None:
        """A call by its id, with or without its protocol's prefix; None if it is not remembered or belongs to
        another caller."""
        self.read()
        record = self._records.get(call_id_of(name))
        return record if record is not None and caller.may_see(record.owner) else None

    def get(self, name: str, caller: Caller) -> CallRecord:
        """As `find`.

        Raises:
            ApiError: 404.
        """
        record = self.find(name, caller)
        if record is None:
            raise ApiError(404, f"{name[:64]!r}: no such request is remembered", code="not_found")
        return record

    def read(self) -> None:
        """Reads the events that the engine has emitted since the last call."""
        while self._unread:
            event = self._unread.popleft().event
            if not isinstance(
                event,
                events.RequestAdded
                | events.RequestStateChanged
                | events.PrefixMatched
                | events.Preempted
                | events.RequestLedger,
            ):
                continue
            if (record := self._records.get(call_id_in(event.req))) is None:
                continue
            completion = record.completions.setdefault(event.req, CompletionRecord())
            if isinstance(event, events.RequestStateChanged):
                completion.change = event
            elif isinstance(event, events.PrefixMatched):
                completion.prefix = completion.prefix or event
            elif isinstance(event, events.Preempted):
                completion.preemptions.append(event)
            elif isinstance(event, events.RequestLedger):
                completion.ledger = event


def completion_facts(completion: CompletionRecord) -> dict[str, Any]:
    """A completion's record in JSON's terms."""
    change, prefix, ledger = completion.change, completion.prefix, completion.ledger
    return {
        "state": None if change is None else change.to,
        "reason": None if change is None else change.reason,
        "blocked_by": list(change.blocked_by or ()) if change is not None else [],
        "need_blocks": None if change is None else change.need_blocks,
        "free_blocks": None if change is None else change.free_blocks,
        "prefix": None if prefix is None else _without_req(prefix),
        "preemptions": [_without_req(each) for each in completion.preemptions],
        "ledger": None if ledger is None else _without_req(ledger),
    }


def _without_req(event: events.Event) -> dict[str, Any]:
    return {name: value for name, value in structs.asdict(event).items() if name != "req"}
