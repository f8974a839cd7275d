"""The draft policy: drafts where measured times show a gain, and a bound on what they may lose."""

import random

import pytest

from pellucid.facts.formulas import draft_speedup, expected_tokens
from pellucid.speculation.draft_policy import DecodeStep, DraftOutcome, DraftPolicy, StepSeconds
from support.courses import Courses

COURSES = Courses("draft_policy_courses")


class Machine:
    """Steps of so many seconds, and requests whose drafts are right with a probability each.

    Args:
        recomputes: a request has no drafts in the step after a wrong one, but the tokens up to that one again.

    Attributes:
        seconds: of all steps so far.
        num_tokens: that they gave.
    """

    def __init__(
        self,
        acceptance: float,
        row_cost: float,
        draft_cost: float = 0.0,
        seed: int = 0,
        recomputes: bool = False,
    ) -> None:
        self.recomputes = recomputes
        self.rewound: dict[str, int] = {}  # tokens of each request to be computed again
        self.acceptance, self.row_cost, self.draft_cost = acceptance, row_cost, draft_cost
        self.seconds, self.num_tokens = 0.0, 0
        self.drafts: list[int] = []  # of each step
        self.found = 1.0  # how often drafts are found when some are wanted
        self.num_skipped = 0
        self._rng = random.Random(seed)

    def plain(self, num_requests: int) -> float:
        return 1.0 + self.row_cost * (num_requests - 1)

    def step(self, policy: DraftPolicy, names: list[str]) -> None:
        if self.num_skipped < policy.backoff:
            self.num_skipped += 1
            self.seconds += self.plain(len(names))
            self.num_tokens += len(names)
            self.drafts.append(0)
            return
        rewound, self.rewound = self.rewound, {}
        may_have_drafts = [name for name in names if name not in rewound]
        num_skipped, chosen = 0, {}
        if may_have_drafts:
            num_skipped, self.num_skipped = self.num_skipped, 0
            chosen = policy.max_drafts(may_have_drafts)
            if self.found < 1 and self._rng.random() > self.found:
                chosen = {}
        outcomes = []
        for name, num_drafts in chosen.items():
            num_right = 0
            while num_right < num_drafts and self._rng.random() < self.acceptance:
                num_right += 1
            outcomes.append(DraftOutcome(name, min(num_right + 1, num_drafts), num_right))
            self.num_tokens += num_right
            if self.recomputes and num_right < num_drafts:
                self.rewound[name] = num_right + 1
        num_drafts = sum(chosen.values())
        num_rows = len(names) + num_drafts + sum(rewound.values())
        seconds = self.plain(num_rows)
        drafting = self.draft_cost * num_drafts
        step = DecodeStep(len(names), num_drafts, num_rows, seconds, drafting, num_skipped)
        policy.record(outcomes, step)
        self.seconds += seconds + drafting
        self.num_tokens += len(names)
        self.drafts.append(num_drafts)

    def speedup(self, num_requests: int) -> float:
        """Against no drafts at all."""
        return self.num_tokens / num_requests * self.plain(num_requests) / self.seconds


def run(machine: Machine, num_steps: int, num_requests: int = 1, max_drafts: int = 8) -> float:
    policy = DraftPolicy(max_drafts, recomputes=machine.recomputes)
    names = [f"r{number}" for number in range(num_requests)]
    for _ in range(num_steps):
        machine.step(policy, names)
    return machine.speedup(num_requests)


@pytest.mark.parametrize("acceptance", [0.4, 0.7, 0.9, 1.0])
@pytest.mark.parametrize(("row_cost", "draft_cost"), [(0.03, 0.0), (0.1, 0.0), (0.05, 0.1)])
def test_it_comes_close_to_the_best_fixed_number(
    acceptance: float, row_cost: float, draft_cost: float
) -> None:
    best = max(draft_speedup(acceptance, k, draft_cost, 1 + row_cost * k) for k in range(9))
    assert run(Machine(acceptance, row_cost, draft_cost), 1500) > 0.9 * best


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("num_requests", [1, 4, 32])
@pytest.mark.parametrize("acceptance", [0.0, 0.05, 0.2])
@pytest.mark.parametrize("row_cost", [0.1, 0.5, 1.0])
def test_it_is_never_much_slower_than_no_drafts(
    row_cost: float, acceptance: float, num_requests: int, recomputes: bool
) -> None:
    bounds = (0.88, 0.96, 0.99) if recomputes else (0.93, 0.98, 0.99)
    for num_steps, least in zip((16, 64, 1000), bounds, strict=True):
        machine = Machine(acceptance, row_cost, recomputes=recomputes)
        assert run(machine, num_steps, num_requests) >= least


@pytest.mark.parametrize("acceptance", [0.4, 0.7, 0.9, 1.0])
@pytest.mark.parametrize("row_cost", [0.03, 0.1, 0.3])
def test_it_knows_what_tokens_cost_that_are_computed_again(
    acceptance: float, row_cost: float
) -> None:
    def speedup(policy: DraftPolicy) -> float:
        machine = Machine(acceptance, row_cost, recomputes=True)
        for _ in range(1000):
            machine.step(policy, ["r"])
        return machine.speedup(1)

    fixed = (speedup(DraftPolicy(k, decides=False)) for k in (1, 2, 4, 8))
    assert speedup(DraftPolicy(8, recomputes=True)) > 0.85 * max(1.0, *fixed)


@pytest.mark.parametrize("seed", range(24))
def test_decisions_on_a_random_machine(seed: int) -> None:
    """A machine that changes, and requests that come and go."""
    rng = random.Random(seed)
    machine = Machine(0.5, 0.1, rng.choice([0.0, 0.02, 0.2]), seed, rng.random() < 0.3)
    policy, seen = DraftPolicy(rng.choice([1, 4, 8]), recomputes=machine.recomputes), []
    for _ in range(4):
        machine.acceptance = rng.choice([0.0, 0.3, 0.6, 0.9, 1.0])
        machine.row_cost = rng.choice([0.01, 0.05, 0.3, 1.0])
        machine.found = rng.choice([1.0, 1.0, 0.5, 0.05])
        names = [f"r{rng.randrange(9)}" for _ in range(rng.choice([1, 1, 2, 5]))]
        for _ in range(rng.choice([30, 120])):
            if rng.random() < 0.2:
                policy.backoff = 0  # another request has come
            machine.step(policy, list(dict.fromkeys(names)))
            seen.append((machine.drafts[-1], policy.backoff, policy.reason))
    counts = {"drafts": sum(machine.drafts), "tokens": machine.num_tokens}
    COURSES.check(seed, counts, [*seen, machine.seconds])


def test_drafts_that_begin_to_be_right_are_found() -> None:
    machine, policy = Machine(0.0, 0.1), DraftPolicy(8)
    for _ in range(500):
        machine.step(policy, ["r"])
    assert sum(machine.drafts[-40:]) <= 4 and "do not pay" in policy.reason
    machine.acceptance = 0.95
    for _ in range(1500):
        machine.step(policy, ["r"])
    assert sum(machine.drafts[-40:]) > 100 and policy.reason.startswith("drafts pay: ")


def test_requests_whose_drafts_are_right_get_them() -> None:
    policy = DraftPolicy(6)
    for _ in range(40):
        chosen = policy.max_drafts(["right", "wrong"])
        outcomes = [
            DraftOutcome(name, count if name == "right" else 1, count if name == "right" else 0)
            for name, count in chosen.items()
        ]
        rows = 2 + sum(chosen.values())
        policy.record(outcomes, DecodeStep(2, rows - 2, rows, 1 + 0.1 * rows, 0.0))
    policy.record([], DecodeStep(2, 0, 2, 1.2, 0.0))
    assert policy.max_drafts(["right", "wrong"]) == {"right": 6}


@pytest.mark.parametrize(("num_others", "is_remembered"), [(1023, True), (1024, False)])
def test_the_newest_thousand_requests_are_remembered(num_others: int, is_remembered: bool) -> None:
    policy = DraftPolicy(6)
    policy.record([DraftOutcome("right", 6, 6)] * 5, DecodeStep(1, 6, 7, 1.01, 0.0))
    others = [DraftOutcome(f"other {number}", 6, 0) for number in range(num_others)]
    policy.record(others, DecodeStep(1, 0, 1, 1.0, 0.0))
    assert (policy.max_drafts(["right"]).get("right", 0) > 2) == is_remembered


def test_without_deciding_everybody_gets_all() -> None:
    policy = DraftPolicy(5, decides=False)
    assert policy.max_drafts(["a", "b"]) == {"a": 5, "b": 5}


def test_seconds_between_and_beyond_what_was_measured() -> None:
    seconds = StepSeconds()
    assert seconds(1) is None
    seconds.record(2, 1.0)
    assert seconds(2) == 1.0
    assert seconds(4) == pytest.approx(1.3)  # 0.3 of a row's share each
    seconds.record(6, 2.0)
    assert seconds(4) == pytest.approx(1.5)
    assert seconds(8) == pytest.approx(2.5)
    assert seconds(1) == pytest.approx(0.75)


def test_formulas() -> None:
    assert expected_tokens(0.5, 2) == 1.75
    assert expected_tokens(1.0, 4) == 5
    assert draft_speedup(0.8, 4, 0.0, 1.0) == pytest.approx((1 - 0.8**5) / 0.2)
