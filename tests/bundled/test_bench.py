"""`pellucid bench` on the bundled model and this machine: what it counts, not the speed."""

import json

import pytest

from pellucid.cli import main

ARGUMENTS = ["bench", "--prompt", "8", "--gen", "2", "--batch", "1,2", "--depth", "16", "--json"]


@pytest.mark.parametrize("backend", ["numpy", "auto"])
def test_the_bundled_model(backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGUMENTS, "--repetitions", "1", "--backend", backend]) == 0
    *tests, machine = json.loads(capsys.readouterr().out)
    assert [test["test"] for test in tests] == ["pp8", "tg2@16", "tg2@16x2"]
    assert all(test["tokens_per_second"] > 0 for test in tests)
    assert machine["num_threads"] >= 1
    for ceiling in (
        "bandwidth_bytes_per_second",
        "peak_int8_ops",
        "peak_bf16_flops",
        "peak_f32_flops",
    ):
        assert machine[ceiling] > 1e6  # a machine of this century
