"""The prompt-lookup proposer: drafts the tokens that followed the last occurrence of the same n-gram (Saxena
2023), and continues in a passage that a text copies after the text has edited it."""

from collections.abc import Mapping, Sequence

from pellucid.scheduling.block import CacheSalt
from pellucid.scheduling.request import Request
from pellucid.speculation.proposers.ngram_index import MAX_MATCH, NgramIndex
from pellucid.speculation.proposers.proposer import Proposer

# Other answers are looked at if fewer tokens than this agree within the request's own text. As many make a
# passage that the text copies.
ENOUGH = 4
# Tokens in which a text may depart from the passage that it copies, and places on either side of the expected
# one where the passage may go on.
MAX_EDIT = 4
# Tokens that have to agree with another answer: pairs are right too seldom.
MIN_MATCH_ELSEWHERE = 3
# Of ended requests, for each salt; the oldest half is dropped when there are more.
MAX_RECENT_TOKENS = 16_384
MAX_SALTS = 8
NO_TOKEN = -1  # between two answers


class PromptLookup(Proposer):
    """Looks the end of each text up in the request's own prompt and output, and in recent answers to requests
    with the same salt.

    Args:
        uses_recent_answers: False looks at the request's own text alone.
    """

    def __init__(self, uses_recent_answers: bool = True) -> None:
        self._texts: dict[str, tuple[Request, GrowingText]] = {}
        self._recent = RecentAnswers() if uses_recent_answers else None

    def propose(
        self, requests: Sequence[Request], max_drafts: Mapping[str, int]
    ) -> dict[str, list[int]]:
        drafts: dict[str, list[int]] = {}
        for request in requests:
            name = request.request_id
            text = self._text(request)
            length, place = text.find_continuation()
            found = _continuation(text.token_ids, place, max_drafts[name])
            if length < ENOUGH and self._recent is not None:
                shortest = max(length + 1, MIN_MATCH_ELSEWHERE)
                end = text.token_ids[-MAX_MATCH:]
                elsewhere = self._recent.find(request.cache_salt, end, shortest, max_drafts[name])
                found = elsewhere or found
            if found:
                drafts[name] = found
        return drafts

    def forget(self, requests: Sequence[Request]) -> None:
        for request in requests:
            own, _ = self._texts.get(request.request_id, (None, None))
            if own is request:
                del self._texts[request.request_id]
            if self._recent is not None and not request.is_beam:
                self._recent.add(request)

    def _text(self, request: Request) -> "GrowingText":
        """The request's text as it is now."""
        own, text = self._texts.get(request.request_id, (None, None))
        if text is None or own is not request:
            text = GrowingText()
            self._texts[request.request_id] = request, text
        text.extend(request.token_ids(len(text), request.num_known_tokens))
        return text


class GrowingText(NgramIndex):
    """A request's text, and the passage that its end copies: an earlier part of the text."""

    def __init__(self) -> None:
        super().__init__()
        self._distance = 0  # from the passage to its copy, in tokens; 0: there is no passage
        self._copied_end: int  # if there is one, index of the first token that departs from it

    def find_continuation(self) -> tuple[int, int]:
        """Finds where the text's last tokens occurred before.

        Returns:
            How many tokens agree, and the index of the token after them. If no n-gram agrees shortly after the
            text has departed from a passage: 0, and the index at which the passage probably continues. (0, 0)
            if there is neither.
        """
        length, place = self.find(self.token_ids)
        if length >= ENOUGH:
            self._distance, self._copied_end = len(self) - place, len(self)
        elif not length and self._distance:
            place = self._after_edit()
        return length, place

    def _after_edit(self) -> int:
        """Where the passage continues: at its next token that equals the text's last one, if it is near (tokens were
        inserted or removed), else as if each token had been replaced by one. 0 if the edit is too long."""
        text, end, distance = self.token_ids, len(self), self._distance
        while (
            self._copied_end < end and text[self._copied_end] == text[self._copied_end - distance]
        ):
            self._copied_end += 1
        if end - self._copied_end > MAX_EDIT:
            return 0
        expected, departure = end - distance, self._copied_end - distance
        for shift in range(MAX_EDIT + 1):
            for place in (expected + shift, expected - shift):
                if departure < place < end and text[place - 1] == text[-1]:
                    return place
        return expected


class RecentAnswers:
    """The answers to requests that have ended, apart for each salt. Holds a bounded number of tokens."""

    def __init__(self) -> None:
        # The least recently added salt first; of each the newer half of its texts and the older one.
        self._by_salt: dict[CacheSalt, list[NgramIndex]] = {}

    @property
    def num_tokens(self) -> int:
        return sum(len(text) for texts in self._by_salt.values() for text in texts)

    def add(self, request: Request) -> None:
        """Adds the answer to a request, and the prompt's last tokens, so that its beginning is found."""
        half = MAX_RECENT_TOKENS // 2
        answer = [*request.prompt_token_ids[-MAX_MATCH:], *request.output_token_ids]
        answer = [*answer[: half - 1], NO_TOKEN]
        texts = self._by_salt.pop(request.cache_salt, [])
        if not texts or len(texts[0]) + len(answer) > half:
            texts = [NgramIndex(), *texts[:1]]
        texts[0].extend(answer)
        self._by_salt[request.cache_salt] = texts
        if len(self._by_salt) > MAX_SALTS:
            del self._by_salt[next(iter(self._by_salt))]

    def find(self, salt: CacheSalt, end: Sequence[int], shortest: int, count: int) -> list[int]:
        """Up to `count` tokens that followed an end like this in an answer.

        Args:
            salt: of the request that asks.
            end: the last tokens of its text.
            shortest: tokens that have to agree.
        """
        for text in self._by_salt.get(salt, ()):
            length, place = text.find(end)
            if length >= shortest:
                found = text.token_ids[place : place + count]
                return found[: found.index(NO_TOKEN)] if NO_TOKEN in found else found
        return []


def _continuation(text: Sequence[int], place: int, count: int) -> list[int]:
    """Up to `count` tokens from `place` on; none for place 0. A continuation that reaches the end of the text goes
    on with itself: a loop is continued for as long as is wanted."""
    if not place:
        return []
    drafts = list(text[place : place + count])
    period = len(text) - place
    while len(drafts) < count:
        drafts.append(drafts[-period])
    return drafts
