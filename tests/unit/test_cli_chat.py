"""`pellucid chat` with the fake model: turns, commands, and prefix hits."""

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from pellucid.backends.ops import ForwardBatch, HostArray, KVCache
from pellucid.cli.chat import _line_editor, history_path
from pellucid.cli.chat_session import ChatSession
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.text.responses.format import ResponseFormat
from pellucid.text.responses.template import ResponseTemplate
from support.command_line import ChatTokenizer, CommandLine, InterruptedDecoder, Ran
from support.fake_model import FakeDecoder, fake_engine

SETTINGS = ("--verbose", "--seed", "1", "--max-tokens", "6", "--block-size", "16")
GREETING = "hello my friend, how are you"


def chat(pellucid: CommandLine, *lines: str, settings: tuple[str, ...] = SETTINGS) -> Ran:
    return pellucid("chat", *settings, stdin="\n".join(lines).encode())


def answer(*said: str, max_tokens: int = 6, temperature: float = 1.0, seed: int = 1) -> str:
    """What the model says after a question, an answer, a question and so on."""
    roles = ("user", "assistant")
    messages = [
        {"role": roles[index % 2], "content": content} for index, content in enumerate(said)
    ]
    engine = fake_engine()
    output = engine.add_request(
        ChatTokenizer().encode_chat(messages),
        SamplingParams(seed=seed, max_tokens=max_tokens, temperature=temperature),
    )
    while not output.finished:
        engine.step()
    return output.outputs[0].text


def cached_and_prompt(ran: Ran) -> list[tuple[int, int]]:
    """For each turn, the tokens found in the cache and all tokens of the conversation."""
    found = re.findall(r"prefill (\d+) tokens? \S+ tok/s(?: \((\d+) cached\))?", ran.err)
    return [(int(cached or 0), int(cached or 0) + int(computed)) for computed, cached in found]


def test_each_answer_goes_on_from_all_that_was_said(pellucid: CommandLine) -> None:
    ran = chat(pellucid, "hi", "and then")
    first = answer("hi")
    assert ran.status == 0
    assert ran.out.splitlines() == [first, answer("hi", first, "and then")]


def test_the_history_is_found_in_the_cache(pellucid: CommandLine) -> None:
    ran = chat(pellucid, GREETING, "what then", "go on")
    turns = cached_and_prompt(ran)
    assert turns[0] == (0, len(GREETING) + 3)
    for (_, before), (cached, prompt) in pairwise(turns):
        # Every full block of the turn before, its answer included up to the last token.
        assert cached >= (before + 5) // 16 * 16 > 0
        assert cached % 16 == 0 and cached < prompt


def test_undo_reset_and_system_change_what_is_said(pellucid: CommandLine) -> None:
    first = answer("hi")
    ran = chat(pellucid, "hi", "and then", "/undo", "so what", "/reset", "hi")
    assert ran.out.splitlines() == [
        first,
        answer("hi", first, "and then"),
        answer("hi", first, "so what"),
        first,
    ]
    assert "forgot: and then" in ran.err
    told = chat(pellucid, "/system be brief", "hi", "/reset", "/system", "hi").out.splitlines()
    assert told[0] != first
    assert told[1] == first
    assert chat(pellucid, "hi", settings=(*SETTINGS, "--system", "be brief")).out == told[0] + "\n"


def test_parameters_between_turns(pellucid: CommandLine) -> None:
    ran = chat(pellucid, "/temperature 0", "/max-tokens 3", "hi")
    assert ran.out.rstrip("\n") == answer("hi", temperature=0, max_tokens=3)
    ran = chat(pellucid, "/temperature 0.5", "/top-p 0.9", "/seed 7", "/stats")
    assert "next answer: temperature 0.5, top_p 0.9, seed 7" in ran.err


def test_save_and_load(pellucid: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"
    said = chat(pellucid, "hi", "and then", f"/save {file}", "go on").out.splitlines()
    saved = [json.loads(line) for line in file.read_text().splitlines()]
    assert [message["content"] for message in saved] == ["hi", said[0], "and then", said[1]]
    assert [message["role"] for message in saved] == ["user", "assistant"] * 2
    ran = chat(pellucid, f"/load {file}", "go on")
    assert ran.out.splitlines() == [said[2]]
    assert f"loaded 2 turns from {file}" in ran.err


def test_stats(pellucid: CommandLine) -> None:
    ran = chat(pellucid, "/stats", GREETING, "go on", "/stats")
    lines = ran.err.splitlines()
    (cached, prompt) = cached_and_prompt(ran)[-1]
    assert lines[0] == "history: 0 turns, 0 of 256 tokens"
    assert any(line.startswith("history: 2 turns, ") for line in lines[1:])
    assert any(
        line.startswith("last answer: time to first token ")
        and f"prefill {prompt - cached} tokens" in line
        and f"({cached} cached)" in line
        for line in lines
    )


def test_help_names_every_command(pellucid: CommandLine) -> None:
    help_lines = chat(pellucid, "/help").err.splitlines()
    names = [line.split()[0] for line in help_lines]
    assert names == sorted(set(names), key=names.index)
    assert {"/help", "/temperature", "/top-p", "/max-tokens", "/system", "/reset"} <= set(names)
    unknown = chat(pellucid, "/nonsense").err
    assert all(name in unknown for name in names)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("/nonsense", ("/nonsense", "/help")),
        ("/temperature", ("/temperature", "T is missing")),
        ("/temperature warm", ("temperature='warm'", "number")),
        ("/temperature -1", ("temperature=-1.0", "at least 0")),
        ("/max-tokens 1.5", ("max_tokens='1.5'", "number")),
        ("/reset now", ("/reset now", "takes no argument")),
        ("/undo", ("/undo", "no turn")),
        ("/load /no/such/file", ("/no/such/file", "No such file")),
        ("/save /no/such/file", ("/no/such/file", "No such file")),
        ("a" * 300, ("303 tokens", "256", "/undo", "/reset")),
    ],
)
def test_what_cannot_be_served_ends_a_script_and_is_named(
    pellucid: CommandLine, line: str, named: tuple[str, ...]
) -> None:
    ran = chat(pellucid, line, "hi")
    (message,) = ran.err.splitlines()
    assert (ran.status, ran.out) == (2, "")
    assert all(part in message for part in named)


def test_a_full_context_is_said(pellucid: CommandLine) -> None:
    pellucid.context_length = 48
    settings = ("-v", "--seed", "1", "--temperature", "0")  # greedy runs into no end token here
    ran = chat(pellucid, "a" * 40, settings=settings)
    assert len(ran.out) == 48 - 43 + len("\n")
    assert "stop: context of 48 tokens is full" in ran.err
    assert "the context of 48 tokens is full: make room with /undo or /reset" in ran.err


def test_ctrl_c_ends_a_script(pellucid: CommandLine) -> None:
    pellucid.decoder = InterruptedDecoder(3)
    ran = chat(pellucid, "hi", "and then")
    assert (ran.status, ran.out) == (130, answer("hi", max_tokens=4) + "\n")
    assert "stop: Ctrl-C" in ran.err


def test_after_ctrl_c_the_chat_goes_on_from_what_was_made(
    pellucid: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    pellucid.decoder = InterruptedDecoder(3)
    session = ChatSession(pellucid.llm(block_size=16), SamplingParams(seed=1, max_tokens=6))
    session.handle("hi")
    session.handle("and then")
    partial = answer("hi", max_tokens=4)
    assert capsys.readouterr().out.splitlines() == [partial, answer("hi", partial, "and then")]


def test_ctrl_c_before_any_text_forgets_the_turn(
    pellucid: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    pellucid.decoder = InterruptedDecoder(0)
    llm = pellucid.llm(max_num_batched_tokens=2)  # the question takes more than one step
    session = ChatSession(llm, SamplingParams(seed=1, max_tokens=6))
    session.handle("hi")
    assert "this turn is forgotten" in capsys.readouterr().err
    session.handle("hi")
    assert capsys.readouterr().out == answer("hi") + "\n"


def test_times_are_shown_on_demand_only(pellucid: CommandLine) -> None:
    quiet = chat(pellucid, "hi", settings=("--seed", "1", "--max-tokens", "6"))
    assert (quiet.memory, quiet.out) == ("", answer("hi") + "\n")
    assert "tok/s" not in quiet.err
    stats = chat(pellucid, "hi", "/stats", settings=("--seed", "1", "--max-tokens", "6"))
    assert "last answer: time to first token" in stats.err and "tok/s" in stats.err


@pytest.mark.parametrize("word", ["exit", "quit", "Bye", "/exit", "/quit", "/bye"])
def test_what_leaves_other_programs_leaves(pellucid: CommandLine, word: str) -> None:
    ran = chat(pellucid, "hi", word, "and then")
    assert (ran.status, ran.out) == (0, answer("hi") + "\n")


def test_regen_answers_again_with_the_next_seed(pellucid: CommandLine) -> None:
    question = next(each for each in ("hi", "hello", "hey", "well") if answer(each, seed=2))
    ran = chat(pellucid, question, "/regen", "and then")
    first, second, third = ran.out.splitlines()
    assert first == answer(question) and second == answer(question, seed=2) != first
    assert third == answer(question, second, "and then", seed=2)  # the first answer is forgotten
    assert "seed 2" in ran.err
    greedy = chat(pellucid, "/temperature 0", "hi", "/regen")
    assert greedy.status == 2 and "the answer would be the same" in greedy.err
    assert "no answer yet" in chat(pellucid, "/regen").err


def test_stop_strings_between_turns(pellucid: CommandLine) -> None:
    text = answer("hi")
    ran = chat(pellucid, f"/stop {text[2:4]}", "hi", "/reset", "/stop", "hi")
    assert ran.out.splitlines() == [text[: text.index(text[2:4])], text]
    assert f"an answer ends at {text[2:4]!r}" in ran.err and "no stop string" in ran.err


def test_a_question_on_the_command_line_is_answered_once(pellucid: CommandLine) -> None:
    ran = pellucid("chat", "hi", "--seed", "1", "--max-tokens", "6", stdin=b"and then\n")
    assert (ran.status, ran.out) == (0, answer("hi") + "\n")
    ran = pellucid("chat", "owner/model", "hi", "--seed", "1", "--max-tokens", "6")
    assert ran.out == answer("hi") + "\n"
    assert pellucid.loaded[-1].model == "owner/model"


class ScriptedDecoder(FakeDecoder):
    """Writes a text, one token a step, whatever it reads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.token_ids = ChatTokenizer().encode(text + "#")

    def forward(self, batch: ForwardBatch, kv_cache: KVCache) -> HostArray:
        logits = np.zeros_like(super().forward(batch, kv_cache))
        logits[:, self.token_ids[min(len(self.batches), len(self.token_ids)) - 1]] = 100
        return logits


def test_reasoning_is_dimmed_on_a_terminal_and_left_out_elsewhere(
    pellucid: CommandLine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    template = ResponseTemplate.compile(
        {
            "start_anchor": "a",
            "fields": {"reasoning_content": {"open": "zz", "close": "yy"}, "content": {}},
        }
    )
    monkeypatch.setattr(
        ChatTokenizer, "response_format", ResponseFormat("test", template, None, {})
    )
    for arguments in (("chat", "hi"), ("run", "owner/model", "hi")):
        pellucid.decoder = ScriptedDecoder("zzlet me seeyyfine")
        ran = pellucid(*arguments, "--temperature", "0")
        assert (ran.status, ran.out.rstrip("\n")) == (0, "fine")
    pellucid.decoder = ScriptedDecoder("zzlet me seeyyfine")
    result = json.loads(pellucid("run", "owner/model", "hi", "--temperature", "0", "--json").out)
    assert (result["content"], result["reasoning"]) == ("fine", "let me see")
    assert result["text"] == "zzlet me seeyyfine"

    pellucid.decoder = ScriptedDecoder("zzlet me seeyyfine")
    session = ChatSession(pellucid.llm(), SamplingParams(temperature=0))
    monkeypatch.setattr("pellucid.cli.output.terminal.is_live", lambda stream: True)
    session.handle("hi")
    screen = capsys.readouterr().out
    assert re.sub(r"\x1b\[2m|\x1b\[0m", "", screen) == "let me see\n\nfine\n"
    assert "\x1b[2ml" in screen and screen.endswith("\n\nfine\n")
    assert session.conversation.turns == [("hi", "fine")]


def test_pasted_lines_are_one_message_and_the_history_lasts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for _ in range(2):  # the second chat finds the first one's message with the key up
        with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
            read = _line_editor(["/help"])
            if not history_path().read_text():
                keys.send_text("\x1b[200~one\rtwo\nthree\x1b[201~ four\r")
            else:
                keys.send_text("\x1b[A\r")
            assert read() == "one\ntwo\nthree four"
    assert history_path().stat().st_mode & 0o077 == 0


def test_a_message_of_several_lines_stands_between_quotes(
    pellucid: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(ChatSession, "answer", lambda _, question: asked.append(question))
    chat(pellucid, '"""one', "", "/undo is text here", '  three"""', '"""hi"""', '""""""', "bye")
    assert asked == ["one\n\n/undo is text here\n  three", "hi"]


def test_parameters_are_set_by_their_names_here_and_in_other_programs(
    pellucid: CommandLine,
) -> None:
    ran = chat(
        pellucid,
        "/set temperature 0",
        "/set parameter num_predict 3",
        "/set stop zz",
        "/show",
        "hi",
    )
    assert ran.out.splitlines() == [answer("hi", max_tokens=3, temperature=0)]
    assert "next answer: greedy" in ran.err and "an answer ends at 'zz'" in ran.err
    for line, error in (
        ("/set colour red", "no such parameter; there are frequency_penalty"),
        ("/set top_k many", "top_k='many': must be a number"),
        ("/set", "NAME VALUE is missing"),
    ):
        assert error in chat(pellucid, line).err


def test_names_of_other_programs_are_aliases(pellucid: CommandLine) -> None:
    ran = chat(pellucid, "hi", "/clear", "hi", "/?")
    assert ran.out.splitlines() == [answer("hi")] * 2
    assert "/help" in ran.err
