"""Prompt lookup: drafts are the tokens that followed the last occurrence of the text's last n-gram."""

import random

import pytest

from pellucid.scheduling.block import NO_SALT, CacheSalt
from pellucid.scheduling.request import Request
from pellucid.speculation.proposers.ngram_index import (
    MAX_MATCH,
    MAX_TRIED,
    MIN_MATCH,
    NgramIndex,
)
from pellucid.speculation.proposers.prompt_lookup import (
    ENOUGH,
    MAX_EDIT,
    MAX_RECENT_TOKENS,
    MAX_SALTS,
    PromptLookup,
    RecentAnswers,
)
from support.courses import Courses
from support.scheduling import make_request

COURSES = Courses("prompt_lookup_courses")


def request_with(name: str, prompt: list[int], output: list[int]) -> Request:
    request = make_request(name, prompt=tuple(prompt), max_tokens=1000)
    request.output_token_ids = output
    return request


def definition(text: list[int]) -> tuple[int, int]:
    """What `NgramIndex.find` finds, by a search in O(n)."""
    best, best_place, num_tried = 0, 0, 0
    for place in range(len(text) - 1, MIN_MATCH - 1, -1):
        if text[place - MIN_MATCH : place] != text[-MIN_MATCH:] or num_tried == MAX_TRIED:
            continue
        num_tried += 1
        length = MIN_MATCH
        while length < min(place, MAX_MATCH) and text[place - 1 - length] == text[-1 - length]:
            length += 1
        if length > best:
            best, best_place = length, place
    return best, best_place


@pytest.mark.parametrize("num_values", [1, 2, 4, 30])
def test_the_index_finds_what_a_search_finds(num_values: int) -> None:
    rng = random.Random(num_values)
    index = NgramIndex()
    for _ in range(120):
        index.extend([rng.randrange(num_values) for _ in range(rng.choice([1, 1, 1, 2, 5]))])
        assert index.find(index.token_ids) == definition(index.token_ids)


@pytest.mark.parametrize("seed", range(16))
def test_drafts_of_random_copies(seed: int) -> None:
    """Answers that copy passages with edits, of several callers, one after another."""
    rng = random.Random(seed)
    lookup, seen, num_right = PromptLookup(rng.random() < 0.8), [], 0
    passages = [[rng.randrange(40) for _ in range(60)] for _ in range(3)]
    for number in range(10):
        request = request_with(f"r{number % 4}", rng.choice(passages)[: rng.randrange(60)], [])
        request.cache_salt = rng.choice([NO_SALT, NO_SALT, CacheSalt("salt")])
        copied = rng.choice([*passages, rng.choice(passages)[:5] * 9])
        while copied and rng.random() < 0.97:
            drafts = lookup.propose([request], {request.request_id: rng.choice([1, 4, 9])})
            seen.append(drafts)
            copied = copied[rng.choice([0] * 20 + [1, 3, 5, 8]) :]  # some tokens are left out
            following = [rng.randrange(40)] if rng.random() < 0.1 else copied[: rng.choice([1, 2])]
            num_right += drafts.get(request.request_id, [])[:1] == following[:1]
            request.output_token_ids += following
            copied = copied[len(following) :]
        if rng.random() < 0.8:
            lookup.forget([request])
    COURSES.check(seed, {"steps": len(seen), "right": num_right}, seen)


PASSAGE = list(range(100, 130))


def draft_at(answer: list[int], from_: int, count: int = 3) -> list[int]:
    """The drafts behind `answer`, if there were drafts since its first `from_` tokens."""
    lookup = PromptLookup(uses_recent_answers=False)
    request = request_with("a", [*PASSAGE, 1, 2, 3], [])
    found: dict[str, list[int]] = {}
    for length in range(from_, len(answer) + 1):
        request.output_token_ids = answer[:length]
        found = lookup.propose([request], {"a": count})
    return found.get("a", [])


@pytest.mark.parametrize("drafted_before", [ENOUGH, 10])
def test_a_copy_goes_on_behind_an_edit(drafted_before: int) -> None:
    copied = PASSAGE[:10]
    # A token is replaced.
    assert draft_at([*copied, 7], drafted_before) == PASSAGE[11:14]
    assert draft_at([*copied, 7, 8], drafted_before) == PASSAGE[12:15]
    # One is removed, and three are.
    assert draft_at([*copied, PASSAGE[11]], drafted_before) == PASSAGE[12:15]
    assert draft_at([*copied, PASSAGE[13]], drafted_before) == PASSAGE[14:17]
    # One is inserted: the passage goes on as soon as one of its tokens stands there.
    assert draft_at([*copied, 7, PASSAGE[10]], drafted_before) == PASSAGE[11:14]


def test_a_copy_that_departs_for_long_has_ended() -> None:
    copied, other = PASSAGE[:10], [7, 8, 9, 10, 11, 12]
    for length in range(1, MAX_EDIT + 1):
        assert draft_at([*copied, *other[:length]], ENOUGH)
    for length in range(MAX_EDIT + 1, len(other) + 1):
        assert draft_at([*copied, *other[:length]], ENOUGH) == []


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
    lookup = PromptLookup(uses_recent_answers=False)
    for number in range(500):
        request = request_with(f"r{number % 7}", [1, 2, 3], [4])
        lookup.propose([request], {request.request_id: 1})
        if number % 3:
            lookup.forget([request])
            assert request.request_id not in lookup._texts
    assert len(lookup._texts) <= 7


def test_another_request_of_that_name_keeps_its_text() -> None:
    lookup = PromptLookup()
    old, new = (request_with("a", [1, 2, 3, 1], [2]) for _ in range(2))
    lookup.propose([old], {"a": 1})
    lookup.propose([new], {"a": 1})
    text = lookup._texts["a"]
    lookup.forget([old])
    assert lookup._texts["a"] is text


def ended(prompt: list[int], output: list[int], salt: CacheSalt = NO_SALT) -> Request:
    request = request_with("ended", prompt, output)
    request.cache_salt = salt
    return request


def test_recent_answers_are_found_by_requests_with_the_same_salt_alone() -> None:
    lookup = PromptLookup()
    lookup.forget(
        [ended([8, 9], [1, 2, 3, 4, 5], salt=CacheSalt("mine")), ended([8], [1, 2, 3, 7, 7])]
    )
    asking = request_with("a", [20, 21], [1, 2, 3])
    for own, expected in (("mine", [4, 5]), (None, [7, 7]), ("yours", None)):
        asking.cache_salt = CacheSalt(own)
        assert lookup.propose([asking], {"a": 6}).get("a") == expected
    asking.cache_salt = CacheSalt("mine")
    assert "a" not in PromptLookup(uses_recent_answers=False).propose([asking], {"a": 6})


def test_the_beginning_of_an_answer_is_found_by_the_end_of_its_prompt() -> None:
    lookup = PromptLookup()
    lookup.forget([ended([5, 6, 7, 8], [1, 2, 3])])
    assert lookup.propose([request_with("a", [9, 6, 7, 8], [1])], {"a": 6}) == {"a": [2, 3]}


def test_the_own_text_is_preferred_unless_an_answer_agrees_longer() -> None:
    lookup = PromptLookup()
    lookup.forget([ended([], [1, 2, 3, 4, 50])])
    own = request_with("a", [3, 4, 60, 0, 9, 9], [3, 4])
    assert lookup.propose([own], {"a": 1}) == {"a": [60]}
    longer = request_with("b", [3, 4, 60, 0, 9, 9], [2, 3, 4])
    assert lookup.propose([longer], {"b": 1}) == {"b": [50]}
    enough = request_with("c", [1, 2, 3, 4, 70, 0], [1, 2, 3, 4])
    assert lookup.propose([enough], {"c": 1}) == {"c": [70]}


def test_no_draft_reaches_from_one_answer_into_the_next() -> None:
    lookup = PromptLookup()
    lookup.forget([ended([], [1, 2, 3, 4]), ended([], [5, 6, 7, 8])])
    assert lookup.propose([request_with("a", [0], [2, 3, 4])], {"a": 6}) == {}
    assert lookup.propose([request_with("b", [0], [1, 2, 3])], {"b": 6}) == {"b": [4]}


def test_recent_answers_are_bounded() -> None:
    rng = random.Random(1)
    recent = RecentAnswers()
    for number in range(80):
        output = rng.choices(range(1000), k=rng.choice([10, 500, 40_000]))
        recent.add(ended([1, 2, 3], output, salt=CacheSalt(str(number % 11))))
        assert recent.num_tokens <= MAX_SALTS * MAX_RECENT_TOKENS
        salt = CacheSalt(str(number % 11))
        start = max(0, min(len(output), MAX_RECENT_TOKENS // 2 - 10) - 10)
        end = output[start : start + 4]
        assert recent.find(salt, end, 3, 2) == output[start + 4 : start + 6]
    assert recent.find(b"0", [1], 1, 2) == []
