"""An explanation for people."""

from pellucid.cli.explanation import Event, Explanation, Phase
from pellucid.cli.terminal import print_table
from pellucid.cli.units import flops, num_bytes, seconds

PARTS = {
    "tokenize_us": "reading the prompt",
    "queue_us": "waiting in the queue",
    "prefill_us": "prefill",
    "decode_us": "decode",
    "stall_us": "stalled by others' prompts",
    "preempt_us": "preempted, and computed again",
    "sample_us": "sampling",
    "send_us": "text and bookkeeping",
    "other_us": "scheduling, between steps",
}
MISSES = {
    "never_seen": "nothing computed begins like that",
    "evicted": "it was there, and {evicted_ago} blocks have been evicted since",
    "differs": "token {diff_ids[0]} stands where {near_req} has {diff_ids[1]}",
    "partial_block": "what is left is shorter than a block",
    "disabled": "prefix caching is off, or prompt log-probabilities were asked for",
    "salt": "it is there under another cache salt",
}
COLUMNS = (
    "steps",
    "number",
    "tokens",
    "forward",
    "beside",
    "bytes",
    "operations",
    "bound",
    "of it",
)


def print_explanation(explanation: Explanation) -> None:
    """Writes everything on stdout."""
    print(f"{title(explanation)}\n")
    if explanation.ledger is None:
        print("its end was not recorded\n")
    else:
        print_table(("where the time went", "time", "share"), ledger_rows(explanation.ledger))
        print()
    print_table(COLUMNS, [phase_cells(phase) for phase in explanation.phases])
    print()
    for line in (*waits(explanation), *prefix_lines(explanation), memory_line(explanation)):
        print(line)


def title(explanation: Explanation) -> str:
    """Who it was, and how it ended."""
    ends = [state for state in explanation.states if "finish" in state]
    end = f", {ends[-1]['to']}: {ends[-1]['reason']}" if ends else ""
    num_prompt, num_output = explanation.added["prompt_tok"], explanation.num_output_tokens
    return f"{explanation.request_id}: {num_prompt} prompt tokens, {num_output} new{end}"


def ledger_rows(ledger: Event) -> list[tuple[str, str, str]]:
    """The parts that took any time, and their sum."""
    total = ledger["total_us"]
    rows = [
        (name, seconds(ledger[part] / 1e6), f"{ledger[part] / total:.1%}")
        for part, name in PARTS.items()
        if ledger[part]
    ]
    return [*rows, ("all of it", seconds(total / 1e6), "")]


def phase_cells(phase: Phase) -> tuple[str, ...]:
    """One for each of `COLUMNS`."""
    share = phase.limit_share
    return (
        phase.name,
        f"{len(phase.steps)}",
        f"{phase.num_tokens}",
        seconds(phase.forward_us / 1e6),
        f"{phase.num_requests - 1:.1f}",
        num_bytes(phase.num_bytes),
        flops(phase.flops),
        phase.bound or "not measured",
        "" if share is None else f"{share:.0%}",
    )


def waits(explanation: Explanation) -> list[str]:
    """Who held it up, and what that cost."""
    lines = []
    if (ledger := explanation.ledger) is not None:
        for part, words in (("blocked_by", "in the queue behind"), ("stalled_by", "stalled by")):
            if ledger[part]:
                names = (f"{name} ({seconds(us / 1e6)})" for name, us in ledger[part])
                lines.append(f"{words} {', '.join(names)}")
    return [*lines, *map(_preemption, explanation.preemptions)]


def _preemption(event: Event) -> str:
    return (
        f"preempted for {event['cause_req']}: gave back {event['freed_blocks']} blocks,"
        f" lost {event['lost_tok']} tokens ({event['mode']})"
    )


def prefix_lines(explanation: Explanation) -> list[str]:
    """What the prefix cache had, and why not more."""
    if (prefix := explanation.prefix) is None:
        return []
    found = f"prefix cache: {prefix['hit_tok']} of {explanation.added['prompt_tok']} tokens found"
    if "miss_why" not in prefix:
        return [found]
    return [f"{found}; at {prefix['miss_at_tok']}: {MISSES[prefix['miss_why']].format(**prefix)}"]


def memory_line(explanation: Explanation) -> str:
    """What it held in the end, and what that costs."""
    kv, num_blocks = explanation.hello["kv"], explanation.num_blocks
    return (
        f"KV cache: {num_blocks} of {kv['n_blocks']} blocks of {kv['block_tok']} tokens,"
        f" {num_bytes(num_blocks * kv['block_bytes'])} in {kv['dtype']}"
    )
