"""The parts of benchmarks/device_check.py that a host can run, on small shapes."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import device_check
from device_parts import baseline, common, engines, speed

from support.host_ops import DEVICE


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(common, "_REPETITIONS", 1)
    monkeypatch.setattr(baseline, "SHAPES", {"tiny": baseline.SHAPES["tiny"]})
    monkeypatch.setattr(engines, "BASELINE_DEPTH", 8)
    monkeypatch.setattr(speed, "HEADS", (4, 2, 16))
    monkeypatch.setattr(speed, "ATTENTION", ((2, 1, 64), (1, 64, 64)))
    monkeypatch.setattr(speed, "PRODUCTS", {"tiny": (48, 64)})


@pytest.mark.parametrize(
    ("part", "num_rows", "unit"),
    [("attention", 2, "SDPA"), ("products", 8, "of bandwidth"), ("baseline", 6, "tok/s")],
)
def test_parts_of_speed(small, part, num_rows, unit):
    rows = list(device_check.PARTS[part][0](DEVICE))
    assert len(rows) == num_rows
    assert all(row.part == part and unit in row.found for row in rows)


def test_the_baseline_decodes_what_a_prompt_gives():
    shape = baseline.SHAPES["tiny"]
    torch.manual_seed(0)
    model = baseline.Baseline(shape, 2, 5, DEVICE)
    tokens = torch.arange(10, device=DEVICE).reshape(2, 5)
    places = torch.arange(5, device=DEVICE)
    whole = model.forward(tokens, places)
    model.forward(tokens[:, :4], places[:4])
    assert torch.equal(model.forward(tokens[:, 4:], places[4:]), whole)


def test_a_part_that_takes_too_long_is_ended_and_says_so():
    (row,) = device_check.run_part("tests", DEVICE, 0.01)
    assert row.found == "ended after its 0 s"
