"""A plan as a table with its formulas, and as JSON."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from pellucid.cli.output.terminal import print_table, wrapped
from pellucid.cli.output.units import counted, num_bytes, seconds

if TYPE_CHECKING:
    from pellucid.benchmark.estimate import Number
    from pellucid.benchmark.machine_facts import MachineFacts

Estimates = Mapping[int, "Sequence[Number]"]  # by requests that decode together


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        label: of the number, for people.
        name: of the number in an estimate.
        show: formats its value.
        is_speed: whether it is a time, or follows from one, of requests that run together.
    """

    label: str
    name: str
    show: Callable[[float], str]
    is_speed: bool = False


def _count(value: float) -> str:
    return f"{value:,.0f}"


ROWS = (
    Row("parameters", "parameters", _count),
    Row("weights", "weight_bytes", num_bytes),
    Row("states of a request", "state_bytes_per_request", num_bytes),
    Row("open keys of a request", "open_key_bytes_per_request", num_bytes),
    Row("KV cache of a request", "kv_bytes_per_request", num_bytes),
    Row("KV cache of all", "kv_bytes_batch", num_bytes),
    Row("blocks of the KV cache", "kv_blocks", _count),
    Row("requests that fit", "requests_that_fit", _count),
    Row("longest context alone", "longest_context", _count),
    Row("read by a decode step", "decode_bytes", num_bytes),
    *(
        Row(f"{label}, {how}", f"{name}{suffix}", show, is_speed=True)
        for label, name, show in (
            ("first token", "first_token_seconds", seconds),
            ("each token", "decode_seconds", seconds),
            ("an answer", "request_seconds", seconds),
            ("tokens per second", "tokens_per_second", "{:,.1f}".format),
            ("price of 10^6 tokens", "price_per_million_tokens", "{:.4g}".format),
        )
        for how, suffix in (("at best", ""), ("as measured", "_measured"))
    ),
)
DOES_NOT_FIT = "does not fit"
PROVENANCE = {"M": "measured", "C": "counted", "E": "estimated"}


def print_plan(model: str, machine: "MachineFacts", estimates: Estimates) -> None:
    """Writes everything on stdout; the model has its name and formats."""
    by_name = {
        requests: {number.name: number for number in estimate}
        for requests, estimate in estimates.items()
    }
    first = next(iter(by_name.values()))
    rows = [row for row in ROWS if row.name in first]
    print(f"{wrapped(model)}\n{wrapped(_machine_line(machine))}\n")
    cells = [
        [row.label, *(_cell(row, found, requests) for requests, found in by_name.items())]
        for row in rows
    ]
    bounds = [str(found["decode_seconds"].inputs["bound"]) for found in by_name.values()]
    print_table(
        ["", *(counted(requests, "request") for requests in estimates)],
        [*cells, ["a decode step waits for", *bounds]],
    )
    print()
    for row in rows:
        number = first[row.name]
        print(wrapped(f"{row.label} ({PROVENANCE[number.provenance]}): {number.formula}"))
    if first["weight_bytes"].value > machine.memory_bytes:
        print(wrapped("The weights alone are larger than the memory."))
        return
    if (longest := first["longest_context"]).value < float(longest.inputs["c"]):
        print(
            wrapped(
                f"No text of {longest.inputs['c']:,} tokens fits: the engine needs"
                f" --max-model-len {longest.value:.0f}."
                if longest.value
                else "No text fits beside the weights."
            )
        )
    for requests, found in by_name.items():
        if (fitting := found["requests_that_fit"].value) < requests:
            print(wrapped(f"Of {counted(requests, 'request')}, {fitting:.0f} fit into the memory."))


def _cell(row: Row, numbers: Mapping[str, "Number"], requests: int) -> str:
    """A number of the table; requests that do not fit have no speed."""
    if row.is_speed and numbers["requests_that_fit"].value < requests:
        return DOES_NOT_FIT
    return row.show(numbers[row.name].value)


def _machine_line(machine: "MachineFacts") -> str:
    return (
        f"{machine.name} ({PROVENANCE[machine.provenance]}): {num_bytes(machine.memory_bytes)} of memory,"
        f" {machine.bandwidth_bytes_per_second / 1e9:,.1f} GB/s, {machine.flops_per_second / 1e9:,.0f} GOP/s"
        + (f"; {machine.source}" if machine.source else "")
    )


def plan_object(model: str, machine: "MachineFacts", estimates: Estimates) -> dict[str, Any]:
    """Every number with its formula and inputs."""
    return {
        "model": model,
        "machine": asdict(machine),
        "estimates": [
            {"batch": requests, "numbers": [asdict(number) for number in estimate]}
            for requests, estimate in estimates.items()
        ],
    }
