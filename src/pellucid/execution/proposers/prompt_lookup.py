"""The prompt-lookup proposer: drafts the tokens that followed the last occurrence of the same n-gram (Saxena
2023)."""

from collections.abc import Mapping, Sequence

from pellucid.scheduling.request import Request

# Longer n-grams first: what follows them is right more often.
NGRAM_LENGTHS = (4, 3, 2)


class PromptLookup:
    """Looks n-grams up in prompt and output of the request itself.

    An n-gram is found in O(1) and a token is added in O(1): a table says where the text goes on behind
    the last occurrence of each n-gram.
    """

    def __init__(self) -> None:
        self._texts: dict[str, _IndexedText] = {}

    def propose(
        self, requests: Sequence[Request], max_drafts: Mapping[str, int]
    ) -> dict[str, list[int]]:
        if len(self._texts) > 2 * len(requests) + 64:  # of requests that have ended, mostly
            running = {request.request_id for request in requests}
            self._texts = {name: self._texts[name] for name in self._texts.keys() & running}
        drafts: dict[str, list[int]] = {}
        for request in requests:
            text = self._texts.get(request.request_id)
            if text is None or text.request is not request:  # or another one of that name
                text = self._texts[request.request_id] = _IndexedText(request)
            text.extend(request.token_ids(len(text), request.num_known_tokens))
            if found := text.continuation(max_drafts[request.request_id]):
                drafts[request.request_id] = found
        return drafts


class _IndexedText:
    """A text that grows, and where it goes on behind the last earlier occurrence of its own end."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._token_ids: list[int] = []
        self._tables: tuple[dict[tuple[int, ...], int], ...] = tuple({} for _ in NGRAM_LENGTHS)
        self._next: int | None = None  # place behind the earlier occurrence

    def __len__(self) -> int:
        return len(self._token_ids)

    def extend(self, token_ids: Sequence[int]) -> None:
        text = self._token_ids
        for token_id in token_ids:
            text.append(token_id)
            self._next = None
            for length, table in zip(NGRAM_LENGTHS, self._tables, strict=True):
                if len(text) < length:
                    continue
                ngram = tuple(text[-length:])
                if self._next is None:
                    self._next = table.get(ngram)
                table[ngram] = len(text)

    def continuation(self, count: int) -> list[int]:
        """Up to `count` tokens. A continuation that reaches the end of the text goes on with itself: a
        loop is continued for as long as is wanted."""
        if self._next is None:
            return []
        text, period = self._token_ids, len(self._token_ids) - self._next
        drafts: list[int] = []
        for index in range(count):
            drafts.append(text[self._next + index] if index < period else drafts[index - period])
        return drafts
