"""Hostile tokenizers: tokenizer.json, tokenizer_config.json and chat templates."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hostile.case import Case
from hostile.checkpoint_cases import (
    MEGABYTES,
    directory,
    file_case,
    json_cases,
    load,
    special_file_cases,
)
from pellucid import LLM

Edit = Callable[[dict[str, Any]], object]  # of what tokenizer.json holds


def tokenizer_case(what: str, edit: Edit, *, may_succeed: bool = False) -> Case:
    """A good tokenizer.json, changed."""

    def change(path: Path) -> None:
        content = json.loads((path / "tokenizer.json").read_text())
        edit(content)
        (path / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False))

    return Case(f"tokenizer: {what}", directory(change), load, may_succeed)


def added(token_id: int, content: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, "special": True, **flags}


def split(pattern: str) -> dict[str, Any]:
    facts = {"behavior": "Isolated", "invert": False}
    return {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": pattern}, **facts}}


def charsmap(data: bytes) -> dict[str, Any]:
    encoded = base64.b64encode(data).decode()
    return {"normalizer": {"type": "Precompiled", "precompiled_charsmap": encoded}}


def replace(**pattern: str) -> dict[str, Any]:
    return {"normalizer": {"type": "Replace", "pattern": pattern, "content": "x"}}


def unigram(*pieces: tuple[str, float]) -> dict[str, Any]:
    return {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], *pieces]}}


def with_response_template(*fields: dict[str, Any]) -> Callable[[Path], object]:
    """A good tokenizer_config.json that says how answers are read."""

    def edit(path: Path) -> None:
        file = path / "tokenizer_config.json"
        named = {f"field{index}": field for index, field in enumerate(fields)}
        template = {"start_anchor": "A:", "fields": named}
        content = json.loads(file.read_text()) | {"response_template": template}
        file.write_text(json.dumps(content, separators=(",", ":")))

    return edit


def load_response_format(path: Path) -> None:
    """As the commands and the server do before the first answer."""
    with LLM(str(path), kv_cache_memory=16 << 20, max_model_len=128) as llm:
        assert llm.tokenizer.response_format


REFUSED_TOKENIZERS: dict[str, Edit] = {
    "450,000 tokens": lambda c: c["model"]["vocab"].update({f"t{i}": i for i in range(400, 450_400)}),
    "an id of four billion": lambda c: c["model"]["vocab"].update(t=2**32 - 1),
    "80,000 added tokens": lambda c: c.update(added_tokens=[added(i, f"<{i}>") for i in range(400, 80_400)]),
    "an endless added token": lambda c: c["added_tokens"].append(added(319, "x" * MEGABYTES)),
    "a regular expression of 500,000 classes": lambda c: c.update(split(r"[^\p{L}\p{N}]|" * 500_000)),
    "a deep regular expression": lambda c: c.update(split("(" * 9_000 + ")" * 9_000)),
    "a character map of 4 GB": lambda c: c.update(charsmap(b"\xff" * 6_000_000)),
    "a character map that is garbled": lambda c: c.update(charsmap(b"\0\0\0\0")),
    "an empty pattern": lambda c: c.update(replace(String="")),
    "words of no length": lambda c: c.update(pre_tokenizer={"type": "FixedLength", "length": 0}),
    "500,000 pieces of a unigram model": lambda c: c.update(unigram(*((f"{i}", -1.0) for i in range(500_000)))),
    "an endless piece of a unigram model": lambda c: c.update(unigram(("x" * MEGABYTES, -1.0))),
    "a piece of a unigram model that ends the process when it is freed": lambda c: c.update(
        unigram(("x" * 200_000, -1.0))
    ),
    "pieces of a unigram model that share nothing": lambda c: c.update(
        unigram(*((f"{chr(0x4E00 + i)}{'x' * 995}", -1.0) for i in range(3_900)))
    ),
}  # fmt: skip
# Odd, but tokenizers: their cost is bounded all the same.
ODD_TOKENIZERS: dict[str, Edit] = {
    "one id for many tokens": lambda c: c["model"]["vocab"].update(
        {f"t{i}": 5 for i in range(150_000)}
    ),
    "an endless token": lambda c: c["model"]["vocab"].update({"x" * MEGABYTES: 319}),
    "a long added token": lambda c: c["added_tokens"].append(added(319, "x" * 1_900_000)),
    "the longest regular expression": lambda c: c.update(split(r"[^\p{L}\p{N}]|" * 1_300 + "x")),
    "nested repetitions": lambda c: c.update(split("(" * 6 + "a{1,100}" + "){1,100}" * 6)),
    "an empty regular expression": lambda c: c.update(replace(Regex="")),
    "the largest unigram model": lambda c: c.update(
        unigram(*((f"{chr(0x4E00 + i)}{'x' * 987}", -1.0) for i in range(1_000)))
    ),
    "the largest unigram model of pieces that share their beginnings": lambda c: c.update(
        unigram(*(("x" * 13 + f"{i:06}", -1.0) for i in range(200_000)))
    ),
    "a thousand normalizers": lambda c: c.update(
        normalizer={
            "type": "Sequence",
            "normalizers": [{"type": "Prepend", "prepend": "x" * 1000}] * 1000,
        }
    ),
}

TOKENIZER_CASES = [
    *(tokenizer_case(what, edit) for what, edit in REFUSED_TOKENIZERS.items()),
    *(tokenizer_case(what, edit, may_succeed=True) for what, edit in ODD_TOKENIZERS.items()),
    *special_file_cases("tokenizer", "tokenizer.json"),
    file_case("tokenizer", "nested deeply", "tokenizer.json", '{"a":' * 1_000_000),
    file_case("tokenizer", "zeros", "tokenizer.json", bytes(MEGABYTES)),
    file_case("tokenizer", "no model", "tokenizer.json", '{"added_tokens": []}'),
    file_case(
        "tokenizer", "deep added tokens", "tokenizer.json", '{"added_tokens": ' + "[" * 1_000_000
    ),
    *json_cases("tokenizer config", "tokenizer_config.json"),
    *special_file_cases("tokenizer config", "tokenizer_config.json"),
    file_case(
        "tokenizer config",
        "90,000 added tokens",
        "tokenizer_config.json",
        json.dumps(
            {"added_tokens_decoder": {str(i): {"content": f"<{i}>"} for i in range(400, 90_400)}}
        ),
    ),
    file_case(
        "tokenizer config",
        "an added token that is no number",
        "tokenizer_config.json",
        '{"added_tokens_decoder": {"%s": {"content": "x"}}}' % ("9" * 5000),
    ),
    *json_cases("special tokens", "special_tokens_map.json"),
    *special_file_cases("special tokens", "special_tokens_map.json"),
    *special_file_cases("chat template", "chat_template.jinja"),
    Case(
        "response template: 300,000 marks",
        directory(with_response_template({"open": [str(i) for i in range(300_000)]})),
        load_response_format,
    ),
    Case(
        "response template: 300,000 fields",
        directory(with_response_template(*({"open": "<"},) * 300_000)),
        load_response_format,
    ),
]


# -- chat templates --------------------------------------------------------------------------------


def template_case(what: str, source: str) -> Case:
    def answer(path: Path) -> None:
        with LLM(str(path), kv_cache_memory=16 << 20, max_model_len=128) as llm:
            llm.chat([{"role": "user", "content": "hi"}], use_tqdm=False)

    make = directory(lambda path: (path / "chat_template.jinja").write_text(source))
    return Case(f"chat template: {what}", make, answer)


TEMPLATES = {
    "nine million characters": "x" * MEGABYTES,
    "an expression of a million terms": "{{ " + "1+" * 1_000_000 + "1 }}",
    "nested parentheses": "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}",
    "nested lists": "{{ " + "[" * 5_000 + "]" * 5_000 + " }}",
    "nested loops": "{% for x in messages %}" * 30 + "{% endfor %}" * 30,
    "200,000 conditions": "{% if a %}b{% endif %}" * 200_000,
    "an endless loop": "{% for x in range(10 ** 9) %}{{ x }}{% endfor %}",
    "ranges in ranges": "{% for x in range(99999) %}{% for y in range(99999) %}{% endfor %}{% endfor %}",
    "a string of gigabytes": "{{ 'x' * 10 ** 10 }}",
    "a string that doubles": (
        "{% set ns = namespace(s='xxxxxxxx') %}"
        "{% for x in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
    ),
    "a power of powers": "{{ 9 ** (9 ** 9) }}",
    "a format of gigabytes": "{{ '%9999999999d' % 1 }}",
    "a method that formats gigabytes": "{{ '{:9999999999}'.format(1) }}",
    "a macro without an end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "the way out of the sandbox": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "not a template": "{% for %}",
}
TEMPLATE_CASES = [template_case(what, source) for what, source in TEMPLATES.items()]

CASES = (*TOKENIZER_CASES, *TEMPLATE_CASES)
