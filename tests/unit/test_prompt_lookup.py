"""Prompt lookup: drafts are the tokens that followed the last occurrence of the text's last n-gram."""

import random

import pytest

from pellucid.execution.proposers.prompt_lookup import NGRAM_LENGTHS, PromptLookup
from pellucid.scheduling.request import Request
from support.scheduling import make_request


def request_with(name: str, prompt: list[int], output: list[int]) -> Request:
    request = make_request(name, prompt=tuple(prompt), max_tokens=1000)
    request.output_token_ids = output
    return request


def definition(text: list[int], count: int) -> list[int]:
    """By search, in O(n) a token."""
    for length in NGRAM_LENGTHS:
        end = text[len(text) - length :]
        for start in range(len(text) - length - 1, -1, -1):
            if len(text) > length and text[start : start + length] == end:
                drafts = list(text)
                for _ in range(count):
                    drafts.append(drafts[start + length + len(drafts) - len(text)])
                return drafts[len(text) :]
    return []


@pytest.mark.parametrize("num_values", [1, 2, 4, 30])
def test_drafts_are_those_of_a_search(num_values: int) -> None:
    rng = random.Random(num_values)
    lookup = PromptLookup()
    request = request_with("a", [rng.randrange(num_values) for _ in range(9)], [])
    for _ in range(120):
        request.output_token_ids += [
            rng.randrange(num_values) for _ in range(rng.choice([1, 1, 1, 2, 5]))
        ]
        count = rng.randrange(1, 9)
        found = lookup.propose([request], {"a": count})
        assert found.get("a", []) == definition(request.token_ids(0, 10**6), count)


def test_a_loop_goes_on_for_as_long_as_is_wanted() -> None:
    request = request_with("a", [7, 1, 2, 3, 1, 2], [3])
    assert PromptLookup().propose([request], {"a": 8}) == {"a": [1, 2, 3, 1, 2, 3, 1, 2]}


def test_texts_of_requests_are_apart() -> None:
    first = request_with("a", [1, 2, 3, 4, 1, 2], [3])
    second = request_with("b", [1, 2, 9, 9, 8], [1, 2])
    lookup = PromptLookup()
    for _ in range(2):  # asked again, nothing is added twice
        found = lookup.propose([first, second], {"a": 1, "b": 2})
        assert found == {"a": [4], "b": [9, 9]}


def test_requests_that_have_ended_are_forgotten() -> None:
    lookup = PromptLookup()
    for number in range(500):
        lookup.propose([request_with(f"r{number}", [1, 2, 3], [4])], {f"r{number}": 1})
    assert len(lookup._texts) <= 67
