"""StopStringMatcher: where text ends, and which text is held back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.text.responses.reasoning_marks import ReasoningMarks
from pellucid.text.stop_strings import StopStringMatcher, StopStrings


def cut_at_stop(text: str, stop: list[str], include: bool) -> tuple[str, str | None]:
    """The definition, in one shot: the match that ends first; of those that end there, the longest."""
    found = [(text.find(s) + len(s), -len(s), s) for s in stop if s in text]
    if not found:
        return text, None
    end, _, string = min(found)
    return (text[:end] if include else text[: end - len(string)]), string


@st.composite
def split_texts(draw: st.DrawFn) -> list[str]:
    text = draw(st.text(alphabet="ab", max_size=40) | st.text(alphabet="abc", max_size=40))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]


stops = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), max_size=4)


@given(pieces=split_texts(), stop=stops, include=st.booleans())
def test_any_split_gives_the_definition(pieces: list[str], stop: list[str], include: bool) -> None:
    matcher = StopStringMatcher(StopStrings(stop), include)
    out = "".join(matcher.push(piece) for piece in pieces) + matcher.flush()
    assert (out, matcher.matched) == cut_at_stop("".join(pieces), stop, include)


@given(pieces=split_texts(), stop=stops)
def test_holds_back_exactly_what_could_begin_a_stop_string(
    pieces: list[str], stop: list[str]
) -> None:
    matcher = StopStringMatcher(StopStrings(stop))
    text, out = "", ""
    for piece in pieces:
        text, out = text + piece, out + matcher.push(piece)
        if matcher.matched is not None:
            break
        prefixes = {s[:i] for s in stop for i in range(len(s))} | {""}
        assert len(text) - len(out) == max(len(p) for p in prefixes if text.endswith(p))
        assert text.startswith(out)


@given(pieces=split_texts(), stop=stops)
def test_nothing_is_held_back_when_the_stop_string_is_included(
    pieces: list[str], stop: list[str]
) -> None:
    matcher = StopStringMatcher(StopStrings(stop), include_in_output=True)
    for piece in pieces:
        shown = matcher.push(piece)
        assert shown == piece or matcher.matched is not None


def test_long_output_costs_the_same_per_character() -> None:
    matcher = StopStringMatcher(StopStrings(["a" * 500 + "b"]))
    assert sum(len(matcher.push("a" * 100)) for _ in range(1000)) == 100_000 - 500
    assert matcher.flush() == "a" * 500


MARKS = ReasoningMarks(("<think>", "[THINK]"), ("</think>", "[/THINK]"), begins_open=False)
OPEN_MARKS = ReasoningMarks(MARKS.opens, MARKS.closes, begins_open=True)


@pytest.mark.parametrize(
    ("marks", "text", "seen", "matched"),
    [
        (MARKS, "<think>a\nb</think>c\nd", "<think>a\nb</think>c", "\n"),
        (MARKS, "a\n<think>b</think>", "a", "\n"),  # before reasoning they count
        (OPEN_MARKS, "a\nb</think>\n\nc\nd", "a\nb</think>\n\nc", "\n"),  # white space behind it
        (OPEN_MARKS, "a\nb", "a\nb", None),
        (MARKS, "[THINK]\n<think>[/THINK] a\n", "[THINK]\n<think>[/THINK] a", "\n"),
        (MARKS, "<think>\n</think>a<think>\n</think>b\n", "<think>\n</think>a<think>\n</think>b", "\n"),
        (MARKS, "<thin\n", "<thin", "\n"),
    ],
)  # fmt: skip
def test_stop_strings_do_not_count_in_reasoning(
    marks: ReasoningMarks, text: str, seen: str, matched: str | None
) -> None:
    for size in (1, 2, 7, len(text)):
        matcher = StopStringMatcher(StopStrings(["\n", "think>\n"]), reasoning=marks)
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        out = "".join(map(matcher.push, pieces)) + matcher.flush()
        assert (out, matcher.matched) == (seen, matched)


def test_nothing_is_held_back_in_reasoning() -> None:
    matcher = StopStringMatcher(StopStrings(["abc"]), reasoning=OPEN_MARKS)
    assert [matcher.push(piece) for piece in ("ab", "</think>", "ab")] == ["ab", "</think>", ""]
    assert matcher.flush() == "ab"
