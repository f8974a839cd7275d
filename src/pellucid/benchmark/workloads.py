"""The workloads of `bench`: prefill of whole prompts, and decode at a given depth."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Prefill:
    """One prompt from the first token to its first answer token."""

    num_prompt_tokens: int

    batch = 1
    depth = 0
    temperature = 0.0
    top_p = 1.0

    @property
    def test(self) -> str:
        return f"pp{self.num_prompt_tokens}"

    @property
    def num_tokens(self) -> int:
        """Tokens whose rate is reported; at the end, positions in the KV cache."""
        return self.num_prompt_tokens

    num_positions = num_tokens


@dataclass(frozen=True)
class Decode:
    """`num_output_tokens` steps of one token for each of `batch` sequences, which begin with `depth`
    positions in the KV cache. Tokens are drawn as `temperature` and `top_p` say, by default greedily."""

    num_output_tokens: int
    depth: int = 0
    batch: int = 1
    temperature: float = 0.0
    top_p: float = 1.0

    @property
    def test(self) -> str:
        sequences = f"x{self.batch}" if self.batch > 1 else ""
        return f"tg{self.num_output_tokens}@{self.depth}{sequences}"

    @property
    def num_prompt_tokens(self) -> int:
        """Of one sequence. At depth 0 the first step computes the prompt's only token."""
        return max(self.depth, 1)

    @property
    def num_tokens(self) -> int:
        """Tokens whose rate is reported, of all sequences together."""
        return self.batch * self.num_output_tokens

    @property
    def num_positions(self) -> int:
        """Of one sequence in the KV cache, at the end."""
        return self.depth + self.num_output_tokens


Workload: TypeAlias = Prefill | Decode
