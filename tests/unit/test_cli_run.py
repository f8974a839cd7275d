"""`pellucid run` with the fake model: stdout, stderr and exit status."""

import json

import numpy as np
import pytest

from pellucid.backends.base import ThreadUse
from pellucid.backends.ops import ForwardBatch, HostArray, KVCache
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.outputs import RequestOutput
from support.command_line import ChatTokenizer, CommandLine, InterruptedDecoder
from support.fake_model import FakeBackend, FakeDecoder, fake_engine
from support.refusals import check_refusals


def answer(prompt: str, **params: object) -> RequestOutput:
    """The same request without the command line."""
    engine = fake_engine()
    output = engine.add_request(prompt, SamplingParams(**params))
    while not output.finished:
        engine.step()
    return output


def test_stdout_is_the_text_alone(pellucid: CommandLine) -> None:
    ran = pellucid("run", "h e y", "--seed", "1", "--max-tokens", "20", "--ignore-eos")
    expected = answer("h e y", seed=1, max_tokens=20, ignore_eos=True)
    assert ran.status == 0
    assert ran.out == expected.outputs[0].text != ""


def test_it_says_when_a_model_can_only_continue(
    pellucid: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChatTokenizer, "has_chat_template", False)
    said = pellucid("run", "h e y", "--max-tokens", "1").err.splitlines()[0]
    assert said.endswith("has no chat template: it continues the prompt")
    for silent in ("--raw", "--quiet"):
        assert said not in pellucid("run", "h e y", "--max-tokens", "1", silent).err


def test_the_last_line_says_what_it_cost_and_how_to_repeat_it(pellucid: CommandLine) -> None:
    ran = pellucid("run", "h e y", "--seed", "7", "--max-tokens", "9", "--ignore-eos", "-v")
    (line,) = ran.err.splitlines()
    parts = line.removeprefix("done: ").split(" · ")
    assert parts[0].startswith("time to first token ")
    assert parts[1].startswith("prefill 5 tokens ") and parts[1].endswith(" tok/s")
    assert parts[2].startswith("decode 8 tokens ")
    assert parts[3:] == ["KV cache 32 bytes", "stop: max_tokens 9", "temperature 1, seed 7"]


LONG = ["--temperature", "0.61", "--top-p", "0.95", "--top-k", "20", "--min-p", "0.05"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--max-tokens", "9"],
        ["--max-tokens", "9", "--temperature", "0"],
        ["--max-tokens", "200", *LONG],
        ["--max-model-len", "20", "--ignore-eos", *LONG],
        ["--max-tokens", "9", "--beam-width", "2"],
    ],
)
def test_what_follows_an_answer_has_two_rows_at_most(
    pellucid: CommandLine, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("pellucid.cli.output.terminal.shows_rows", lambda: True)
    ran = pellucid("run", "h e y", *arguments)
    rows = ran.err.splitlines()
    assert len(rows) <= 2 and max(map(len, rows)) <= 80, rows
    assert ran.memory == "" and "stop: " in ran.err


def test_it_says_that_other_programs_use_the_cores(
    pellucid: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeBackend, "thread_use", ThreadUse(most=8, num_threads=3))
    ran = pellucid("run", "h e y", "--seed", "7", "--max-tokens", "9", "--ignore-eos", "-v")
    assert " · 3 of 8 threads: other programs use the cores · KV cache" in ran.err


def test_a_drawn_seed_repeats_the_answer(pellucid: CommandLine) -> None:
    first = pellucid("run", "h e y", "--max-tokens", "20")
    seed = first.err.rsplit("seed ", 1)[1].strip()
    assert pellucid("run", "h e y", "--max-tokens", "20", "--seed", seed).out == first.out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--max-tokens", "3"), "max_tokens 3"),
        (("--max-tokens", "200"), "end token 0 (#)"),
        (("--stop-token-id", "0", "--ignore-eos"), "stop token 0 (#)"),
        (("--max-time", "1e-9"), "max_time 1e-09 s"),
    ],
)
def test_why_it_stopped(pellucid: CommandLine, arguments: tuple[str, ...], reason: str) -> None:
    seed = next(
        seed
        for seed in range(100)
        if 3 < len(answer("h e y", seed=seed, max_tokens=200).outputs[0].token_ids) < 30
    )
    ran = pellucid("run", "h e y", "--seed", str(seed), "-v", *arguments)
    assert f" · stop: {reason} · " in ran.err
    assert ran.status == 0


def test_a_stop_string_and_the_full_context(pellucid: CommandLine) -> None:
    free = answer("h e y", seed=1, max_tokens=20, ignore_eos=True).outputs[0].text
    common = ("run", "h e y", "--seed", "1", "--ignore-eos")
    ran = pellucid(*common, "--stop", free[4:7])
    assert ran.out == free[: free.index(free[4:7])]
    assert f"stop: stop string {free[4:7]!r}" in ran.err
    ran = pellucid(*common, "--stop", free[4:7], "--include-stop")
    assert ran.out == free[: free.index(free[4:7]) + 3]
    ran = pellucid(*common, "--max-model-len", "20")
    assert ran.out == free[:15]
    assert "stop: the context is full" in ran.err
    assert "stop: context of 20 tokens is full" in pellucid(*common, "-c", "20", "-v").err


def test_every_option_reaches_the_engine(pellucid: CommandLine) -> None:
    params = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.01,
        "typical_p": 0.95,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "seed": 5,
        "logprobs": 2,
        "min_tokens": 1,
        "max_tokens": 6,
        "max_time": 100.0,
    }
    knobs = {
        "backend": "numpy",
        "quantization": "int8",
        "kv_cache_dtype": "f32",
        "block_size": 16,
        "max_num_batched_tokens": 64,
        "max_model_len": 128,
        "num_threads": 1,
        "revision": "main",
    }
    arguments = [
        argument
        for name, value in {**params, **knobs}.items()
        for argument in (f"--{name.replace('_', '-')}", str(value))
    ]
    ran = pellucid(
        *("run", "some/model", "hi", *arguments, "--no-kv-cache", "--include-stop", "--ignore-eos"),
        *("--stop", "xyz", "--stop", "zyx", "--stop-token-id", "30", "--stop-token-id", "31"),
        "--json",
    )
    result = json.loads(ran.out)
    flags = {"include_stop_str_in_output": True, "ignore_eos": True}
    stops = {"stop": ["xyz", "zyx"], "stop_token_ids": [30, 31]}
    assert result["parameters"].items() >= {**params, **flags, **stops}.items()
    knobs |= {"model": "some/model", "use_kv_cache": False}
    assert result["engine"].items() >= knobs.items()


def test_json_is_the_whole_answer(pellucid: CommandLine) -> None:
    arguments = ("--seed", "3", "--top-k", "4", "--max-tokens", "8", "--logprobs", "6")
    ran = pellucid("run", "h e y", "--ignore-eos", "--json", *arguments)
    expected = answer("h e y", seed=3, top_k=4, max_tokens=8, logprobs=6, ignore_eos=True)
    completion = expected.outputs[0]
    result = json.loads(ran.out, parse_constant=pytest.fail)  # no NaN, no Infinity
    assert ran.status == 0
    assert result["prompt"] == "h e y"
    assert result["prompt_token_ids"] == expected.prompt_token_ids
    assert result["text"] == completion.text
    assert result["token_ids"] == completion.token_ids
    assert result["cumulative_logprob"] == completion.cumulative_logprob
    assert (result["finish_reason"], result["stop_reason"]) == ("length", "max_tokens")
    assert (result["seed"], result["num_cached_tokens"]) == (3, 0)

    assert completion.logprobs is not None
    for shown, token_id, at in zip(
        result["logprobs"], completion.token_ids, completion.logprobs, strict=True
    ):
        assert shown["token_id"] == token_id
        assert shown["logprob"] == at[token_id].logprob
        assert [entry["rank"] for entry in shown["top"]][:6] == [1, 2, 3, 4, 5, 6]
        # top_k 4 excludes the others: minus infinity is null.
        finals = {entry["rank"]: entry["final_logprob"] for entry in shown["top"]}
        assert finals[1] is not None and finals[5] is None and finals[6] is None

    metrics = result["metrics"]
    assert metrics["num_processed_tokens"] == 5 + 8 - 1
    assert metrics["kv_cache_bytes"] == 32
    assert metrics["prefill_seconds"] > 0
    rate = 7 / metrics["decode_seconds"]
    assert metrics["decode_tokens_per_second"] == pytest.approx(rate)


def test_json_has_what_drafts_have_brought(pellucid: CommandLine) -> None:
    run = ("run", "h e y", "--max-tokens", "20", "--temperature", "0", "--json")
    assert json.loads(pellucid(*run, "--speculation", "off").out)["speculation"] is None
    found = json.loads(pellucid(*run, "--speculation", "ngram").out)["speculation"]
    assert found["reason"] == "every step for which drafts are found has them"
    assert 0 <= found["num_right"] == sum(found["right_by_position"]) <= found["num_drafts"]
    assert found["tokens_per_round"] >= 1 and found["speedup"] > 0


def test_the_models_own_sampling_is_the_default(pellucid: CommandLine) -> None:
    pellucid.defaults = SamplingParams(temperature=0.6, top_p=0.9)
    ran = pellucid("run", "h e y", "--max-tokens", "2", "--seed", "1")
    assert "temperature 0.6, top_p 0.9, seed 1" in ran.err
    ran = pellucid("run", "h e y", "--max-tokens", "2", "--seed", "1", "--top-p", "1")
    assert "temperature 0.6, seed 1" in ran.err
    ran = pellucid("run", "h e y", "--max-tokens", "2", "--temperature", "0")
    assert ran.err.rstrip().endswith("greedy")  # top_p acts on nothing then


def test_without_the_cache_the_text_is_the_same(pellucid: CommandLine) -> None:
    arguments = ("run", "h e y", "--seed", "1", "--max-tokens", "12", "--ignore-eos")
    cached, naive = pellucid(*arguments), pellucid(*arguments, "-v", "--no-kv-cache")
    assert naive.out == cached.out
    assert "KV cache 0 bytes" in naive.err
    assert max(len(batch.token_ids) for batch in pellucid.decoder.batches) == 5 + 11


# -- the prompt ------------------------------------------------------------------------------------


def test_only_one_newline_of_stdin_is_not_the_prompts(pellucid: CommandLine) -> None:
    ran = pellucid("run", "--raw", "--seed", "1", "--json", stdin=b"hi\n\n")
    assert json.loads(ran.out)["prompt"] == "hi\n"


@pytest.mark.parametrize(
    ("stdin", "message"),
    [
        (b"", "error: prompt: is empty; give at least one token\n"),
        (b"ab\xff", "error: PROMPT: stdin is not UTF-8 at byte 2\n"),
    ],
)
def test_a_bad_prompt_on_stdin(pellucid: CommandLine, stdin: bytes, message: str) -> None:
    ran = pellucid("run", stdin=stdin)
    assert (ran.status, ran.out, ran.err) == (2, "", message)


def test_a_prompt_too_long_for_a_path_is_a_prompt(pellucid: CommandLine) -> None:
    pellucid.context_length = 8192
    assert pellucid("run", "a" * 5000, "--max-tokens", "1").status == 0


# -- errors and Ctrl-C -----------------------------------------------------------------------------


REFUSED = (
    "--temperature warm",
    "--top-p 1.5",
    "--block-size 7",
    "--max-tokens 0",
    "--max-model-len 9999",
    "--logprobs 3",
    "--colour",
    "--stop-token-id 99",
)


def test_an_error_is_one_line_and_status_2(pellucid: CommandLine) -> None:
    check_refusals(
        "run", REFUSED, lambda options: pellucid.refuse("run", "h e y", *options.split())
    )


def test_a_traceback_on_demand(pellucid: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELLUCID_TRACEBACK", "1")
    with pytest.raises(ValueError, match="top_p"):
        pellucid("run", "h e y", "--top-p", "0")


class BrokenDecoder(FakeDecoder):
    """Logits turn into NaN after some steps."""

    def forward(self, batch: ForwardBatch, kv_cache: KVCache) -> HostArray:
        logits = super().forward(batch, kv_cache)
        return np.full_like(logits, np.nan) if len(self.batches) > 4 else logits


@pytest.mark.parametrize("json_flag", [(), ("--json",)])
def test_a_request_that_fails_on_its_way(pellucid: CommandLine, json_flag: tuple[str, ...]) -> None:
    pellucid.decoder = BrokenDecoder()
    ran = pellucid("run", "h e y", "--seed", "1", "--ignore-eos", *json_flag)
    text = answer("h e y", seed=1, ignore_eos=True).outputs[0].text[:4]
    assert ran.status == 1
    assert (json.loads(ran.out)["text"] if json_flag else ran.out) == text
    assert "stop: error: " in ran.err


@pytest.mark.parametrize("json_flag", [(), ("--json",)])
def test_ctrl_c_prints_what_was_made(pellucid: CommandLine, json_flag: tuple[str, ...]) -> None:
    pellucid.decoder = InterruptedDecoder(5)
    ran = pellucid("run", "h e y", "--seed", "1", "--ignore-eos", "-v", *json_flag)
    text = answer("h e y", seed=1, ignore_eos=True).outputs[0].text[:6]
    assert ran.status == 130
    assert (json.loads(ran.out)["text"] if json_flag else ran.out) == text
    assert "decode 5 tokens" in ran.err and "stop: Ctrl-C" in ran.err


def test_ctrl_c_lets_out_what_was_held_back(pellucid: CommandLine) -> None:
    text = answer("h e y", seed=1, ignore_eos=True).outputs[0].text[:6]
    pellucid.decoder = InterruptedDecoder(5)
    ran = pellucid("run", "h e y", "--seed", "1", "--ignore-eos", "--stop", text[-1] + "####")
    assert ran.out == text


def test_a_second_ctrl_c_does_not_wait(pellucid: CommandLine) -> None:
    pellucid.decoder = InterruptedDecoder(5, 5)
    ran = pellucid("run", "h e y", "--seed", "1", "--ignore-eos")
    assert ran.status == 130
    assert ran.out == answer("h e y", seed=1, ignore_eos=True).outputs[0].text[:5]
    assert ran.err == "interrupted\n"
