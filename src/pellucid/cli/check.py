"""`pellucid check`: whether models open, what is left out, what ends their answers, and what they need."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pellucid.cli.output.json_output import print_json
from pellucid.cli.output.terminal import EXIT_FAILED
from pellucid.cli.parsing.models import resolve_model
from pellucid.cli.parsing.options import MODEL_HELP, Json, StoredModelOptions
from pellucid.cli.parsing.panels import OTHERS, argument
from pellucid.inputs.config import EngineConfig

if TYPE_CHECKING:
    from pellucid.checking.report import ModelReport


def check(
    models: Annotated[list[str], argument("MODEL...", MODEL_HELP)],
    *,
    model_options: StoredModelOptions,
    dump: bool = OTHERS.flag(
        "Print what the headers of one model say as JSON, for a report of a bug: without names of people,"
        " paths and texts.",
        "--dump",
    ),
    json: Json = False,
) -> None:
    """Check whether models open, by their headers.

    Says for each what is left out, its facts, which tokens end an answer, what its chat template does, and
    what it needs in memory. Reads no weights: of a model on the hub only configuration and headers are
    fetched. The exit status is 1 if one of them does not open.
    """
    settings = model_options.settings()
    if dump:
        print_json(_dumped(models, settings))
        return
    with _no_garbage_collection():
        reports = _checked(models, settings, shows=not json)
    if json:
        from pellucid.cli.check_report import report_object

        print_json([report_object(report) for report in reports])
    if any(report.refusal is not None for report in reports):
        raise typer.Exit(EXIT_FAILED)


def _checked(models: list[str], settings: dict[str, Any], shows: bool) -> "list[ModelReport]":
    """A report for each model, shown as soon as it is there."""
    from pellucid.checking.check_model import check_model
    from pellucid.checking.report import ModelReport
    from pellucid.cli.check_report import print_report
    from pellucid.facts.host_memory import available_memory

    memory_bytes = available_memory()
    reports = []
    for model in models:
        try:
            config = EngineConfig(model=resolve_model(model, must_fit=False), **settings)
            report = check_model(config, memory_bytes)
        except (ValueError, OSError) as error:
            report = ModelReport(model, refusal=str(error))
        reports.append(report)
        if shows:
            print_report(report, is_first=len(reports) == 1)
    return reports


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Imports and headers make objects by the hundred thousand, and no garbage: looking for it takes a twentieth of
    the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _dumped(models: list[str], settings: dict[str, Any]) -> dict[str, Any]:
    """The headers of the only model."""
    from pellucid.checking.dump import dump_model

    if len(models) != 1:
        raise ValueError(f"--dump: takes one model, got {len(models)}")
    return dump_model(EngineConfig(model=resolve_model(models[0], must_fit=False), **settings))
