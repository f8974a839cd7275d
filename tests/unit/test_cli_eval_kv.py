"""`pellucid eval-kv` with the fake model: tables, JSON, and texts that are refused."""

import json
from pathlib import Path

import pytest

from pellucid.benchmark.kv_quality import PASS_KEYS, KVQuality, texts_with_needles
from pellucid.cli.eval_kv import print_qualities
from pellucid.engine.kv_divergence import Divergence
from support.command_line import CommandLine
from support.fake_model import fake_engine


def quality(*continuations: tuple[int, ...]) -> KVQuality:
    return KVQuality("f32", 1.0, Divergence(0.0, 1.0), 2.0, 3, (), (), continuations)


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text("hello, what a day! is it? yes it is. " * 20)
    return str(path)


def test_formats_stand_beside_each_other(pellucid: CommandLine, text: str) -> None:
    ran = pellucid("eval-kv", "--text", text, "--json")
    facts = json.loads(ran.out)
    assert ran.status == 0
    assert [each["kv_cache_dtype"] for each in facts] == [
        "f32",
        "bf16",
        "int8",
        "int8,int4",
        "int4",
    ]
    # The fake model has but one format.
    assert {each["perplexity_change"] for each in facts} == {0}
    assert {each["num_changed_continuations"] for each in facts} == {0}
    assert {each["divergence"] for each in facts} == {0}
    assert {each["same_top"] for each in facts} == {1}
    # It recalls none of the keys.
    assert {each["num_secrets"] for each in facts} == {5}
    assert facts[0]["missed_depths"] == [0, 0.25, 0.5, 0.75, 1]
    assert len({each["tokens_that_fit"] for each in facts}) == 1 < facts[0]["tokens_that_fit"]
    # 740 characters, in pieces that fit into a context of 256; the first of each is not predicted.
    assert facts[0]["num_tokens"] == 740 - 3
    assert facts[0]["num_continuations"] == 3


def test_people_get_a_table(pellucid: CommandLine, text: str) -> None:
    ran = pellucid("eval-kv", "--text", text)
    assert ran.status == 0
    assert all(
        name in ran.out for name in ("f32", "bf16", "int8", "int8,int4", "int4", "perplexity")
    )
    assert "737 tokens" in ran.out


def test_where_text_begins_to_differ() -> None:
    reference = quality((1, 2, 3), (4, 5, 6), (7,))
    assert quality((1, 2, 3), (4, 0, 6), (0,)).first_changes(reference) == [1, 0]


@pytest.mark.parametrize(
    ("content", "named"), [(b"\xff\xfe", "is not UTF-8"), (b"", "fewer than two tokens")]
)
def test_a_text_that_cannot_be_read(
    pellucid: CommandLine, tmp_path: Path, content: bytes, named: str
) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    ran = pellucid("eval-kv", "--text", str(path))
    assert ran.status == 2
    assert ran.err.startswith("error: ") and named in ran.err


def test_one_format_cannot_be_chosen(pellucid: CommandLine) -> None:
    ran = pellucid("eval-kv", "--kv-cache-dtype", "int8")
    assert ran.status == 2
    assert "--kv-cache-dtype int8: cannot be chosen here; all formats are measured" in ran.err


def test_depths_that_a_format_misses(capsys: pytest.CaptureFixture[str]) -> None:
    depths = (0.0, 0.5, 1.0)
    found = [
        KVQuality(name, num_bytes, Divergence(0.0, 1.0), 2.0, 3, recalled, depths, ((1,),))
        for name, num_bytes, recalled in (
            ("f32", 64.0, (True, True, True)),
            ("bf16", 32.0, (False, True, False)),
        )
    ]
    print_qualities(found, 6400)
    printed = capsys.readouterr().out
    assert "With bf16, no pass key at 0%, 100% of the text." in printed
    assert "With f32" not in printed
    assert "f32 100, bf16 200." in printed


def test_pass_keys_in_a_text() -> None:
    model = fake_engine().model
    text = "some words of a text. " * 40
    texts = texts_with_needles(text, model, 256)
    assert texts.texts == (text,)
    assert [secret.answer for secret in texts.secrets] == list(PASS_KEYS)
    assert [secret.depth for secret in texts.secrets] == [0, 0.25, 0.5, 0.75, 1]
    for secret in texts.secrets:
        before, told, after = secret.prompt.partition(f" The pass key is {secret.answer.strip()}")
        assert told and text.startswith(before)
        assert secret.depth in (0, 1) or before.endswith(" ")  # not within a word
        assert secret.prompt.endswith("The pass key is")
        # As much text as fits stands around it; a character is a token.
        around = before + after.partition("is the pass key. ")[2].partition("\n\nWhat is")[0]
        assert text.startswith(around)
        assert 256 - 10 <= len(secret.prompt + secret.answer) < 256
        assert 0 <= (secret.depth or 0) * len(around) - len(before) < len("words ")


def test_a_context_without_room_for_a_pass_key() -> None:
    with pytest.raises(ValueError, match="max_model_len=100: has no room"):
        texts_with_needles("some words", fake_engine().model, 100)
