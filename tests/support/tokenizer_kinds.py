"""A small tokenizer of each kind that models use."""

from collections.abc import Callable

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

_LINES = (
    "the quick brown fox jumps over the lazy dog, isn't it? Yes. It is!",
    "naïve café – 你好世界, 你好 你好. мир мир שלום",
    "    indented    text and 1234 numbers",
)


def byte_level_bpe() -> Tokenizer:
    """GPT-2, Llama 3, Qwen: every byte is a token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<|begin|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_LINES, trainer)
    tokenizer.add_tokens(
        [AddedToken("<think>", normalized=False), AddedToken("é è", normalized=False)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]
    )
    return tokenizer


def sentencepiece_bpe() -> Tokenizer:
    """Llama 2: ▁ for space, one before the text, bytes for what the vocabulary lacks."""
    tokenizer = _byte_fallback_bpe()
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def gemma_bpe() -> Tokenizer:
    """Gemma: the same without the space before the text."""
    tokenizer = _byte_fallback_bpe()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def unigram() -> Tokenizer:
    """T5: SentencePiece's Unigram, the space put before the text by the pre-tokenizer."""
    pieces = ["<unk>", "<s>", "</s>", "▁", "▁the", "▁a", "the", "▁▁", "qu", "ick", "▁▁x", *_LETTERS]
    tokenizer = Tokenizer(models.Unigram([(piece, -float(i)) for i, piece in enumerate(pieces)], 0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


def word_piece() -> Tokenizer:
    """BERT: words, and ## before what continues one."""
    words = ["[UNK]", "[CLS]", "[SEP]", "the", "quick", "##ly", "##s", ".", "'", "!", "do", "##n"]
    vocab = {word: i for i, word in enumerate([*words, *_LETTERS, *(f"##{c}" for c in _LETTERS)])}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[CLS]", "[SEP]"])
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    kind.__name__: kind
    for kind in (byte_level_bpe, sentencepiece_bpe, gemma_bpe, unigram, word_piece)
}

_LETTERS = tuple("abcdefghijklmnopqrtuvwxyz你好é\ufffd")


def _byte_fallback_bpe() -> Tokenizer:
    merges = [
        ("▁", "t"),
        ("▁t", "h"),
        ("▁th", "e"),
        ("t", "h"),
        ("th", "e"),
        ("▁", "▁"),
        ("▁▁", "▁▁"),
    ]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *_LETTERS]
    tokens += ["".join(pair) for pair in merges]
    tokenizer = Tokenizer(
        models.BPE(
            {token: i for i, token in enumerate(tokens)},
            merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer
