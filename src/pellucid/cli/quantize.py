"""`pellucid quantize`: writes a quantized copy of a checkpoint, and shows its quantization errors."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pellucid.cli.output.json_output import print_json
from pellucid.cli.output.terminal import note, print_table
from pellucid.cli.output.units import describe_bytes, num_bytes, seconds, times
from pellucid.cli.parsing.models import exists
from pellucid.cli.parsing.options import Json
from pellucid.cli.parsing.panels import OTHERS, argument
from pellucid.facts.model_names import find_short_name
from pellucid.inputs.config import QUANTIZATIONS
from pellucid.progress import progress

if TYPE_CHECKING:
    from pellucid.quantizing import QuantizationReport

FORMATS = "|".join(name for name in QUANTIZATIONS if name != "none")


def quantize(
    model: Annotated[str, argument("IN", "Directory in Hugging Face layout or hub id.")],
    output: Annotated[Path, argument("OUT", "Directory to write; must not exist.")],
    *,
    quantization: str = OTHERS.option(
        FORMATS, "The format of all matrices; norms stay floats.", default="int4"
    ),
    revision: str | None = OTHERS.option("REV", "Branch, tag or commit of a hub id."),
    json: Json = False,
) -> None:
    """Write a copy of a model with integer weights.

    The copy loads as it is. Shows how much the rounding changed each matrix.
    """
    if find_short_name(model) is not None and not exists(model):
        raise ValueError(
            f"{model}: stands for a file in few bits already; name a directory or owner/name of the whole model"
        )
    from pellucid.quantizing import quantize_model

    start = time.monotonic()
    with progress("quantize", describe_bytes) as show:
        report = quantize_model(model, output, quantization, revision, show)
    duration = time.monotonic() - start
    if json:
        print_json(_report_object(report, duration))
    else:
        _print_report(report)
    ratio = times(report.bytes_before / report.bytes_after)
    note(
        f"{report.output}: {report.quantization}, {num_bytes(report.bytes_after)}, {ratio} smaller, "
        f"in {seconds(duration)}"
    )


def _print_report(report: "QuantizationReport") -> None:
    """A line per matrix on stdout. Errors are relative: 8 % is usual for 4 bits, 0.5 % for 8."""
    lines = [
        (
            matrix.name,
            f"{matrix.num_rows} x {matrix.num_columns}",
            f"{matrix.error.relative_rms:.3%}",
            f"{matrix.error.largest:.3g}",
        )
        for matrix in report.matrices
    ]
    lines.append(("all", "", f"{report.relative_rms_error:.3%}", ""))
    print_table(("matrix", "shape", "RMS error", "largest error"), lines)


def _report_object(report: "QuantizationReport", duration: float) -> dict[str, Any]:
    return {
        "model": str(report.source),
        "output": str(report.output),
        "quantization": report.quantization,
        "bytes_before": report.bytes_before,
        "bytes_after": report.bytes_after,
        "seconds": duration,
        "relative_rms_error": report.relative_rms_error,
        "matrices": [
            {
                "name": matrix.name,
                "shape": [matrix.num_rows, matrix.num_columns],
                "relative_rms_error": matrix.error.relative_rms,
                "largest_error": matrix.error.largest,
            }
            for matrix in report.matrices
        ],
    }
