"""Token ids and rendered conversations of real tokenizers: llama.cpp's as recorded, and those of transformers, live."""

import json
from typing import Any

import pytest
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import pre_tokenizers

from pellucid.loading.open_model import open_stored_model
from pellucid.loading.partial_tokenizer import PartialTokenizer
from support.real_models import FILES, TOKEN_IDS, real_file, real_tokenizer
from support.texts_of_all_scripts import TEXTS

transformers = pytest.importorskip("transformers")

# Where transformers' conversion of Gemma's vocabulary is not SentencePiece: runs of more blanks than its longest
# token has, and the sign that stands for a blank when it stands in the text itself.
OTHER_IN_GEMMA = ("▁", " " * 32)


@pytest.fixture(scope="module", params=FILES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def theirs(name: str) -> Any:
    path = real_file(name)
    return transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def reference(name: str, theirs: Any) -> HfTokenizer:
    """With the splitting of the published tokenizer.json, which transformers' reader of GGUF files does not know."""
    found: HfTokenizer = theirs.backend_tokenizer
    if name == "smollm2":
        found.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    return found


def test_token_ids_are_llama_cpps(name: str) -> None:
    ours, recorded = real_tokenizer(name), json.loads(TOKEN_IDS.read_text())[name]
    for text, token_ids in zip(TEXTS, recorded, strict=True):
        assert ours.encode(text, add_special_tokens=False) == token_ids, text


def test_token_ids_are_the_tokenizers_librarys(name: str, theirs: Any) -> None:
    expected, ours = reference(name, theirs), real_tokenizer(name)
    compared = [
        text
        for text in TEXTS
        if name != "gemma3" or not any(each in text for each in OTHER_IN_GEMMA)
    ]
    assert len(compared) > 0.9 * len(TEXTS)
    for text in compared:
        token_ids = expected.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special_tokens=False) == token_ids, text


@pytest.mark.parametrize("model", ["gemma3", "smollm2"])
def test_ids_need_only_the_tokens_that_a_text_can_have(model: str) -> None:
    """Of a vocabulary with scores, and of one with merges."""
    stored = open_stored_model(real_file(model))
    assert stored.read_tokenizer is not None
    lazy = stored.read_tokenizer().hf_tokenizer
    assert isinstance(lazy, PartialTokenizer)
    for text in TEXTS:
        expected = lazy.make_whole().encode(text)
        actual = lazy.make_partial(text).encode(text)
        assert (actual.ids, actual.offsets) == (expected.ids, expected.offsets), text


def test_texts_come_back(name: str, theirs: Any) -> None:
    """But for bytes that the vocabulary lacks: SmolLM2's has no token for some control characters."""
    expected, ours, num_back = reference(name, theirs), real_tokenizer(name), 0
    for text in TEXTS:
        token_ids = ours.encode(text, add_special_tokens=False)
        if expected.decode(token_ids, skip_special_tokens=False) == text:
            assert ours.decode(token_ids, skip_special_tokens=False) == text
            num_back += 1
    assert num_back > 0.9 * len(TEXTS)


HI = {"role": "user", "content": "Hi <b>"}
CONVERSATIONS = [
    [HI],
    [{"role": "system", "content": " Be brief.\n"}, HI],
    [HI, {"role": "assistant", "content": "Yes?\n"}, {"role": "user", "content": " And? "}],
    [{"role": "user", "content": text} for text in TEXTS[:5]],
]


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_conversations(messages: list[dict[str, str]], opened: bool) -> None:
    ours = real_tokenizer("smollm2")
    assert ours.chat_template is not None
    [[expected], _] = transformers.utils.chat_template_utils.render_jinja_template(
        conversations=[messages], chat_template=ours.chat_template, add_generation_prompt=opened
    )
    assert ours.apply_chat_template(messages, opened) == expected


def test_a_pretrained_model_has_no_chat() -> None:
    assert not real_tokenizer("gemma3").has_chat_template
