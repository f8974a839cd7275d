"""Text from tokens: whole characters, and pieces that join to the whole text."""

from functools import cache
from itertools import product

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from pellucid.text.detokenizer import IncrementalDetokenizer
from pellucid.text.tokenizer import Tokenizer
from support.tokenizer_kinds import KINDS

PADDING = 3  # ids that the model has and the tokenizer lacks

# Scripts with two to four bytes per character, combining marks, joiners, right to left, U+FFFD itself
ALPHABET = "ab the,.'! \n\té你好мирשלום\u0301\u200d👩🏽🚀\ufffd▁"
texts = st.text(st.sampled_from(ALPHABET), max_size=24) | st.text(max_size=16)


# For each of several kinds of tokenizer
fewer = settings(max_examples=settings.default.max_examples // 3)


@cache
def make(kind: str) -> tuple[tokenizers.Tokenizer, Tokenizer]:
    backend = KINDS[kind]()
    return backend, Tokenizer(backend, backend.get_vocab_size() + PADDING, {})


def detokenize(
    tokenizer: Tokenizer, prompt: list[int], output: list[int], skip_special_tokens: bool = True
) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, prompt, skip_special_tokens)
    return [*map(detokenizer.push, output), detokenizer.flush()]


def token_ids(kind: str, max_size: int = 24) -> st.SearchStrategy[list[int]]:
    """Any ids, the tokens of bytes and spaces often: most such sequences are no UTF-8."""
    backend, tokenizer = make(kind)
    odd = [
        token_id
        for token, token_id in sorted(backend.get_vocab().items())
        if token.startswith(("<", "▁", "##")) or not token.isascii()
    ]
    any_id = st.integers(0, tokenizer.vocab_size - 1)
    return st.lists(st.sampled_from(odd) | any_id, max_size=max_size)


@pytest.mark.parametrize("kind", KINDS)
@fewer
@given(data=st.data())
def test_decode_is_what_the_library_decodes(kind: str, data: st.DataObject) -> None:
    backend, tokenizer = make(kind)
    ids = backend.encode(data.draw(texts)).ids
    for skip_special_tokens in (False, True):
        at_once = backend.decode(ids, skip_special_tokens=skip_special_tokens)
        assert tokenizer.decode(ids, skip_special_tokens) == at_once


@pytest.mark.parametrize("kind", KINDS)
@fewer
@given(data=st.data())
def test_decode_is_what_the_library_decodes_for_any_ids(kind: str, data: st.DataObject) -> None:
    backend, tokenizer = make(kind)
    ids = data.draw(token_ids(kind))
    for skip_special_tokens in (False, True):
        at_once = backend.decode(ids, skip_special_tokens=skip_special_tokens)
        # Of bytes that stand for themselves, the library makes other things of invalid ones.
        if kind not in ("sentencepiece_bpe", "gemma_bpe") or "\ufffd" not in at_once:
            assert tokenizer.decode(ids, skip_special_tokens) == at_once


def test_an_invalid_byte_spoils_only_itself() -> None:
    _, tokenizer = make("gemma_bpe")
    ids = [3 + byte for byte in "你".encode() + b"\xff"]
    assert tokenizer.decode(ids) == "你\ufffd"


@pytest.mark.parametrize("kind", KINDS)
@fewer
@given(data=st.data())
def test_the_output_is_what_it_adds_to_the_prompt(kind: str, data: st.DataObject) -> None:
    _, tokenizer = make(kind)
    output, skip_special_tokens = data.draw(token_ids(kind)), data.draw(st.booleans())
    for prompt in ([], data.draw(token_ids(kind, 6))):
        before = tokenizer.decode(prompt, skip_special_tokens)
        together = tokenizer.decode(prompt + output, skip_special_tokens)
        if not together.startswith(before):  # the output completes the prompt's last character
            before = before.removesuffix("\ufffd")
        pieces = detokenize(tokenizer, prompt, output, skip_special_tokens)
        assert before + "".join(pieces) == together


@pytest.mark.parametrize("kind", KINDS)
@fewer
@given(data=st.data())
def test_a_piece_is_certain_and_never_half_a_character(kind: str, data: st.DataObject) -> None:
    """Whatever comes next, what was shown stays; and what is certain is not held back."""
    _, tokenizer = make(kind)
    output = data.draw(token_ids(kind))
    detokenizer = IncrementalDetokenizer(tokenizer)
    shown = ""
    for index, token_id in enumerate(output):
        shown += detokenizer.push(token_id)
        now = tokenizer.decode(output[: index + 1])
        assert shown == now or now == shown + "\ufffd"
    assert tokenizer.decode(output).startswith(shown)


@pytest.mark.parametrize("kind", ["byte_level_bpe", "sentencepiece_bpe", "gemma_bpe"])
@fewer
@given(text=texts)
@example(text="👩🏽\u200d🚀 e\u0301 שלום ▁")
def test_text_comes_back_character_by_character(kind: str, text: str) -> None:
    backend, tokenizer = make(kind)
    if kind != "byte_level_bpe":
        text = text.replace("▁", "")  # SentencePiece's own space
    pieces = detokenize(tokenizer, [], backend.encode(text).ids)
    assert "".join(pieces) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_of_four_bytes_comes_with_its_last_byte() -> None:
    _, tokenizer = make("gemma_bpe")
    ids = [3 + byte for byte in "🚀".encode()]
    assert detokenize(tokenizer, [], ids) == ["", "", "", "🚀", ""]
    assert detokenize(tokenizer, [], ids[:3]) == ["", "", "", "\ufffd"]


def test_a_real_replacement_character_is_not_held_back() -> None:
    backend, tokenizer = make("byte_level_bpe")
    ids = backend.encode("\ufffd", add_special_tokens=False).ids
    assert detokenize(tokenizer, [], ids)[-2:] == ["\ufffd", ""]
    invalid = backend.token_to_id("ÿ")  # byte 0xFF, which no character has
    assert detokenize(tokenizer, [], [invalid]) == ["\ufffd", ""]


def test_leading_space() -> None:
    backend, tokenizer = make("sentencepiece_bpe")
    the, begin = backend.token_to_id("▁the"), backend.token_to_id("<s>")
    assert detokenize(tokenizer, [], [the, the]) == ["the", " the", ""]
    assert detokenize(tokenizer, [begin], [the]) == ["the", ""]  # nothing is shown before it
    assert detokenize(tokenizer, [begin, the], [the]) == [" the", ""]
    assert detokenize(tokenizer, [begin], [the], skip_special_tokens=False) == [" the", ""]
    # however long ago the last visible token was
    assert detokenize(tokenizer, [], [the, *[begin] * 8, the])[-2:] == [" the", ""]


def test_a_character_begun_by_the_prompt() -> None:
    _, tokenizer = make("gemma_bpe")
    rocket = [3 + byte for byte in "🚀".encode()]
    letter = 3 + ord("x")
    assert detokenize(tokenizer, rocket[:2], rocket[2:]) == ["", "🚀", ""]
    assert tokenizer.decode(rocket[:2]) == "\ufffd"  # shown with the prompt, not again
    assert detokenize(tokenizer, rocket[:2], [letter]) == ["x", ""]
    assert detokenize(tokenizer, rocket[:2], []) == [""]


def test_every_way_for_bytes_to_be_wrong() -> None:
    """All sequences of three of the bytes at which the rules of UTF-8 change."""
    _, tokenizer = make("gemma_bpe")
    edges = bytes.fromhex("417f808f909fa0bfc0c1c2dfe0e1ecedeeeff0f1f3f4f5ff")
    for sequence in product(edges, repeat=3):
        ids = [3 + byte for byte in sequence]
        shown = ""
        detokenizer = IncrementalDetokenizer(tokenizer)
        for index, token_id in enumerate(ids):
            shown += detokenizer.push(token_id)
            assert tokenizer.decode(ids[: index + 1]) in (shown, shown + "\ufffd")
        prompt, output = ids[:2], [ids[2], 3 + ord("x")]
        before, together = tokenizer.decode(prompt), tokenizer.decode(prompt + output)
        if not together.startswith(before):
            before = before.removesuffix("\ufffd")
        assert before + "".join(detokenize(tokenizer, prompt, output)) == together


def test_ids_of_padding_add_nothing() -> None:
    backend, tokenizer = make("byte_level_bpe")
    padding = backend.get_vocab_size()
    first, *others = [backend.token_to_id(char) for char in "ä½ł"]  # the bytes of 你
    pieces = detokenize(tokenizer, [], [first, padding, *others])
    assert "".join(pieces) == "你" == tokenizer.decode([first, padding, *others])


def test_ids_outside_the_model_are_refused() -> None:
    _, tokenizer = make("byte_level_bpe")
    for token_id in (-1, tokenizer.vocab_size):
        with pytest.raises(ValueError, match=f"token id {token_id} is not in 0"):
            tokenizer.decode([token_id])


@pytest.mark.parametrize(
    "decoder", [decoders.BPEDecoder(), decoders.CTC(), decoders.Strip(" ", 0, 1)]
)
def test_decoders_that_look_at_neighbours_are_refused(decoder: decoders.Decoder) -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    backend.decoder = decoder
    with pytest.raises(ValueError, match="is not supported"):
        Tokenizer(backend, 1, {})


def test_no_decoder_means_words_with_spaces() -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer = Tokenizer(backend, 2, {})
    assert detokenize(tokenizer, [], [0, 1]) == ["a", " b", ""]
    assert backend.decode([0, 1]) == "a b"
