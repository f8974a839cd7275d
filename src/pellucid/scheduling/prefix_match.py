"""What a request found in the prefix cache, and why not more."""

from dataclasses import dataclass
from enum import Enum


class MissReason(Enum):
    NEVER_SEEN = "never_seen"  # nobody has computed these tokens, as far as is remembered
    EVICTED = "evicted"  # it was there, and the block was needed for something else
    DIFFERS = "differs"  # another text begins like this one, and goes on differently
    PARTIAL_BLOCK = (
        "partial_block"  # what is left is shorter than a block: only full ones are shared
    )
    DISABLED = "disabled"  # no prefix caching, or prompt_logprobs, for which all has to be computed
    SALT = "salt"  # it is there under another salt, which is another's


@dataclass(frozen=True, slots=True)
class PrefixMiss:
    """Why the match ended where it did.

    Attributes:
        at_token: the first position that was not found.
        near_request_id: of DIFFERS, who computed the block that agrees longest.
        differs_at_token: of DIFFERS, the first position with another token.
        differing_token_ids: of DIFFERS, the tokens there: this request's, the other's.
        num_evicted_since: of EVICTED, findable blocks that were evicted after this one.
    """

    reason: MissReason
    at_token: int
    near_request_id: str | None = None
    differs_at_token: int | None = None
    differing_token_ids: tuple[int, int] | None = None
    num_evicted_since: int | None = None


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What a request found when it was admitted.

    Attributes:
        num_tokens: positions found.
        num_loaded_tokens: those of them that came from the prefix store.
        miss: None if all was found that could be: all but the last token.
    """

    num_tokens: int
    num_loaded_tokens: int
    miss: PrefixMiss | None
