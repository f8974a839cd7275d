"""Shows an explanation: tables of where the time went."""

from pellucid.cli.explanation import Event, Explanation, Phase
from pellucid.cli.output.terminal import print_table, wrapped
from pellucid.cli.output.units import counted, flops, num_bytes, seconds

PARTS = {
    "tokenize_us": "tokenizing the prompt",
    "queue_us": "waiting in the queue",
    "prefill_us": "prefill",
    "decode_us": "decode",
    "stall_us": "waiting for others' prompts",
    "preempt_us": "preempted and recomputed",
    "sample_us": "sampling",
    "draft_us": "drafting",
    "send_us": "detokenizing, output",
    "other_us": "scheduling, between steps",
}
MISSES = {
    "recurrent": "the blocks of {snapshot_at_tok} tokens are there, but no snapshot of the recurrent states",
    "never_seen": "no request began like this",
    "evicted": "it was evicted, {evicted_ago} blocks ago",
    "differs": "token {diff_ids[0]}, where {near_req} has {diff_ids[1]}",
    "partial_block": "the rest is shorter than a block",
    "disabled": "prefix caching is off, or prompt log-probabilities were asked for",
    "salt": "it is cached under another cache salt",
}
# Optional fields of an event that the words above quote: an edited recording may lack them.
QUOTED = {
    "recurrent": {"snapshot_at_tok"},
    "evicted": {"evicted_ago"},
    "differs": {"near_req", "diff_ids"},
}
OTHERS = "other requests"  # a column that says nothing of a request that was always alone
COLUMNS = (
    "phase",
    "steps",
    "tokens",
    "time per step",
    OTHERS,
    "bytes per step",
    "operations per step",
    "limited by",
    "of limit",
)


def print_explanation(explanation: Explanation) -> None:
    """Writes everything on stdout."""
    print(f"{wrapped(engine(explanation))}\n{wrapped(title(explanation))}\n")
    if explanation.ledger is None:
        print("the end of the request was not recorded\n")
    else:
        print_table(("where the time went", "time", "share"), ledger_rows(explanation.ledger))
        print()
    has_company = any(phase.num_requests > 1 for phase in explanation.phases)
    columns = [name for name in COLUMNS if name != OTHERS or has_company]
    cells = [dict(zip(COLUMNS, phase_cells(phase), strict=True)) for phase in explanation.phases]
    print_table(columns, [[row[name] for name in columns] for row in cells])
    print()
    for line in (*waits(explanation), *prefix_lines(explanation), memory_line(explanation)):
        print(wrapped(line))


def engine(explanation: Explanation) -> str:
    """The model, its formats, and the machine's ceilings if they were measured."""
    hello = explanation.hello
    quantization = "as stored" if hello["model"]["dtype"] == "none" else hello["model"]["dtype"]
    device = hello["device"]
    words = f"{hello['model']['name']}, weights {quantization}, KV cache {hello['kv']['dtype']}"
    if "bw_bytes_s" not in device or "flops_s" not in device:
        return words
    bandwidth, peak = device["bw_bytes_s"] / 1e9, device["flops_s"] / 1e9
    name = device["name"] if device["backend"] == "torch" else "this machine"
    return f"{words}; {name}: memory {bandwidth:.1f} GB/s, {peak:.0f} GFLOP/s"


def title(explanation: Explanation) -> str:
    """The model, the request and how it ended."""
    ends = [state for state in explanation.states if "finish" in state]
    end = f", {ends[-1]['to']}: {ends[-1]['reason']}" if ends else ""
    num_prompt, num_output = explanation.added["prompt_tok"], explanation.num_output_tokens
    return f"{explanation.request_id}: {num_prompt} prompt tokens, {num_output} output tokens{end}"


def ledger_rows(ledger: Event) -> list[tuple[str, str, str]]:
    """The parts that took any time, and their sum."""
    total = ledger["total_us"] or 1
    rows = [
        (name, seconds(ledger[part] / 1e6), f"{ledger[part] / total:.1%}")
        for part, name in PARTS.items()
        if ledger.get(part)  # recordings of older versions lack parts
    ]
    return [*rows, ("total", seconds(ledger["total_us"] / 1e6), "")]


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
        phase.bound or "-",
        "-" if share is None else f"{share:.0%}",
    )


def waits(explanation: Explanation) -> list[str]:
    """The requests that held it up, and the time that this cost."""
    lines = []
    if (ledger := explanation.ledger) is not None:
        for part, words in (
            ("blocked_by", "in the queue behind"),
            ("stalled_by", "waited for prompts of"),
        ):
            if ledger[part]:
                names = (f"{name} ({seconds(us / 1e6)})" for name, us in ledger[part])
                lines.append(f"{words} {', '.join(names)}")
    return [*lines, *map(_preemption, explanation.preemptions)]


def _preemption(event: Event) -> str:
    return (
        f"preempted for {event['cause_req']}: released {counted(event['freed_blocks'], 'block')},"
        f" lost {counted(event['lost_tok'], 'token')} ({event['mode']})"
    )


def prefix_lines(explanation: Explanation) -> list[str]:
    """What the prefix cache had, and why not more."""
    if (prefix := explanation.prefix) is None:
        return []
    num_prompt = explanation.added["prompt_tok"]
    found = f"prefix cache: {prefix['hit_tok']} of {num_prompt} prompt tokens found"
    if "miss_why" not in prefix or "miss_at_tok" not in prefix:
        return [found]
    why = prefix["miss_why"]
    words = MISSES[why].format(**prefix) if QUOTED.get(why, set()) <= prefix.keys() else why
    return [f"{found}; miss at token {prefix['miss_at_tok']}: {words}"]


def memory_line(explanation: Explanation) -> str:
    """What it held in the end, and what that costs."""
    kv, num_blocks = explanation.hello["kv"], explanation.num_blocks
    return (
        f"KV cache: {num_blocks} of {kv['n_blocks']} blocks of {kv['block_tok']} tokens,"
        f" {num_bytes(num_blocks * kv['block_bytes'])} in {kv['dtype']}"
    )
