"""`pellucid eval-kv` with the fake model: tables, JSON, and texts that are refused."""

import json
from pathlib import Path

import pytest

from pellucid.benchmark.kv_quality import KVQuality
from support.command_line import CommandLine


def quality(*continuations: tuple[int, ...]) -> KVQuality:
    return KVQuality("f32", 1.0, 2.0, 3, (), continuations)


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
    assert {each["num_secrets"] for each in facts} == {0}
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
