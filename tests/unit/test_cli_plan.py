"""`pellucid plan`: known shapes, checkpoints, machines, and what is refused."""

import json
import re
from pathlib import Path

import pytest

from pellucid.backends.base import Backend
from pellucid.facts.machine import Machine
from pellucid.loading.hub import BUNDLED_MODEL
from pellucid.shapes import SHAPES
from support.command_line import CommandLine
from support.refusals import check_refusals
from support.tiny_shape import TINY_SHAPE

MACHINE = ("--memory", "20GB", "--bandwidth", "20", "--peak", "500")


def test_a_shape_on_a_machine_that_is_given(pellucid: CommandLine) -> None:
    ran = pellucid(
        "plan", "--shape", "qwen2.5-0.5b", *MACHINE, "--batch", "1,4", "--gen", "24", "--json"
    )
    assert ran.status == 0
    found = json.loads(ran.out)
    assert found["model"] == "qwen2.5-0.5b" and found["machine"]["provenance"] == "E"
    assert found["machine"]["memory_bytes"] == 20e9 and found["machine"]["flops_per_second"] == 5e11
    assert [each["batch"] for each in found["estimates"]] == [1, 4]
    one, four = (
        {number["name"]: number for number in each["numbers"]} for each in found["estimates"]
    )
    # 12 KiB a token, 536 tokens in 17 blocks of 32.
    assert one["kv_bytes_per_request"]["value"] == 17 * 32 * 12 * 1024
    assert four["kv_bytes_batch"]["value"] == 4 * one["kv_bytes_per_request"]["value"]
    seconds = one["decode_bytes"]["value"] / 20e9
    assert one["decode_seconds"]["value"] == seconds
    assert one["decode_seconds"]["inputs"]["bound"] == "memory"


def test_the_weights_of_a_checkpoint_are_those_in_its_files(pellucid: CommandLine) -> None:
    ran = pellucid("plan", str(BUNDLED_MODEL), *MACHINE, "--json")
    numbers = {
        number["name"]: number["value"] for number in json.loads(ran.out)["estimates"][0]["numbers"]
    }
    file_bytes = sum(path.stat().st_size for path in BUNDLED_MODEL.glob("*.safetensors"))
    assert numbers["weight_bytes"] == pytest.approx(file_bytes, rel=0.02)
    assert numbers["weight_bytes"] == pytest.approx(2 * numbers["parameters"], rel=0.01)


def test_people_get_a_table_with_formulas(pellucid: CommandLine) -> None:
    ran = pellucid("plan", "--shape", "qwen3-30b-a3b", *MACHINE, "--quantization", "int4")
    assert ran.status == 0
    assert "as given (estimated): 18.6 GiB of memory, 20.0 GB/s, 500 GOP/s" in ran.out
    assert "weights (counted): bytes of all weights, scales included" in ran.out
    assert "price" not in ran.out
    ran = pellucid("plan", "--shape", "llama-3.1-8b", "--machine", "a100-80g", "--price", "2")
    assert "NVIDIA A100 SXM 80 GB (estimated): 74.5 GiB" in ran.out
    assert "price of 10^6 tokens" in ran.out


def test_one_of_several_processes(pellucid: CommandLine) -> None:
    """Bytes and work of a process are its share; kv-heads that cannot be divided are in each."""

    def numbers(shape: str, num_processes: int) -> tuple[dict[str, float], str]:
        asked = ("plan", "--shape", shape, *MACHINE, "--tensor-parallel-size", str(num_processes))
        [found, *_] = json.loads(pellucid(*asked, "--json").out)["estimates"]
        return {each["name"]: each["value"] for each in found["numbers"]}, pellucid(*asked).out

    whole, said = numbers("llama-3.1-8b", 1)
    assert "processes" not in said
    share, said = numbers("llama-3.1-8b", 4)
    assert "Bytes and times are those of each of 4 processes, which has 1 of 4 shares" in said
    for name in ("kv_bytes_per_token", "kv_bytes_per_request", "decode_flops"):
        assert 4 * share[name] == whole[name]
    for name in ("weight_bytes", "decode_bytes"):
        assert 4 * share[name] == pytest.approx(whole[name], rel=0.01)
    share, said = numbers("smollm2-135m", 2)
    assert "all KV heads, since some layer's cannot be divided by 2" in " ".join(said.split())
    assert share["kv_bytes_per_token"] == numbers("smollm2-135m", 1)[0]["kv_bytes_per_token"]


def test_this_machine_is_measured(pellucid: CommandLine) -> None:
    ran = pellucid("plan", "--shape", "smollm2-135m", "--memory", "100MiB", "--batch", "64")
    assert "this machine (measured): 100 MiB of memory" in ran.out
    assert "The weights alone are larger than the memory." in ran.out
    assert row(ran.out, "an answer, at best") == ["does not fit"]


def test_bench_gives_the_times_as_measured(
    pellucid: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(
        Backend, "measure", lambda *_: Machine("portable", 1, 32e9, 9e11, 4e11, 2e11)
    )
    monkeypatch.setitem(SHAPES, "tiny", TINY_SHAPE)  # type: ignore[call-overload]
    asked = ("--shape", "tiny", "--quantization", "int8")
    sizes = ("--prompt", "9", "--gen", "3", "--batch", "1,4")
    before = pellucid("plan", *asked, *sizes)
    assert "To see times as this machine reaches them: pellucid bench --shape tiny" in before.out
    assert "--quantization int8" in before.out.splitlines()[-1]
    assert "as measured" not in before.out
    assert pellucid("bench", *asked, *sizes, "--depth", "0,9", "--repetitions", "1").status == 0
    after = pellucid("plan", *asked, *sizes)
    for label in ("first token", "each token", "an answer", "tokens per second"):
        assert len(row(after.out, f"{label}, as measured")) == 2
    assert "pellucid bench --shape" not in after.out
    # Other formats have other kernels, and other machines other speeds.
    assert "as measured" not in pellucid("plan", *asked[:2], *sizes).out
    assert "as measured" not in pellucid("plan", *asked, *sizes, "--machine", "l4-24g").out


def test_requests_that_do_not_fit_have_no_speed(pellucid: CommandLine) -> None:
    shape = ("plan", "--shape", "qwen2.5-0.5b", "--prompt", "30000", "--gen", "1000")
    ran = pellucid(*shape, *MACHINE[2:], "--memory", "2GiB", "--batch", "1,8")
    assert "Of 8 requests, 2 fit into the memory." in ran.out
    assert row(ran.out, "longest context alone") == ["32,768", "32,768"]  # more would fit
    assert row(ran.out, "each token, at best")[1] == "does not fit"
    assert row(ran.out, "each token, at best")[0].endswith(" ms")


def test_a_length_that_was_asked_for_and_fits_is_no_shortage(pellucid: CommandLine) -> None:
    asked = ("--shape", "qwen3-8b", "--max-model-len", "8k", "--kv-cache-memory", "2GiB")
    ran = pellucid("plan", *asked, *MACHINE[2:], "--memory", "24GiB")
    assert row(ran.out, "longest context alone")[0] == "8,000"
    assert "No text of" not in ran.out


def row(table: str, label: str) -> list[str]:
    """The cells of a row."""
    line = next(each for each in table.splitlines() if each.startswith(f"{label}  "))
    return re.split(r"  +", line)[1:]


REFUSED = (
    "--shape nothere",
    "--shape smollm2-135m org/name",
    "--machine abacus",
    "--bandwidth 0",
    "--device mps --machine a100-80g",
    "--memory many",
    "--peak nan",
    "--price -1",
    "--batch 1,1",
    "--prompt 0",
    "--shape smollm2-135m --prompt 8190",
)


def test_what_cannot_be_planned(pellucid: CommandLine) -> None:
    check_refusals("plan", REFUSED, lambda words: pellucid.refuse("plan", *words.split()))
