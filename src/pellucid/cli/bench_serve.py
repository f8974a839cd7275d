"""`pellucid bench-serve`: measures an OpenAI-compatible server under load."""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from pellucid.cli.output.image_path import Plot, check_image_path
from pellucid.cli.output.terminal import EXIT_FAILED, EXIT_INTERRUPTED, note
from pellucid.cli.output.units import describe_count
from pellucid.cli.parsing.options import DEFAULT_URL, Url
from pellucid.cli.parsing.panels import OUTPUT, SERVER, WORKLOAD, Options, Panel
from pellucid.progress import progress

if TYPE_CHECKING:
    from pellucid.benchmark.load.result import Outcome
    from pellucid.benchmark.load.traffic import Traffic

LEVEL = Panel("What counts as good")
NOTEWORTHY_DELAY = 0.05  # seconds of sending late
DEFAULT_CONCURRENCY = 8
APIS = ("chat", "completions")


@dataclass(frozen=True)
class TrafficOptions(Options):
    """Fields of `Traffic`."""

    num_requests: int = WORKLOAD.option("N", "Requests in all.", default=100)
    rate: float | None = WORKLOAD.option(
        "R", "Requests per second that arrive at random times (a Poisson process)."
    )
    concurrency: int | None = WORKLOAD.option(
        "N",
        "Requests at a time: when one ends, the next one is sent. Instead of --rate.",
        show_default=str(DEFAULT_CONCURRENCY),
    )
    prompt_tokens: str = WORKLOAD.option(
        "LENGTHS",
        "Tokens of prompts: N, FROM-TO (uniform) or MEDIAN:P95 (log-normal).",
        default="512",
    )
    output_tokens: str = WORKLOAD.option(
        "LENGTHS", "Tokens of answers, in the same way.", default="64"
    )
    prefix_tokens: int = WORKLOAD.option(
        "N", "Tokens of a shared beginning in front of each prompt.", default=0
    )
    num_prefixes: int = WORKLOAD.option(
        "N", "Number of different shared beginnings; each request takes one of them.", default=1
    )
    seed: int = WORKLOAD.option(
        "S", "The same seed gives the same prompts, lengths and times.", default=0
    )

    def traffic(self) -> "Traffic":
        from pellucid.benchmark.load.traffic import Lengths, Traffic

        if self.rate is not None and self.concurrency is not None:
            raise ValueError("--rate and --concurrency: only one can say when requests are sent")
        concurrency = DEFAULT_CONCURRENCY if self.concurrency is None else self.concurrency
        return Traffic(
            num_requests=self.num_requests,
            prompts=Lengths.parse("--prompt-tokens", self.prompt_tokens),
            outputs=Lengths.parse("--output-tokens", self.output_tokens),
            rate=self.rate,
            concurrency=concurrency,
            prefix_tokens=self.prefix_tokens,
            num_prefixes=self.num_prefixes,
            seed=self.seed,
        )


@dataclass(frozen=True)
class TargetOptions(Options):
    """Which model of the server is asked, and how."""

    model: str | None = WORKLOAD.option(
        "NAME",
        "The model, by the server's name for it.",
        show_default="the first one that the server lists",
    )
    api: str = WORKLOAD.choice(
        APIS, "The route: /v1/chat/completions or /v1/completions.", default="chat"
    )
    ignore_eos: bool = WORKLOAD.flag(
        "Ask for answers of exactly the planned length, by a field that some servers do not know; or"
        " let the model end its answers.",
        "--ignore-eos/--stop-at-eos",
        default=True,
    )
    timeout: float = WORKLOAD.option(
        "SECONDS", "Most seconds for a complete answer.", default=600.0
    )
    api_key: str | None = SERVER.option("KEY", "Key for a server that requires one.")

    def __post_init__(self) -> None:
        if self.api not in APIS:
            raise ValueError(f"--api {self.api}: must be one of {', '.join(APIS)}")
        if not self.timeout > 0:
            raise ValueError(f"--timeout {self.timeout}: must be above 0")


def bench_serve(
    url: Url = DEFAULT_URL,
    *,
    traffic_options: TrafficOptions,
    target_options: TargetOptions,
    ttft_slo: float | None = LEVEL.option("SECONDS", "Most seconds to the first token."),
    itl_slo: float | None = LEVEL.option(
        "SECONDS", "Most seconds per token after the first one, on average over an answer."
    ),
    plot: Plot = None,
    json: bool = OUTPUT.flag(
        "Write a JSON object instead of a table: all measured values, in seconds.", "--json"
    ),
) -> None:
    """Measure an OpenAI-compatible server under load.

    Shows how long callers wait for the first token, between tokens and for the complete answer. Also shows
    the throughput, and the goodput: requests per second that met the limits. Counts failed requests by
    their error.
    """
    from pellucid.benchmark.load.result import LoadResult, ServiceLevel
    from pellucid.cli.load_report import Load, load_object, print_load, write_load_image
    from pellucid.cli.output.json_output import print_json

    check_image_path(plot)
    level, traffic = ServiceLevel(ttft_slo, itl_slo), traffic_options.traffic()
    model, outcomes, interrupted = _measure(url, target_options, traffic)
    result = LoadResult(outcomes, level)
    load = Load(url, model, target_options.api, traffic, result)
    if result.largest_delay > NOTEWORTHY_DELAY:
        note(
            f"a request was sent {result.largest_delay:.2f} s late: this program, not the server, was the"
            " bottleneck"
        )
    if json:
        print_json(load_object(load))
    else:
        print_load(load)
    if plot is not None and result.completed:
        write_load_image(load, plot)
        note(f"plot: {plot}")
    if interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    raise typer.Exit(0 if result.completed else EXIT_FAILED)


def _measure(
    url: str, options: TargetOptions, traffic: "Traffic"
) -> "tuple[str, list[Outcome], bool]":
    """The model's name, what became of each request, and whether Ctrl-C ended the load."""
    from pellucid.benchmark.load.sender import Target, first_model, send_load
    from pellucid.server_client import ServerClient

    outcomes: list[Outcome] = []
    model = ""

    async def measure() -> None:
        nonlocal model
        async with aclosing(ServerClient(url, options.api_key, options.timeout)) as client:
            model = options.model or await first_model(client)
            target = Target(client, model, options.api, options.ignore_eos, options.timeout)
            writer = await target.prompt_writer(traffic)
            with progress("requests", describe_count("requests")) as show:

                def note_outcome(outcome: "Outcome") -> None:
                    outcomes.append(outcome)
                    show(len(outcomes), traffic.num_requests)

                await send_load(target, traffic, writer, note_outcome)

    try:
        asyncio.run(measure())
    except KeyboardInterrupt:
        if not outcomes:
            raise
        return model, outcomes, True
    return model, outcomes, False
