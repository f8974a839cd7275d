"""Log-probabilities in the form of OpenAI's chat completions and responses, and of Ollama."""

from collections.abc import Sequence
from typing import Any

import msgspec

from pellucid.outputs import LogprobsAt, RequestOutput
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


def token_name(token_id: int, text: str, by_id: bool | None) -> str:
    """What a token is called: by its text, or by its id in vLLM's form."""
    return f"token_id:{token_id}" if by_id else text


def token_logprobs(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    logprobs: Sequence[LogprobsAt],
    num_top: int,
    by_id: bool | None = None,
) -> list[TokenLogprob]:
    """The log-probability of each token, with those of the likeliest ones at its position.

    Args:
        tokenizer: the model's; it knows the tokens' bytes.
        token_ids: of the answer.
        logprobs: at the same positions.
        num_top: likeliest tokens to write.
        by_id: tokens are called by their ids.
    """
    written = []
    for token_id, at in zip(token_ids, logprobs, strict=True):
        top = [
            TopLogprob(
                token_name(other_id, entry.decoded_token, by_id),
                entry.logprob,
                list(tokenizer.token_bytes(other_id)),
            )
            for other_id, entry in at.items()
            if entry.rank <= num_top
        ]
        chosen = at[token_id]
        own_bytes = list(tokenizer.token_bytes(token_id))
        name = token_name(token_id, chosen.decoded_token, by_id)
        written.append(TokenLogprob(name, chosen.logprob, own_bytes, top))
    return written


def prompt_logprobs_of(output: RequestOutput) -> list[Any] | None:
    """vLLM's form: for each position a mapping from token ids."""
    if output.prompt_logprobs is None:
        return None
    return [
        at
        and {
            str(token_id): {
                "logprob": entry.logprob,
                "rank": entry.rank,
                "decoded_token": entry.decoded_token,
            }
            for token_id, entry in at.items()
        }
        for at in output.prompt_logprobs
    ]
