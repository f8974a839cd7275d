"""Log-probabilities in the form of OpenAI's chat completions and responses, and of Ollama."""

from collections.abc import Sequence

import msgspec

from pellucid.outputs import CompletionDelta, LogprobsAt
from pellucid.text.detokenizer import IncrementalDetokenizer
from pellucid.text.tokenizer import Tokenizer


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


def token_logprobs(
    tokenizer: Tokenizer, token_ids: Sequence[int], logprobs: Sequence[LogprobsAt], num_top: int
) -> list[TokenLogprob]:
    """The log-probability of each token, with those of the likeliest ones at its position.

    Args:
        tokenizer: the model's; it knows the tokens' bytes.
        token_ids: of the answer.
        logprobs: at the same positions.
        num_top: likeliest tokens to write.
    """
    written = []
    for token_id, at in zip(token_ids, logprobs, strict=True):
        top = [
            TopLogprob(entry.decoded_token, entry.logprob, list(tokenizer.token_bytes(other_id)))
            for other_id, entry in at.items()
            if entry.rank <= num_top
        ]
        chosen = at[token_id]
        own_bytes = list(tokenizer.token_bytes(token_id))
        written.append(TokenLogprob(chosen.decoded_token, chosen.logprob, own_bytes, top))
    return written


class TokenSplitter:
    """Splits the deltas of one answer without stop strings into tokens, each with the text that it adds.

    Args:
        tokenizer: the model's.
        prompt_token_ids: before the answer.
        skip_special_tokens: as the engine does.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], skip_special_tokens: bool
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer, prompt_token_ids, skip_special_tokens)

    def split(self, delta: CompletionDelta) -> list[CompletionDelta]:
        """One delta for each token; the last one has the end of the answer."""
        if not delta.token_ids:
            return [delta]
        found = []
        last = len(delta.token_ids) - 1
        for place, token_id in enumerate(delta.token_ids):
            is_end = place == last and delta.finish_reason is not None
            # The text of the token that ended the answer is not shown
            is_shown = not is_end or delta.stop_reason != token_id
            text = self._detokenizer.push(token_id) if is_shown else ""
            found.append(
                CompletionDelta(
                    delta.request_id,
                    delta.index,
                    text + self._detokenizer.flush() if is_end else text,
                    [token_id],
                    None if delta.logprobs is None else [delta.logprobs[place]],
                    delta.finish_reason if is_end else None,
                    delta.stop_reason if is_end else None,
                )
            )
        return found
