"""The traffic of a load: lengths, shared prefixes and arrival times of requests, as functions of a seed."""

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

# Nouns that most tokenizers have as one token each.
# fmt: off
WORDS = (
    "apple", "bread", "bridge", "castle", "chair", "cloud", "coat", "corn", "desert", "door",
    "dream", "eagle", "engine", "farm", "field", "fire", "fish", "flower", "forest", "garden",
    "gold", "grass", "hammer", "heart", "hill", "horse", "house", "island", "king", "kitchen",
    "lake", "lamp", "leaf", "letter", "lion", "market", "milk", "mirror", "moon", "morning",
    "mountain", "music", "needle", "ocean", "orange", "paper", "pencil", "river", "road",
    "rock", "rose", "salt", "school", "ship", "silver", "snow", "song", "spring", "star",
    "stone", "storm", "sugar", "summer", "table", "tower", "train", "tree", "valley",
    "village", "wall", "water", "wheel", "window", "winter", "wood",
)
# fmt: on
EXAMPLE_WORDS = (16, 64)  # words of the prompts from which tokens per word are estimated
Z_OF_95 = 1.6448536269514722  # of the standard normal distribution
LONGEST_OF_95 = 4  # a log-normal length is drawn again above so many times its 95th percentile


@dataclass(frozen=True)
class Lengths:
    """A distribution of numbers of tokens.

    Attributes:
        low, high: uniform between both, ends included; or median and 95th percentile.
        is_lognormal: which of them.
    """

    low: int
    high: int
    is_lognormal: bool = False

    @classmethod
    def parse(cls, option: str, text: str) -> "Lengths":
        """ "512": always; "32-1024": uniform; "256:1024": log-normal, by median and 95th percentile.

        Raises:
            ValueError: `text` is none of them; names `option`.
        """
        match = re.fullmatch(r"([0-9]{1,9})(?:([-:])([0-9]{1,9}))?", text)
        if match is not None:
            low, is_lognormal = int(match[1]), match[2] == ":"
            high = int(match[3]) if match[3] else low
            if 1 <= low <= high and (low < high or not is_lognormal):
                return cls(low, high, is_lognormal)
        raise ValueError(
            f"{option}={text!r}: must be N, FROM-TO (uniform) or MEDIAN:P95 (log-normal), whole numbers"
            " of at least 1 in this order"
        )

    def draw(self, chance: random.Random) -> int:
        if not self.is_lognormal:
            return chance.randint(self.low, self.high)
        sigma = math.log(self.high / self.low) / Z_OF_95
        while True:
            length = max(1, round(self.low * math.exp(chance.gauss(0.0, sigma))))
            if length <= LONGEST_OF_95 * self.high:
                return length

    def __str__(self) -> str:
        if self.is_lognormal:
            return f"{self.low} at the median, {self.high} at p95"
        return str(self.low) if self.low == self.high else f"{self.low} to {self.high}"


@dataclass(frozen=True)
class PlannedRequest:
    """One request.

    Attributes:
        due: seconds after the start; 0 where requests wait for each other instead.
        num_prompt_tokens: without the shared prefix, with the chat template.
        num_output_tokens: most tokens of the answer.
        prefix: which shared prefix it begins with.
    """

    index: int
    due: float
    num_prompt_tokens: int
    num_output_tokens: int
    prefix: int


@dataclass(frozen=True)
class Traffic:
    """The requests that are sent to a server.

    Attributes:
        rate: arrivals per second, a Poisson process; None: a request follows when another one ends.
        concurrency: requests at a time where `rate` is None.
        prompts, outputs: tokens of prompts, without the shared prefix, and of answers.
        prefix_tokens: of each shared prefix; 0: prompts share nothing.
        num_prefixes: each request begins with one of so many.
        seed: of everything that is drawn.

    Raises:
        ValueError: a number is outside its range.
    """

    num_requests: int
    prompts: Lengths
    outputs: Lengths
    rate: float | None = None
    concurrency: int = 1
    prefix_tokens: int = 0
    num_prefixes: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (
            ("num_requests", 1),
            ("concurrency", 1),
            ("prefix_tokens", 0),
            ("num_prefixes", 1),
        ):
            if (value := getattr(self, name)) < least:
                raise ValueError(f"{name}={value}: must be at least {least}")
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise ValueError(f"rate={self.rate}: must be a number above 0")

    def requests(self) -> list[PlannedRequest]:
        """In the order of their arrival; the same for the same seed."""
        # Separate generators of random numbers: another rate does not change the lengths.
        arrivals, lengths = (random.Random(f"{self.seed} {what}") for what in ("due", "lengths"))
        due, planned = 0.0, []
        for index in range(self.num_requests):
            planned.append(
                PlannedRequest(
                    index,
                    due,
                    self.prompts.draw(lengths),
                    self.outputs.draw(lengths),
                    lengths.randrange(self.num_prefixes),
                )
            )
            if self.rate is not None:
                due += arrivals.expovariate(self.rate)
        return planned


@dataclass(frozen=True)
class PromptWriter:
    """Writes prompts of about a given number of tokens. Two examples are all that it knows of the tokenizer.

    Attributes:
        tokens_per_word: of our words.
        overhead: tokens that every prompt has besides: those of the chat template.
    """

    traffic: Traffic
    tokens_per_word: float = 1.0
    overhead: float = 0.0

    @classmethod
    def fitted(cls, traffic: Traffic, examples: Sequence[tuple[int, int]]) -> "PromptWriter":
        """From the words and tokens of two prompts of different lengths."""
        (few, few_tokens), (many, many_tokens) = examples
        slope = (many_tokens - few_tokens) / (many - few)
        if slope <= 0:
            return cls(traffic)
        return cls(traffic, slope, max(0.0, few_tokens - slope * few))

    def write(self, request: PlannedRequest) -> str:
        """Shared words, if there are any, then the request's own."""
        shared = round(self.traffic.prefix_tokens / self.tokens_per_word)
        own = max(1, round((request.num_prompt_tokens - self.overhead) / self.tokens_per_word))
        seed = self.traffic.seed
        texts = [words(f"{seed} prefix {request.prefix}", shared)] if shared else []
        return " ".join([*texts, words(f"{seed} prompt {request.index}", own)])


def words(seed: str, count: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=count))
