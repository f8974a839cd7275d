"""Command-line options that the scripts which compare engines share."""

import argparse
import os
import platform
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from contestant import ENGINES

FORMATS = {  # the engines that run each, ours first
    "int4": ("pellucid", "llama.cpp", "llama-bench", "ik_llama.cpp", "openvino"),
    "int8": ("pellucid", "llama.cpp", "llama-bench", "ik_llama.cpp", "openvino"),
    "int8-channel": (
        "pellucid",
        "openvino",
    ),  # a scale per output, which is what OpenVINO's int8 has
    "bf16": ("pellucid", "llama.cpp", "llama-bench", "ik_llama.cpp", "vllm", "transformers"),
    "gguf": ("pellucid", "llama.cpp"),  # the same GGUF file, in whatever types it has
}
PROGRAMS = ("llama-bench", "ik_llama.cpp")  # found on the PATH; they run one sequence at a time


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that all have."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument(
        "weights",
        type=Path,
        help="directory written by make_weights.py, or with --formats gguf a GGUF file",
    )
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=["int4", "int8", "bf16"])
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=["pellucid", "llama.cpp"])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--python",
        nargs="+",
        default=[],
        metavar="ENGINE=PATH",
        help="interpreter of an engine, where it is not this one",
    )
    parser.add_argument("--json", type=Path, help="also writes every run there")
    return parser


def interpreters(pairs: Sequence[str]) -> dict[str, str]:
    """Of each engine that has one of its own."""
    return dict(pair.split("=", 1) for pair in pairs)


def end_on_sigterm() -> None:
    """As on Ctrl-C: or the engines would stay behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def processor() -> str:
    """The model's name, as Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
