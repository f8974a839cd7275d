"""`pellucid ablate` on the smaller bundled model with native kernels: every part runs and counts right."""

import json

import pytest

from pellucid.cli import main
from pellucid.loading.hub import BUNDLED_DRAFT_MODEL

SMALL = ["--requests", "2", "--max-model-len", "200"]
ARGUMENTS = ["ablate", str(BUNDLED_DRAFT_MODEL), *SMALL, "--json"]


def test_the_smaller_bundled_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ARGUMENTS) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["batching"]) == 4
    assert report["prefix"]["num_cached_tokens"] == 160
    sizes = [each["bytes_per_token"] for each in report["kv_formats"]]
    assert len(sizes) == 3 and sizes == sorted(sizes, reverse=True)
