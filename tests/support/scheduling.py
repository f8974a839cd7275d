"""Helpers that make schedulers and requests. A block holds BLOCK_SIZE tokens."""

from collections.abc import Collection, Mapping, Sequence

from pellucid.inputs.sampling_params import SamplingParams
from pellucid.observing.event_bus import EventBus
from pellucid.scheduling.block_pool import BlockPool
from pellucid.scheduling.kv_cache_manager import KVCacheManager
from pellucid.scheduling.offload import Offload
from pellucid.scheduling.request import FinishReason, Request, Taken
from pellucid.scheduling.scheduler import Scheduler
from pellucid.scheduling.scheduler_output import SchedulerOutput

BLOCK_SIZE = 4
END = 99


def make_request(
    name: str, num_prompt_tokens: int = 0, max_tokens: int = 8, **fields: object
) -> Request:
    params = SamplingParams(
        max_tokens=max_tokens,
        max_time=fields.pop("max_time", None),
        prompt_logprobs=fields.pop("prompt_logprobs", None),
    )
    return Request(
        request_id=name,
        prompt_token_ids=tuple(fields.pop("prompt", range(num_prompt_tokens))),
        params=params,
        seed=0,
        arrival_time=fields.pop("arrival_time", 0.0),
        max_tokens=max_tokens,
        eos_token_ids=frozenset({END}),
        **fields,
    )


def make_siblings(
    count: int, num_prompt_tokens: int, max_tokens: int = 8, **fields: object
) -> list[Request]:
    return [
        make_request(f"s/{index}", num_prompt_tokens, max_tokens, index=index, **fields)
        for index in range(count)
    ]


def make_scheduler(num_blocks: int = 64, **knobs: object) -> Scheduler:
    manager = KVCacheManager(
        BlockPool(num_blocks),
        BLOCK_SIZE,
        bool(knobs.pop("enable_prefix_caching", False)),
        Offload(knobs.pop("num_swap_slots", 0), knobs.pop("max_read_blocks", 0)),
    )
    defaults = {"events": EventBus(), "max_num_seqs": 8, "max_num_batched_tokens": 100}
    return Scheduler(manager, **{**defaults, **knobs})


def update(
    scheduler: Scheduler,
    output: SchedulerOutput,
    sampled: Mapping[str, Sequence[int]],
    now: float = 0.0,
) -> None:
    """Records the sampled tokens of a step, by request id: each request takes those up to its end."""
    taken = {}
    for request_id, token_ids in sampled.items():
        request = scheduler.requests[request_id]
        new = request.end_rule.take(token_ids, request.num_output_tokens)
        if new.end is None and now >= request.deadline:
            new = Taken(new.token_ids, (FinishReason.LENGTH, "max_time"))
        taken[request_id] = new
    scheduler.update(output, taken, now)


def step(
    scheduler: Scheduler, now: float = 0.0, token_id: int = 50, failing: Collection[Request] = ()
) -> SchedulerOutput:
    """A whole step; every sampler gets the same token, but for those that fail."""
    output = scheduler.schedule(now)
    sampled = {}
    for share in output.scheduled:
        for request in map(scheduler.requests.__getitem__, share.samplers):
            if request in failing:
                scheduler.finish(request, FinishReason.ERROR)
            elif not request.is_beam:
                sampled[request.request_id] = [token_id]
    update(scheduler, output, sampled, now)
    scheduler.check_integrity()
    assert output.num_tokens <= scheduler.max_num_batched_tokens
    return output


def run(scheduler: Scheduler, now: float = 0.0) -> int:
    """Steps until nothing is left; how many."""
    num_steps = 0
    while scheduler.has_unfinished_requests:
        step(scheduler, now)
        num_steps += 1
    pool = scheduler.kv_cache_manager.block_pool
    assert pool.num_free_blocks == pool.num_blocks
    return num_steps


def shares(output: SchedulerOutput) -> list[tuple[str, int, int]]:
    return [(s.request_id, s.start, s.end) for s in output.scheduled]


def names(output: SchedulerOutput) -> list[str]:
    return [share.request_id for share in output.scheduled]
