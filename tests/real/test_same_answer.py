"""Same request, same answer, with real weights: 200 conversations in turn and at once; drafts on real text."""

import pytest

from pellucid.inputs.prompts import ChatPrompt, Prompt
from pellucid.inputs.sampling_params import SamplingParams
from support.real_models import multiple_choice, real_engine, run_in_turn, run_together

ASKS = [
    "What is it? {}",
    "Say more: {}",
    "{}",
    "Is that so? {}",
    "Why? {}",
    "{} Explain.",
    "And {}?",
]
EDIT = """Rename `total` to `amount` in this code, and give back all of it:

def add(prices):
    total = 0
    for price in prices:
        total = total + price
    return total

def mean(prices):
    total = add(prices)
    return total / len(prices)

Here is the code with the name changed:

def add(prices):
    amount = 0
"""


def conversations(count: int) -> list[tuple[Prompt, SamplingParams]]:
    """Short ones; every second one is sampled, and many begin alike."""
    questions = [item["question"] for item in multiple_choice()]
    requests: list[tuple[Prompt, SamplingParams]] = []
    for index in range(count):
        content = ASKS[index % len(ASKS)].format(questions[index % len(questions)])
        messages = [{"role": "user", "content": content}]
        if index % 3 == 0:
            messages.insert(0, {"role": "system", "content": "Be brief."})
        params = SamplingParams(
            temperature=0.8 * (index % 2), seed=index, max_tokens=6, logprobs=index % 4 // 3
        )
        requests.append((ChatPrompt(messages), params))
    return requests


def test_conversations_in_turn_and_at_once() -> None:
    requests = conversations(200)
    at_once = run_together(real_engine("smollm2", max_num_seqs=32), requests)
    in_turn = run_in_turn(real_engine("smollm2", block_size=16), requests)
    assert [output.outputs for output in at_once] == [output.outputs for output in in_turn]
    assert len({output.outputs[0].text for output in at_once}) > 100


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_drafts_change_nothing_and_help_an_edit(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=64)
    requests: list[tuple[Prompt, SamplingParams]] = [(EDIT, params)]
    plain = run_together(real_engine("smollm2"), requests)
    engine = real_engine("smollm2", speculation="ngram")
    drafted = run_together(engine, requests)
    assert drafted[0].outputs == plain[0].outputs
    assert engine.speculation is not None
    if temperature == 0:  # drawn text leaves the code
        assert engine.speculation.num_right > 10
