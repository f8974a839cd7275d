"""A byte-level BPE tokenizer of 300 entries: any text round-trips, and some words merge."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL_TOKENS = ("<|begin_of_text|>", "<|endoftext|>", "<|im_end|>", "<|im_start|>")
BOS_TOKEN_ID, EOS_TOKEN_ID, IM_END_TOKEN_ID, IM_START_TOKEN_ID = range(len(SPECIAL_TOKENS))
VOCAB_SIZE = 300

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_LINES = (
    "the quick brown fox jumps over the lazy dog",
    "the cat sat on the mat and the dog sat on the cat",
    "once upon a time there was a king who had a daughter",
    "to be or not to be that is the question",
    "attention is all you need and the keys and values are kept",
)


def write_tokenizer(directory: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json, as transformers saves them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_LINES, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    tokenizer_config = {
        "add_bos_token": False,
        "bos_token": SPECIAL_TOKENS[BOS_TOKEN_ID],
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": SPECIAL_TOKENS[EOS_TOKEN_ID],
        "model_max_length": 256,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2))
