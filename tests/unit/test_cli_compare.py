"""`pellucid compare` with the fake model: counts, verdicts, text and JSON output."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from pellucid.backends.ops import ForwardBatch, HostArray, KVCache
from pellucid.facts.formulas import token_passes
from support.command_line import CommandLine, InterruptedDecoder
from support.fake_model import FakeDecoder

SETTINGS = ("--seed", "1", "--max-tokens", "24", "--ignore-eos")


def compare(pellucid: CommandLine, *more: str) -> tuple[int, str, dict[str, list[str]]]:
    """Status, stdout, and the cells of each row of the table by the row's name."""
    ran = pellucid("compare", "h e y", *SETTINGS, *more)
    lines = ran.out.splitlines()
    (titles,) = (
        index for index, line in enumerate(lines) if "with KV cache" in line and "vs" in line
    )
    rows = {}
    for line in lines[titles + 2 :]:
        name, *cells = [cell for cell in line.strip().split("  ") if cell.strip()]
        rows[name.strip()] = [cell.strip() for cell in cells]
        if name.startswith("KV cache"):
            break
    return ran.status, ran.out, rows


def test_the_table_counts_what_went_through_the_model(pellucid: CommandLine) -> None:
    status, _, rows = compare(pellucid)
    cached, naive = token_passes(5, 24, True), token_passes(5, 24, False)
    assert status == 0
    assert rows["output tokens"] == ["24", "24"]
    assert rows["tokens through the model"] == [str(cached), str(naive), f"{naive / cached:.1f}x"]
    assert rows["KV cache at the end"] == ["32 bytes", "0 bytes"]


def test_the_verdict_is_yes_to_the_last_bit(pellucid: CommandLine) -> None:
    _, out, _ = compare(pellucid)
    assert "same tokens: yes, all 24; log-probabilities: the same to the last bit" in out
    assert re.search(r"speed: [\d.]+x with the cache, at 28 tokens", out)
    assert "time per token (ms)" in out and "prompt and output so far (tokens)" in out
    assert "Without the cache the keys and values" in out


class ForgetfulDecoder(FakeDecoder):
    """Goes wrong where a step computes one token and relies on the cache for the rest."""

    def __init__(self, shift: float, flip: bool) -> None:
        super().__init__()
        self.shift, self.flip = np.float32(shift), flip

    def forward(self, batch: ForwardBatch, kv_cache: KVCache) -> HostArray:
        logits = super().forward(batch, kv_cache)
        if len(batch.token_ids) == 1 and batch.positions[0] >= 12:
            logits[:, 0] += self.shift
            logits = -logits if self.flip else logits
        return logits


def test_other_tokens_are_found(pellucid: CommandLine) -> None:
    pellucid.decoder = ForgetfulDecoder(0.0, flip=True)
    _, out, _ = compare(pellucid, "--temperature", "0")
    # Positions 5 .. 12 hold outputs 0 .. 7; the step at position 12 gives output 8.
    assert "same tokens: NO, they differ from output token 8 on" in out


def test_other_logprobs_of_the_same_tokens_are_found(pellucid: CommandLine) -> None:
    pellucid.decoder = ForgetfulDecoder(1e-6, flip=False)
    _, out, _ = compare(pellucid, "--temperature", "0")
    assert "same tokens: yes, all 24; log-probabilities: NOT the same" in out


def test_a_drawn_seed_is_drawn_once(pellucid: CommandLine) -> None:
    ran = pellucid("compare", "h e y", "--max-tokens", "12", "--json")
    result = json.loads(ran.out)
    seeds = {arm["seed"] for arm in result["arms"]}
    assert len(seeds) == 1
    assert f"seed {seeds.pop()}" in ran.err


def test_json_has_both_arms_and_what_they_say(pellucid: CommandLine) -> None:
    ran = pellucid("compare", "h e y", *SETTINGS, "--json")
    result = json.loads(ran.out, parse_constant=pytest.fail)
    cached, naive = result["arms"]
    assert (result["identical_tokens"], result["identical_logprobs"]) == (True, True)
    assert cached["token_ids"] == naive["token_ids"]
    assert (cached["use_kv_cache"], naive["use_kv_cache"]) == (True, False)
    for arm in (cached, naive):
        assert arm["metrics"]["num_processed_tokens"] == arm["expected_token_passes"]
        assert [entry["num_tokens"] for entry in arm["seconds_by_num_tokens"]] == [*range(6, 29)]
        assert all(entry["seconds"] > 0 for entry in arm["seconds_by_num_tokens"])
    assert naive["metrics"]["flops"] > cached["metrics"]["flops"] > 0
    assert naive["metrics"]["kv_cache_bytes"] == 0
    assert [entry["num_tokens"] for entry in result["speed_ratio"]] == [11, 17, 28]


def test_the_speed_is_quoted_at_512_tokens_when_the_text_gets_there(pellucid: CommandLine) -> None:
    pellucid.context_length = 1024
    prompt = "a" * 500
    ran = pellucid("compare", prompt, "--seed", "1", "--max-tokens", "20", "--ignore-eos")
    assert re.findall(r"time per token at (\d+)", ran.out) == ["512"]  # 519 would say the same
    assert re.findall(r"with the cache, at (\d+) tokens", ran.out) == ["512"]


def test_a_single_token_has_no_speed(pellucid: CommandLine) -> None:
    ran = pellucid("compare", "h e y", "--seed", "1", "--max-tokens", "1", "--ignore-eos")
    assert ran.status == 0
    assert "same tokens: yes, all 1" in ran.out
    assert "speed: " not in ran.out


def test_ctrl_c_in_the_second_run_compares_what_is_there(pellucid: CommandLine) -> None:
    # Forwards: 2 + 24 with the cache, 2 to warm up without, then 5 more.
    pellucid.decoder = InterruptedDecoder(2 + 24 + 2 + 5)
    status, out, rows = compare(pellucid)
    assert status == 130
    assert rows["output tokens"] == ["24", "6"]
    assert len(rows["tokens through the model"]) == 2  # no ratio of runs of unequal length
    assert "same tokens: yes, all 6, as far as the shorter run got" in out


def test_ctrl_c_in_the_first_run_leaves_nothing_to_compare(pellucid: CommandLine) -> None:
    pellucid.decoder = InterruptedDecoder(2 + 5)
    ran = pellucid("compare", "h e y", *SETTINGS)
    assert (ran.status, ran.out) == (130, "")
    assert "stop: Ctrl-C" in ran.err


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_an_image(pellucid: CommandLine, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"plot{suffix}"
    assert pellucid("compare", "h e y", *SETTINGS, "--plot", str(file)).status == 0
    magic = {".png": b"\x89PNG\r\n\x1a\n", ".svg": b"<?xml"}[suffix]
    assert file.read_bytes().startswith(magic)


def test_what_keeps_an_image_from_being_written_is_said_first(
    pellucid: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> str:
        ran = pellucid("compare", "h e y", "--plot", str(path))
        assert (ran.status, ran.out) == (2, "")
        return ran.err

    assert ".png" in refused(tmp_path / "plot.doc")
    assert str(tmp_path / "missing") in refused(tmp_path / "missing" / "plot.png")
    monkeypatch.setattr("pellucid.cli.output.image_path.find_spec", lambda name: None)
    assert "pip install 'pellucid[plot]'" in refused(tmp_path / "plot.png")
    assert not pellucid.loaded
