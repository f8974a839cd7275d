"""The events of steps that have ended: what happened to blocks, and the engine's speeds."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter, lt
from typing import NamedTuple, final

from pellucid.observing.events import BlockOpRow, BlockOps, Event, Percentiles, Stat, Tokens
from pellucid.observing.token_gaps import TokenGaps
from pellucid.scheduling.request import Taken
from pellucid.scheduling.scheduler_output import SchedulerOutput

_START, _NUM_PROMPT = attrgetter("start"), attrgetter("num_prompt_tokens")
_TOKEN_IDS = attrgetter("token_ids")
# Operations that change how many slots hold no token as if each new block had been empty.
KNOWN_OPS = frozenset("AEH")


class BlockChanges(NamedTuple):
    """What happened to blocks beside the slots that a step has filled.

    Attributes:
        rows, groups: as in `kv`; the group of each row.
        used, cached, free: blocks, after it.
        num_wasted: slots of used blocks that hold no token, after it; None: as many as the rows say.
    """

    rows: tuple[BlockOpRow, ...]
    groups: tuple[int, ...]
    used: int
    cached: int
    free: int
    num_wasted: int | None


@final
class StepEvents:
    """Makes the events of steps from what the steps leave, one step after the other: the scheduler's thread only keeps
    that, and another one may do this later.

    Args:
        block_size: tokens per block.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._counts = (0, 0, 0)  # used, cached, free
        self._num_wasted = 0
        # What `stat` tells, since the last one.
        self._num_prompt_positions = self._num_output_tokens = 0
        self._num_admitted_tokens = self._num_found_tokens = 0
        self._first_token_us: list[int] = []
        self._gaps_us: list[int] = []  # between tokens
        self._gaps = TokenGaps()

    # ---- blocks

    @staticmethod
    def changes(
        rows: tuple[BlockOpRow, ...],
        groups: tuple[int, ...],
        counts: tuple[int, int, int],
        count_wasted: Callable[[], int],
        is_known: bool,
    ) -> BlockChanges:
        """What happened to blocks, as rows and the group of each.

        Args:
            counts: used, cached and free blocks, after it.
            count_wasted: counts the slots of used blocks that hold no token.
            is_known: whether whoever is told knows how many these were before.
        """
        is_known = is_known and KNOWN_OPS.issuperset([op for op, *_ in rows])
        return BlockChanges(rows, groups, *counts, None if is_known else count_wasted())

    def blocks(self, changes: BlockChanges) -> Iterable[Event]:
        """What happened to blocks between steps, or as a step was scheduled."""
        return self._blocks((), (), changes, 0)

    def step(
        self,
        output: SchedulerOutput,
        taken: Mapping[str, Taken],
        ended: Sequence[str],
        now: float,
        before: Tokens | None,
        left_out: Collection[str],
        changes: BlockChanges | None,
    ) -> Iterable[Event]:
        """What a step has changed.

        Args:
            output, taken, ended, now, before: as in `count`.
            left_out: the ids of its requests that ended before its results were recorded.
            changes: of blocks; None: none but the slots that were filled. Slots that are filled by requests with
                drafts, some of which are given back, are among them.
        """
        self.count(output, taken, ended, now, before)
        rows, groups, num_filled = self._fills(output, left_out)
        if changes is not None:
            return self._blocks(rows, groups, changes, num_filled)
        return self._kv(rows, groups, self._num_wasted - num_filled) if rows else ()

    def _fills(
        self, output: SchedulerOutput, left_out: Collection[str]
    ) -> tuple[Sequence[BlockOpRow], Sequence[int], int]:
        """The rows of slots that a step has filled, the group of each, and how many slots these are."""
        size = self._block_size
        rows, groups, num_filled = list[BlockOpRow](), list[int](), 0
        for each, by_group in zip(output.scheduled, output.block_tables, strict=True):
            if each.num_draft_tokens or each.request_id in left_out:
                continue
            for group, ids in enumerate(by_group):
                num_filled += each.end - each.start
                for index in range(each.start // size, -(-each.end // size)):
                    num_in_block = min(each.end - index * size, size)
                    rows.append(("F", ids[index], num_in_block, None))
                    groups.append(group)
        return rows, groups, num_filled

    def _blocks(
        self,
        fills: Sequence[BlockOpRow],
        groups: Sequence[int],
        changes: BlockChanges,
        num_filled: int,
    ) -> Iterable[Event]:
        num_wasted = changes.num_wasted
        if num_wasted is None:
            num_new = sum([op == "A" for op, *_ in changes.rows])
            num_wasted = self._num_wasted + num_new * self._block_size - num_filled
        self._counts = changes.used, changes.cached, changes.free
        if not fills and not changes.rows:
            self._num_wasted = num_wasted
            return ()
        return self._kv((*fills, *changes.rows), (*groups, *changes.groups), num_wasted)

    def _kv(
        self, rows: Sequence[BlockOpRow], groups: Sequence[int], num_wasted: int
    ) -> Iterable[Event]:
        self._num_wasted = num_wasted
        used, cached, free = self._counts
        named = tuple(groups) if any(groups) else None
        return (BlockOps(tuple(rows), used, cached, free, num_wasted, named),)

    # ---- speeds

    def begin(self) -> Iterable[Event]:
        """The first subscriber has come."""
        self._gaps.clear()
        self._clear()
        return ()

    def admitted(self, num_tokens: int, num_found: int) -> Iterable[Event]:
        """A request was admitted, and so many of its tokens were found in the prefix cache."""
        self._num_admitted_tokens += num_tokens
        self._num_found_tokens += num_found
        return ()

    def first_token(self, seconds: float) -> Iterable[Event]:
        """A request has its first token, so long after it arrived."""
        self._first_token_us.append(max(0, round(seconds * 1e6)))
        return ()

    def count(
        self,
        output: SchedulerOutput,
        taken: Mapping[str, Taken],
        ended: Sequence[str],
        now: float,
        before: Tokens | None,
    ) -> Iterable[Event]:
        """Counts what a step has computed.

        Args:
            taken: by request id, the tokens that the step has given it.
            ended: the ids of requests that have ended since the step before.
            now: when they were sampled, seconds.
            before: the latest tokens, if they are in the log of steps; None: they were counted here.
        """
        self._gaps.follow(before)
        scheduled = output.scheduled
        starts = tuple(map(_START, scheduled))
        if any(map(lt, starts, map(_NUM_PROMPT, scheduled))):
            for each in scheduled:
                first = each.start + each.num_recomputed_tokens
                self._num_prompt_positions += max(0, min(each.end, each.num_prompt_tokens) - first)
        self._num_output_tokens += sum(map(len, map(_TOKEN_IDS, taken.values())))
        gaps_us = self._gaps.advance(tuple(taken), now)
        self._gaps_us += [gap_us for gap_us in gaps_us if gap_us is not None]
        return self.forget(ended) if ended else ()

    def forget(self, ended: Sequence[str], before: Tokens | None = None) -> Iterable[Event]:
        """Requests have ended: others may have their ids.

        Args:
            before: as in `count`.
        """
        self._gaps.follow(before)
        for request_id in ended:
            self._gaps.forget(request_id)
        return ()

    def stat(
        self,
        running: int,
        waiting: int,
        counts: tuple[int, int, int],
        seconds: float,
        spent: float,
        logged: tuple[int, Sequence[int]],
    ) -> Iterable[Event]:
        """The engine's speeds since the last time.

        Args:
            running, waiting: requests.
            counts: used, cached and free blocks.
            seconds: since the last time.
            spent: of these, on events.
            logged: output tokens that the log of steps has counted, and the microseconds before each.
        """
        num_logged, gaps_us = logged
        used, cached, free = counts
        admitted = self._num_admitted_tokens
        stat = Stat(
            running,
            waiting,
            used,
            cached,
            free,
            in_tok_s=self._num_prompt_positions / seconds,
            out_tok_s=(self._num_output_tokens + num_logged) / seconds,
            dur_us=round(seconds * 1e6),
            hit_frac=self._num_found_tokens / admitted if admitted else None,
            obs_frac=min(1.0, spent / seconds),
            ttft_us=_percentiles(self._first_token_us),
            itl_us=_percentiles([*self._gaps_us, *gaps_us]),
        )
        self._clear()
        return (stat,)

    def _clear(self) -> None:
        self._num_prompt_positions = self._num_output_tokens = 0
        self._num_admitted_tokens = self._num_found_tokens = 0
        self._first_token_us, self._gaps_us = [], []


def _percentiles(times_us: Sequence[int]) -> Percentiles | None:
    """By nearest rank; None: there are no times."""
    if not times_us:
        return None
    ordered = sorted(times_us)
    ranks = (-(-len(ordered) * percent // 100) - 1 for percent in (50, 95, 99))
    return Percentiles(*(max(0, ordered[rank]) for rank in ranks))
