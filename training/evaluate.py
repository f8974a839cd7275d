"""The figures of the model cards, measured on held-out documents with transformers in float32.

python training/evaluate.py perplexity [MODEL]
python training/evaluate.py capitals [MODEL]
python training/evaluate.py recall [MODEL]
python training/evaluate.py arithmetic [MODEL]
python training/evaluate.py agreement
"""

import argparse
import math
import re
from collections import defaultdict
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path
from random import Random

import torch
from corpus import arithmetic, facts, recall
from corpus.mixture import documents
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

ASSETS = Path(__file__).parents[1] / "src" / "pellucid" / "assets"
TARGET, DRAFT = ASSETS / "pellucid-5m", ASSETS / "pellucid-1m-draft"
SEED = 7
END_OF_TEXT, END_OF_TURN = 1, 5
DISTANCES = [0, 50, 100, 200, 400, 800, 1200, 2000]


class Opened:
    def __init__(self, directory: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32
        )

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text).input_ids

    def logits(self, ids: list[int]) -> Tensor:
        with torch.inference_mode():
            return self.model(torch.tensor([ids])).logits[0]

    def says(self, prompt: list[int], answer: list[int]) -> bool:
        """Whether greedy decoding after `prompt` gives exactly `answer`; one pass tells."""
        best = self.logits(prompt + answer)[len(prompt) - 1 : -1].argmax(-1)
        return best.tolist() == answer


def perplexity(directory: Path) -> None:
    opened, nats, tokens = Opened(directory), defaultdict(float), defaultdict(int)
    for kind, text in islice(documents(SEED, held_out=True, longest_recall=3000), 1000):
        ids = torch.tensor([*opened.ids(text), END_OF_TEXT][:2048])
        losses = torch.nn.functional.cross_entropy(
            opened.logits(ids[:-1].tolist()), ids[1:], reduction="sum"
        )
        for key in (kind, "all"):
            nats[key] += losses.item()
            tokens[key] += len(ids) - 1
    for key in sorted(nats):
        print(f"{key:12} perplexity {math.exp(nats[key] / tokens[key]):.3f} ({tokens[key]} tokens)")


def capitals(directory: Path) -> None:
    opened = Opened(directory)
    right = 0
    for country, city in facts.CAPITALS.items():
        answer = opened.tokenizer(f" {city}", add_special_tokens=False).input_ids
        right += opened.says(opened.ids(f"The capital of {country} is"), answer)
    print(f"capitals: {right} of {len(facts.CAPITALS)}")


def recall_accuracy(directory: Path) -> None:
    opened, rng = Opened(directory), Random(SEED)
    for name, task in [("passphrase", recall.passphrase), ("key-value", recall.key_value)]:
        right: dict[int, list[bool]] = defaultdict(list)
        for _ in range(150):
            longest = 6500 if name == "passphrase" else 3000
            case = task(rng, rng.randint(100, longest), held_out=True).aligned()
            prompt = opened.ids(case.prompt)
            if len(prompt) > 2000:
                continue
            answer = opened.tokenizer(case.answer, add_special_tokens=False).input_ids
            fact = re.search(rf"{re.escape(case.answer.strip())}", case.prompt)
            assert fact
            distance = len(prompt) - len(opened.ids(case.prompt[: fact.start()]))
            right[max(d for d in DISTANCES if d <= distance)].append(opened.says(prompt, answer))
        for low, high in pairwise(DISTANCES):
            if right[low]:
                share = sum(right[low]) / len(right[low])
                print(f"{name:10} {low:4}-{high:4} tokens back: {share:.0%} of {len(right[low])}")
        every = [answer for answers in right.values() for answer in answers]
        print(f"{name:10} at all distances: {sum(every) / len(every):.1%} of {len(every)}")


def arithmetic_accuracy(directory: Path) -> None:
    opened, rng = Opened(directory), Random(SEED)
    right: dict[str, list[bool]] = defaultdict(list)
    for _ in range(400):
        a, sign, _, b = arithmetic.sum_of(rng, held_out=True)
        answer = f" {arithmetic.value(a, sign, b)}\n"
        answer_ids = opened.tokenizer(answer, add_special_tokens=False).input_ids[:-1]
        right[sign].append(opened.says(opened.ids(f"{a} {sign} {b} ="), answer_ids))
    for sign, answers in right.items():
        print(f"a {sign} b  {sum(answers) / len(answers):.0%} of {len(answers)}")


def agreement(_: Path) -> None:
    """The target writes greedily; how often would the draft have guessed its next token?"""
    target, draft = Opened(TARGET), Opened(DRAFT)
    same, total = defaultdict(int), defaultdict(int)
    for kind, text in islice(documents(SEED, held_out=True, longest_recall=1500), 100):
        ids = target.ids(text)
        cut = text.find("<|assistant|>")
        start = len(target.ids(text[: cut + len("<|assistant|>")])) if cut >= 0 else len(ids) // 4
        prompt = ids[: max(2, min(start, 1500))]
        written = target.model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=96,
            eos_token_id=[END_OF_TEXT, END_OF_TURN],
            pad_token_id=END_OF_TEXT,
        )[0].tolist()
        guesses = draft.logits(written)[len(prompt) - 1 : -1].argmax(-1).tolist()
        for key in (kind, "all"):
            same[key] += sum(a == b for a, b in zip(guesses, written[len(prompt) :], strict=True))
            total[key] += len(guesses)
    for key in sorted(total):
        print(f"{key:12} agreement {same[key] / total[key]:.1%} ({total[key]} tokens)")


FIGURES: dict[str, Callable[[Path], None]] = {
    "perplexity": perplexity,
    "capitals": capitals,
    "recall": recall_accuracy,
    "arithmetic": arithmetic_accuracy,
    "agreement": agreement,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("figure", choices=list(FIGURES))
    parser.add_argument("model", type=Path, nargs="?", default=TARGET)
    args = parser.parse_args()
    FIGURES[args.figure](args.model)
