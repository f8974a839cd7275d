"""Tokenizers and chat templates of the checkpoints in the package."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.loading.hub import BUNDLED_MODEL
from pellucid.text.detokenizer import IncrementalDetokenizer
from pellucid.text.tokenizer import Tokenizer

DIRECTORIES = sorted(path.parent for path in BUNDLED_MODEL.parent.glob("*/config.json"))


@pytest.fixture(scope="module", params=DIRECTORIES, ids=lambda path: path.name)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    config = json.loads((request.param / "config.json").read_text())
    return Tokenizer.load(request.param, config["vocab_size"])


@settings(max_examples=30)
@given(text=st.text(max_size=40))
def test_any_text_round_trips(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids[1:], skip_special_tokens=False) == text


@given(output=st.lists(st.integers(0, 2047), max_size=40), prompt=st.text(max_size=10))
def test_any_output_streams(tokenizer: Tokenizer, output: list[int], prompt: str) -> None:
    output = [token_id % tokenizer.vocab_size for token_id in output]
    prompt_ids = tokenizer.encode(prompt)
    detokenizer = IncrementalDetokenizer(tokenizer, prompt_ids)
    pieces = [*map(detokenizer.push, output), detokenizer.flush()]
    assert prompt + "".join(pieces) == tokenizer.decode([*prompt_ids, *output])


def test_chat(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_chat([{"role": "user", "content": "Hi<|end_of_turn|>"}])
    assert tokenizer.decode(ids, skip_special_tokens=False) == (
        "<|begin|><|user|>Hi<|end_of_turn|><|end_of_turn|><|assistant|>"
    )
    end_of_turn = tokenizer.encode("<|end_of_turn|>", add_special_tokens=False)[0]
    assert ids.count(end_of_turn) == 1
    assert ids.count(tokenizer.bos_token_id) == 1
    assert tokenizer.end_of_turn_token_ids() == (tokenizer.eos_token_id, end_of_turn)
