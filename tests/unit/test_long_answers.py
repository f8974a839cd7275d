"""Answers of tens of thousands of tokens: what a token costs does not grow with the answer."""

import asyncio
import json
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from pellucid.engine.async_stream import AsyncTokenStream
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.outputs import CompletionDelta, CompletionOutput
from pellucid.scheduling.answer_tokens import AnswerTokens, SeenTokens
from pellucid.text.responses import tool_calls
from pellucid.text.responses.format import find_response_format
from pellucid.text.responses.parser import ResponseParser
from pellucid.text.responses.template import ResponseTemplate
from pellucid.text.responses.tool_calls import literal_ending
from support.answers import CHATML, TOOLS
from support.fake_model import fake_engine

PIECE = "x" * 4000  # long, so that copies of the text outweigh all else that a token takes
FOLDER = Path(find_response_format.__code__.co_filename).with_name("families")


def test_a_view_of_an_answer_is_a_sequence_of_its_tokens() -> None:
    view, tokens = AnswerTokens([5, 6, 7, 8], 3, (9,), 0), [5, 6, 7, 9]
    assert [view[index] for index in range(-4, 4)] == [*tokens, *tokens]
    assert list(view) == tokens and view[1:] == tokens[1:] and view[::-2] == tokens[::-2]


def test_what_of_an_answer_is_settled_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    between, looks = AnswerTokens._between, []
    monkeypatch.setattr(AnswerTokens, "_between", lambda *of: looks.append(of[1:]) or between(*of))
    seen, tokens = SeenTokens(), [5, 6, 7, 8, 9]
    for length in range(1, 6):
        view = AnswerTokens(tokens, length, (), length - (length == 3))
        assert seen.compare(view) == (length - 1, [tokens[length - 1]])
        seen.extend([tokens[length - 1]], view)
    assert looks == [(0, 1), (1, 2), (2, 3), (2, 4), (4, 5)]
    seen.cut(1)
    assert seen.compare(AnswerTokens(tokens, 1, (4, 7), 1)) == (1, [4, 7])
    assert seen.compare([6, 5]) == (0, [6, 5]) and len(seen) == 1


def bytes_taken(calls: Iterable[Callable[[], object]]) -> int:
    """The sum of the memory that each call takes at its highest: a call that copies a text takes its length."""
    total = 0
    tracemalloc.start()
    try:
        for call in calls:
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            call()
            total += tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    return total


@pytest.mark.parametrize("fields", [{}, {"logprobs": 2}, {"stop": "end"}, {"min_tokens": 9}])
def test_an_answer_twice_as_long_takes_twice_the_memory_traffic(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(num_tokens: int) -> int:
        engine = fake_engine(context_length=1024)
        monkeypatch.setattr(engine.tokenizer, "token_bytes", lambda token_id: PIECE.encode())
        params = SamplingParams(max_tokens=num_tokens, ignore_eos=True, temperature=0, **fields)
        output = engine.add_request([1, 2, 3], params)
        found = bytes_taken([engine.step] * num_tokens)
        assert output.finished and output.outputs[0].text == PIECE * num_tokens
        return found

    assert taken(60) < 2.5 * taken(30)


def test_what_a_slow_reader_has_not_read_is_gathered_in_pieces() -> None:
    async def taken(num_deltas: int) -> int:
        stream = AsyncTokenStream(lambda stream: None)
        delta = CompletionDelta("r", 0, PIECE, [0] * 1000, [{}] * 1000, None, None)
        found = bytes_taken([lambda: stream.receive(delta)] * num_deltas)
        (unread,) = stream.take()
        assert unread.text == PIECE * num_deltas
        assert len(unread.token_ids) == len(unread.logprobs or ()) == 1000 * num_deltas
        return found

    assert asyncio.run(taken(200)) < 2.5 * asyncio.run(taken(100))


@pytest.mark.parametrize(
    ("family", "opening"),
    [
        ("hermes", "<think>\n"),
        ("hermes", ""),
        ("hermes", '<tool_call>\n{"name": "weather", "arguments": {"city": "'),
        ("hermes", '<tool_call>\n{"name": "weather", "arguments": "{'),
        ("hermes", '<tool_call>\n{"arguments": {"city": "'),
        ("qwen3_coder", "<tool_call>\n<function=weather>\n<parameter=city>\n"),
        ("glm", "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>"),
    ],
)
def test_every_part_of_an_answer_is_read_in_pieces(
    family: str, opening: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = json.loads((FOLDER / f"{family}.json").read_text(encoding="utf-8"))
    template = ResponseTemplate.compile(record["response_template"], family)
    num_searched = 0
    searched = tool_calls.searched

    def counted(pattern: Any, text: str, position: int) -> Any:
        nonlocal num_searched
        num_searched += len(text) - position
        return searched(pattern, text, position)

    monkeypatch.setattr(tool_calls, "searched", counted)

    def taken(num_pieces: int) -> int:
        nonlocal num_searched
        num_searched = 0
        parser = ResponseParser(template, CHATML, TOOLS)
        parser.push(opening)
        return num_searched + bytes_taken([lambda: parser.push(PIECE[:1000])] * num_pieces)

    assert taken(200) < 2.5 * taken(100)


@pytest.mark.parametrize(
    ("pattern", "ending"),
    [
        (r"<p=(?P<key>[^>]+)>\n?(?P<value>.*?)\n?</p>", "</p>"),
        (r"(?P<key>a)=(?P<value>.*?)\send", "end"),
        (r"(?P<key>a)=(?P<value>.*?)\.", ""),
        (r"(?P<key>a)=(?P<value>.*?)(?:;)", ""),
        (r"(?P<key>a)=(?P<value>.*?)x|y", ""),
        (r"(?i)(?P<key>a)=(?P<value>.*?)end", ""),
        (r"(?P<key>a)(?!b)(?P<value>.*?)end", ""),
    ],
)
def test_what_every_match_of_a_pattern_ends_with(pattern: str, ending: str) -> None:
    assert literal_ending(pattern) == ending


def test_a_text_that_grows_is_a_text() -> None:
    output = CompletionOutput(0, "a\r\n")
    output.append_text("b\rc\n")
    assert output == CompletionOutput(0, "a\r\nb\rc\n") != CompletionOutput(0)
    assert "text='a\\r\\nb\\rc\\n'" in repr(output)
    output.text = "new"
    assert output.text == "new"
