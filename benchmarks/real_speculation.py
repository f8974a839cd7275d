"""Speculation on real text: an answer in a chat, code that goes on, and an edit, with a real model.

    python benchmarks/real_speculation.py MODEL [--tokens 128] [--rounds 5] [--row-cost V]

For each text and proposer, greedily and drawn at temperature 0.7:

right           drafts that were right, of all
tokens a step   of decode
rows            rows that all steps compute, divided by those without drafts: the work that drafts add
speed           processor time of one thread without drafts, divided by that with them: median of rounds in turn

With --row-cost, `auto` decides by steps of 1 + V (rows - 1) plain steps in place of measured ones, and so is "speed":
what it loses or gains where no other program disturbs its times. The text, its drafts and what is right are real.

Then what a draft model would gain by the formula, E / (k c + v) with the best k: v, what verifying k drafts takes, is
that of `ngram` in the greedy edit; c, what a draft takes, is the size of the draft model as a share of the model's.
"""

import argparse
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pellucid.engine import LLMEngine
from pellucid.facts.formulas import draft_speedup
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.prompts import ChatPrompt, Prompt
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loaded_model import LoadedModel, load_model
from pellucid.outputs import SpeculationStatistics
from pellucid.speculation.draft_policy import DecodeStep, DraftOutcome, DraftPolicy

CODE = """class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance += amount
        return self.balance

    def withdraw(self, amount):
"""
EDIT = f"""Rename `balance` to `funds` in this code, and give back all of it.

```python
{CODE.rpartition("    def withdraw")[0]}```

Here is the code with the name changed:

```python
class Account:
    def __init__(self, owner, funds=0):
"""
TEXTS: Mapping[str, Prompt] = {
    "chat": ChatPrompt(
        [{"role": "user", "content": "Why is the sky blue? Explain it to a child."}]
    ),
    "code": CODE,
    "edit": EDIT,
}
MODES = ("off", "ngram", "auto")
TEMPERATURES = (0.0, 0.7)
ACCEPTANCES, DRAFT_COSTS = (0.5, 0.7, 0.8, 0.9), (0.05, 0.1, 0.3, 1.0)


@dataclass(frozen=True)
class Run:
    """The decode of one answer, from its second token on.

    Args:
        seconds: processor time.
    """

    token_ids: tuple[int, ...]
    num_steps: int
    num_drafts: int
    num_right: int
    seconds: float

    @property
    def num_rows(self) -> int:
        return self.num_steps + self.num_drafts


def decide_by_rows(row_cost: float) -> None:
    """Gives policies steps of 1 + row_cost (rows - 1) seconds, and drafts that take no time to make."""
    record = DraftPolicy.record

    def record_by_rows(
        self: DraftPolicy, outcomes: Iterable[DraftOutcome], step: DecodeStep
    ) -> float:
        seconds = 1 + row_cost * (step.num_rows - 1)
        return record(self, outcomes, step._replace(seconds=seconds, drafting_seconds=0.0))

    DraftPolicy.record = record_by_rows  # type: ignore[method-assign]


def run(engine: LLMEngine, prompt: Prompt, params: SamplingParams) -> Run:
    """In an engine that has seen no other text."""
    (answer,) = engine.add_request(prompt, params).outputs
    while not answer.token_ids:
        engine.step()
    num_steps, begin = 0, time.process_time()
    while engine.has_unfinished_requests:
        engine.step()
        num_steps += 1
    seconds = time.process_time() - begin
    drafts = engine.speculation or SpeculationStatistics()
    return Run(tuple(answer.token_ids), num_steps, drafts.num_drafts, drafts.num_right, seconds)


def measure(
    model: LoadedModel, config: EngineConfig, prompt: Prompt, params: SamplingParams, rounds: int
) -> Mapping[str, list[Run]]:
    """Of each mode its runs, in turn."""
    found: dict[str, list[Run]] = {mode: [] for mode in MODES}
    for _ in range(rounds):
        for mode in MODES:
            engine = LLMEngine(replace(config, speculation=mode), model)
            found[mode].append(run(engine, prompt, params))
    assert len({each.token_ids for runs in found.values() for each in runs}) == 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", help="as `pellucid run`")
    parser.add_argument("--tokens", type=int, default=128, help="of an answer (128)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--row-cost", type=float, metavar="V", help="see above")
    args = parser.parse_args()
    if args.row_cost is not None:
        decide_by_rows(args.row_cost)
    config = EngineConfig(
        model=args.model, num_threads=1, max_model_len=1024, kv_cache_memory=1 << 27
    )
    model = load_model(config)
    verify_cost = 0.0
    print("| text | temperature | `speculation` | right | tokens a step | rows | speed |")
    print("|---|--:|---|--:|--:|--:|--:|")
    for name, prompt in TEXTS.items():
        for temperature in TEMPERATURES:
            params = SamplingParams(
                temperature=temperature, seed=1, max_tokens=args.tokens, ignore_eos=True
            )
            found = measure(model, config, prompt, params, args.rounds)
            for mode in MODES[1:]:
                print_row(name, temperature, mode, found[mode], found["off"], args.row_cost)
            if (name, temperature) == ("edit", 0.0):
                verify_cost = cost_of_a_draft(found["ngram"], found["off"])
    print_pairs(verify_cost if args.row_cost is None else args.row_cost)


def cost_of_a_draft(drafted: list[Run], plain: list[Run]) -> float:
    """What each draft adds to a step, in steps without drafts; the median of rounds."""
    return statistics.median(
        (own.seconds / own.num_steps / (other.seconds / other.num_steps) - 1)
        / (own.num_drafts / own.num_steps)
        for own, other in zip(drafted, plain, strict=True)
    )


def print_pairs(verify_cost: float) -> None:
    print(f"\nv = 1 + {verify_cost:.2f} k\n")
    print(
        f"| c | {' | '.join(f'a = {a}' for a in ACCEPTANCES)} |\n|--:{'|--:' * len(ACCEPTANCES)}|"
    )
    for cost in DRAFT_COSTS:
        best = [
            max((draft_speedup(a, k, cost, 1 + verify_cost * k), k) for k in range(9))
            for a in ACCEPTANCES
        ]
        print(f"| {cost} | {' | '.join(f'{speed:.2f} (k = {k})' for speed, k in best)} |")


def print_row(
    name: str,
    temperature: float,
    mode: str,
    drafted: list[Run],
    plain: list[Run],
    row_cost: float | None,
) -> None:
    """Sums of all rounds: what `auto` drafts depends on measured times."""
    num_drafts, num_right = (
        sum(each) for each in zip(*((r.num_drafts, r.num_right) for r in drafted), strict=True)
    )
    num_steps, num_plain = (sum(each.num_steps for each in runs) for runs in (drafted, plain))
    rows = sum(each.num_rows for each in drafted) / sum(each.num_rows for each in plain)
    ratios = [own.seconds / other.seconds for own, other in zip(plain, drafted, strict=True)]
    if row_cost is not None:
        ratios = [num_plain / (num_steps + row_cost * num_drafts)]
    print(
        f"| {name} | {temperature} | {mode} | {num_right} of {num_drafts} | {num_plain / num_steps:.2f} | "
        f"{rows:.2f} | {statistics.median(ratios):.3f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
