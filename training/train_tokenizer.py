"""Trains the byte-level BPE tokenizer: `python training/train_tokenizer.py OUT_DIR`."""

import json
import sys
from itertools import islice
from pathlib import Path

from corpus.mixture import documents
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

VOCAB_SIZE = 4096
SPECIAL = [
    "<|begin|>",
    "<|end_of_text|>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    "<|end_of_turn|>",
]
NUM_DOCUMENTS = 60_000
# GPT-2's split, except that digits stand alone: sums are learned digit by digit.
SPLIT = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] | trim + '<|end_of_turn|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def build() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (strip_special(text) for _, text in islice(documents(seed=0), NUM_DOCUMENTS))
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", pair="<|begin|> $A <|begin|> $B", special_tokens=[("<|begin|>", 0)]
    )
    return tokenizer


def strip_special(text: str) -> str:
    for token in SPECIAL:
        text = text.replace(token, "\n")
    return text


def save(tokenizer: Tokenizer, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin|>",
        "eos_token": "<|end_of_text|>",
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    trained = build()
    assert trained.get_vocab_size() == VOCAB_SIZE, trained.get_vocab_size()
    save(trained, Path(sys.argv[1]))
