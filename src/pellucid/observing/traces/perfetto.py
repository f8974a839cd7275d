"""Events as a trace for Perfetto (ui.perfetto.dev), in Chrome's trace event format, and as CSV.

The process "engine" has nested slices of each step; steps that were under way at the same time have threads of their
own there. The process "requests" has an asynchronous slice for each
phase of a completion, because these overlap. Counters are blocks and rates; preemptions, copies and evictions are
instants; an arrow leads from who caused a preemption to who was preempted.
"""

import csv
from collections.abc import Iterable
from typing import IO, Any

ENGINE, REQUESTS = 1, 2  # processes
PARTS = (
    ("schedule", "sched_us"),
    ("forward", "fwd_us"),
    ("sample", "sample_us"),
    ("emit", "emit_us"),
)
ROUNDING_US = 4  # by which a step may seem to begin before the end of the one before: a half for each of its times
_FINAL = ("done", "cancelled", "failed")
_INSTANTS = {"C": "copy on write", "E": "evict", "O": "swap out", "I": "swap in"}
_STATE_INSTANTS = {"T": "snapshot taken", "U": "snapshot used", "E": "snapshot evicted"}


def perfetto_trace(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The object that Perfetto and chrome://tracing open."""
    rows: list[dict[str, Any]] = [
        _meta("process_name", ENGINE, "engine"),
        _meta("process_name", REQUESTS, "requests"),
        _meta("thread_name", ENGINE, "steps"),
    ]
    ends = [0]  # of the last step of each thread
    phases: dict[str, str] = {}  # that are open, by completion
    lanes: dict[str, int] = {}
    num_arrows = 0
    for event in events:
        at = event.get("t_us", 0)
        match event["ev"]:
            case "hello":
                rows.append({**_instant("hello", ENGINE, 1, at), "args": event["model"]})
            case "step":
                rows += _step(event, ends)
            case "req.add":
                lanes[event["req"]] = len(lanes) + 1
                phases[event["req"]] = "waiting"
                arguments = {"prompt_tok": event["prompt_tok"]}
                rows.append(_phase("b", event["req"], "waiting", at, arguments))
            case "req.state":
                rows += _state(event, phases, at)
            case "preempt":
                lane = lanes.setdefault(event["req"], len(lanes) + 1)
                cause = lanes.setdefault(event["cause_req"], len(lanes) + 1)
                arguments = {name: event[name] for name in ("req", "cause_req", "lost_tok", "mode")}
                rows.append({**_instant("preempt", REQUESTS, lane, at), "args": arguments})
                num_arrows += 1
                arrow = {"name": "preempts", "cat": "preempt", "id": num_arrows, "ts": at}
                rows.append({**arrow, "ph": "s", "pid": REQUESTS, "tid": cause})
                rows.append({**arrow, "ph": "f", "bp": "e", "pid": REQUESTS, "tid": lane})
            case "kv":
                blocks = {name: event[name] for name in ("used", "cached", "free")}
                rows.append(_counter("KV blocks", at, blocks))
                for op, block, *_ in event["ops"]:
                    if op in _INSTANTS:
                        instant = _instant(_INSTANTS[op], ENGINE, 1, at)
                        rows.append({**instant, "args": {"block": block}})
            case "states":
                rows.append(_counter("state snapshots", at, {"used": event["used"]}))
                for op, slot, _, num_tokens in event["ops"]:
                    instant = _instant(_STATE_INSTANTS[op], ENGINE, 1, at)
                    rows.append({**instant, "args": {"slot": slot, "tok": num_tokens}})
            case "stat":
                counts = {name: event[name] for name in ("running", "waiting")}
                rates = {name: event[name] for name in ("in_tok_s", "out_tok_s")}
                rows += [_counter("requests", at, counts), _counter("tokens/s", at, rates)]
    return {"traceEvents": rows, "displayTimeUnit": "ms"}


def write_csv(events: Iterable[dict[str, Any]], file: IO[str]) -> None:
    """One line for each step."""
    names = [
        "step",
        "t_us",
        "kind",
        "requests",
        "tokens",
        "budget_tok",
        "idle_us",
        "sched_us",
        "fwd_us",
        "sample_us",
        "emit_us",
        "flops",
        "w_bytes",
        "kv_read_bytes",
        "kv_write_bytes",
        "bound",
        "pred_us",
    ]
    writer = csv.writer(file)
    writer.writerow(names)
    for event in events:
        if event["ev"] == "step":
            counted = {
                "requests": len(event["batch"]),
                "tokens": sum(num_tokens for _, num_tokens, _ in event["batch"]),
            }
            writer.writerow([counted.get(name, event.get(name, "")) for name in names])


def _step(event: dict[str, Any], ends: list[int]) -> list[dict[str, Any]]:
    """A step ends where its event was emitted; its parts follow one another without gaps.

    Args:
        ends: of the last step of each thread.
    """
    total = sum(event[name] for _, name in PARTS)
    at = max(0, event["t_us"] - total)
    thread = next((each for each, end in enumerate(ends, 1) if end - ROUNDING_US <= at), 0)
    rows = []
    if not thread:
        ends.append(0)
        thread = len(ends)
        rows.append({**_meta("thread_name", ENGINE, f"steps {thread}"), "tid": thread})
    ends[thread - 1] = at + total
    arguments: dict[str, Any] = {
        name: event[name]
        for name in ("kind", "flops", "w_bytes", "bound", "pred_us")
        if name in event
    }
    arguments["batch"] = [" ".join(map(str, row)) for row in event["batch"]]
    slice_of = {"ph": "X", "pid": ENGINE, "tid": thread}
    name = f"step {event['step']}"
    rows.append({**slice_of, "name": name, "ts": at, "dur": total, "args": arguments})
    for part, field in PARTS:
        rows.append({**slice_of, "name": part, "ts": at, "dur": event[field]})
        at += event[field]
    return rows


def _state(event: dict[str, Any], phases: dict[str, str], at: int) -> list[dict[str, Any]]:
    name, after = event["req"], event["to"]
    before = phases.get(name)
    if before == after:
        return []
    rows = [] if before is None else [_phase("e", name, before, at, {})]
    if after in _FINAL:
        phases.pop(name, None)
    else:
        phases[name] = after
        arguments: dict[str, Any] = {
            key: event[key] for key in ("reason", "need_blocks", "blocked_by") if key in event
        }
        rows.append(_phase("b", name, after, at, arguments))
    return rows


def _phase(kind: str, req: str, name: str, at: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": kind,
        "cat": "request",
        "id": req,
        "name": name,
        "pid": REQUESTS,
        "tid": 1,
        "ts": at,
        "args": {"req": req, **arguments},
    }


def _instant(name: str, process: int, lane: int, at: int) -> dict[str, Any]:
    return {"ph": "i", "s": "t", "name": name, "pid": process, "tid": lane, "ts": at}


def _counter(name: str, at: int, values: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "C", "name": name, "pid": ENGINE, "ts": at, "args": values}


def _meta(kind: str, process: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": 1, "args": {"name": name}}
