"""What a backend needs to draw tokens within its step."""

import math
from dataclasses import dataclass, field
from typing import TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

TokenIds: TypeAlias = npt.NDArray[np.int32]
TokenMask: TypeAlias = npt.NDArray[np.uint32]
_LARGEST = float(np.finfo(np.float32).max)
_SMALLEST = float(np.finfo(np.float32).tiny)  # of normal numbers


def sharpness(temperature: float) -> float:
    """log2(e) / temperature, by which differences of logits are multiplied; a float32, never 0, which is greedy.

    Temperatures above 10^38 count as 10^38, which gives all tokens the same weight.
    """
    return float(np.float32(max(_SMALLEST, min(math.log2(math.e) / temperature, _LARGEST))))


class DrawSettings(TypedDict, total=False):
    """How the tokens of one completion are drawn; made once. `execution/sampling_order.py` defines the parameters, and
    those that are off are left out.

    Attributes:
        seed, stream: of the random numbers; always there.
        sharpness: log2(e) / temperature, a float32; 0 for the largest logit, greedily; always there.
        bias_ids: [N] each once.
        biases: [N] added to their logits.
        num_prompt_tokens: how many tokens of the text are the prompt's; left out, none.
    """

    seed: int
    stream: int
    sharpness: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    bias_ids: TokenIds
    biases: npt.NDArray[np.float64]
    num_prompt_tokens: int


@dataclass(frozen=True, slots=True)
class DrawTable:
    """The tokens to draw in a step: a column for each input of a draw, an entry for each of N draws.

    Attributes:
        rows: [N] of the step's logits, in ascending order.
        settings: [N] the same object for all tokens of a completion.
        positions: [N] of the tokens in their requests.
        allowed: [N] masks [ceil(V / 32)] with a bit for each token, the lowest of a word first; None: all tokens.
        forbidden: [N] lists of token ids; None: no token.
        texts: [N] prompt (as far as the settings say) and output, for penalties; None where there are none.
    """

    rows: list[int] = field(default_factory=list)
    settings: list[DrawSettings] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    allowed: list[TokenMask | None] = field(default_factory=list)
    forbidden: list[TokenIds | None] = field(default_factory=list)
    texts: list[TokenIds | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    def add(
        self,
        row: int,
        settings: DrawSettings,
        position: int,
        allowed: TokenMask | None = None,
        forbidden: TokenIds | None = None,
        text: TokenIds | None = None,
    ) -> None:
        """Adds a draw; rows come in ascending order."""
        self.rows.append(row)
        self.settings.append(settings)
        self.positions.append(position)
        self.allowed.append(allowed)
        self.forbidden.append(forbidden)
        self.texts.append(text)
