"""Grammars of tool calls: each text that a family's grammar accepts, its parser reads."""

import json
from pathlib import Path

import pytest

from pellucid.text.grammars import GrammarCompiler, GrammarMatcher
from pellucid.text.responses.family_records import FAMILIES
from pellucid.text.responses.format import find_response_format
from pellucid.text.tokenizer import Tokenizer
from support.answers import message_of
from support.golden_files import compare
from support.tokenizer_kinds import KINDS

pytest.importorskip("llguidance")

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}},
]
# Of the families below; the second list is special, as Mistral, Llama and harmony have them
TOKENS = ["<tool_call>", "</tool_call>"]
SPECIAL = ["[TOOL_CALLS]", "[ARGS]", "<|channel|>", "<|message|>", "<|call|>", "<|constrain|>"]
SOURCES = {
    "hermes": "<tool_call>",
    "qwen3_coder": "<tool_call><function=<parameter=",
    "glm": "<tool_call><arg_key><arg_value>",
    "mistral": "[TOOL_CALLS]",
    "mistral_args": "[TOOL_CALLS][ARGS]",
    "llama3": "<|start_header_id|>ipython",
    "harmony": "<|channel|><|message|>",
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    backend = KINDS["byte_level_bpe"]()
    backend.add_tokens(TOKENS)
    backend.add_special_tokens(SPECIAL)
    return Tokenizer(backend, backend.get_vocab_size(), {"eos_token": "<|end|>"})


def accepts(matcher: GrammarMatcher, token_ids: list[int]) -> bool:
    try:
        mask = matcher.mask(token_ids)
    except ValueError:
        return False
    eos = 1
    return matcher.is_complete(token_ids) or bool(mask[eos >> 3] >> (eos & 7) & 1)


def written(family: str, name: str, arguments: dict[str, object]) -> str:
    found = find_response_format(SOURCES[family])
    assert found.name == family
    grammar = next(g for g in found.call_grammars(TOOLS) or () if g.name == name)
    text = json.dumps(arguments)
    if grammar.argument is not None:
        text = "".join(
            grammar.argument.begin.replace("{key}", key)
            + (value if isinstance(value, str) else json.dumps(value))
            + grammar.argument.end
            for key, value in arguments.items()
        )
    return grammar.begin + text + grammar.end


@pytest.mark.parametrize("family", SOURCES)
@pytest.mark.parametrize("must_call", [True, False])
def test_valid_calls_and_no_others(tokenizer: Tokenizer, family: str, must_call: bool) -> None:
    ids = {token: tokenizer.encode(token, False)[0] for token in SPECIAL}
    found = find_response_format(SOURCES[family], special_tokens=ids)
    rule = found.call_rule(TOOLS, must_call=must_call, several=True)
    if family == "harmony" and not must_call:
        assert rule is None
        return
    assert rule is not None
    matcher = GrammarCompiler(tokenizer, (1,)).compile(rule)

    def is_taken(text: str) -> bool:
        return accepts(matcher, tokenizer.encode(text, False))

    good = written(family, "get_weather", {"city": "Paris", "days": 2})
    assert is_taken(good)
    assert is_taken(written(family, "get_weather", {"city": "Paris"}))
    parser = found.parser(tools=TOOLS)
    message = message_of(parser.push(good) + parser.flush())
    assert message.calls == [("get_weather", {"city": "Paris", "days": 2})]

    assert not is_taken(written(family, "get_weather", {"city": "Paris", "days": "two"}))
    assert not is_taken(written(family, "get_weather", {"days": 2}))
    assert not is_taken(good.replace("get_weather", "get_water"))
    assert is_taken("Hello.") == (not must_call)
    if family != "llama3":  # whose calls are the whole answer
        assert is_taken(f"Let me see.\n{good}") == (not must_call)
        assert is_taken(f"<|message|>a<|constrain|>b{good}<|message|>c") == (not must_call)


ANY = {
    "type": "function",
    "function": {
        "name": "any",
        "parameters": {
            "properties": {"code": {"pattern": "^a/b"}, "more": {"pattern": "c$"}, "size": {}},
            "required": ["code", "size"],
        },
    },
}


@pytest.mark.parametrize("family", SOURCES)
def test_grammars(family: str) -> None:
    found = find_response_format(
        SOURCES[family], special_tokens={t: n for n, t in enumerate(SPECIAL)}
    )
    lines = []
    for form in (
        (True, True, None),
        (True, False, {"type": "array"}),
        (False, True, None),
        (False, False, None),
    ):
        must_call, several, schema = form
        rule = found.call_rule([*TOOLS, ANY], must_call=must_call, several=several, or_json=schema)
        lines += [f"# {form}", *str(rule and rule.grammar).split("\n")]
    compare(Path(__file__).parent / "call_grammars" / f"{family}.txt", lines)


def test_one_call_at_most(tokenizer: Tokenizer) -> None:
    call = written("hermes", "get_weather", {"city": "Paris"})
    found = find_response_format(SOURCES["hermes"])
    for several in (True, False):
        rule = found.call_rule(TOOLS, must_call=True, several=several)
        assert rule is not None
        matcher = GrammarCompiler(tokenizer, (1,)).compile(rule)
        assert accepts(matcher, tokenizer.encode(call * 2, False)) == several


@pytest.mark.parametrize("family", SOURCES)
def test_one_call_at_most_beside_text(tokenizer: Tokenizer, family: str) -> None:
    ids = {token: tokenizer.encode(token, False)[0] for token in SPECIAL}
    found = find_response_format(SOURCES[family], special_tokens=ids)
    call = written(family, "get_weather", {"city": "Paris"})
    for several in (True, False):
        rule = found.call_rule(TOOLS, must_call=False, several=several)
        assert (rule is None) == (family == "harmony")
        if rule is None:
            continue
        matcher = GrammarCompiler(tokenizer, (1,)).compile(rule)
        assert accepts(matcher, tokenizer.encode(call, False))
        assert accepts(matcher, tokenizer.encode("Hello.", False))
        assert accepts(matcher, tokenizer.encode(f"{call} Done.", False))
        assert accepts(matcher, tokenizer.encode(f"{call}\n{call}", False)) == several


def test_arguments_without_a_schema_may_be_any(tokenizer: Tokenizer) -> None:
    tool = {
        "type": "function",
        "function": {"name": "get_weather", "parameters": {"type": "object"}},
    }
    found = find_response_format(SOURCES["qwen3_coder"])
    rule = found.call_rule([tool], must_call=True, several=True)
    assert rule is not None
    matcher = GrammarCompiler(tokenizer, (1,)).compile(rule)
    for arguments in ({}, {"city": "Paris"}, {"city": "Paris", "days": 2}):
        call = written("qwen3_coder", "get_weather", arguments)
        assert accepts(matcher, tokenizer.encode(call, False))


def test_a_hundred_tools_with_equal_schemas_are_no_larger_than_one(tokenizer: Tokenizer) -> None:
    tools = [
        {"type": "function", "function": {"name": f"tool_{n}", "parameters": {"type": "object"}}}
        for n in range(100)
    ]
    rule = find_response_format(SOURCES["hermes"]).call_rule(tools, must_call=False, several=False)
    assert rule is not None and str(rule.grammar).count("%json") == 1
    GrammarCompiler(tokenizer, (1,)).compile(rule)


def test_every_family_that_writes_calls_in_a_known_way_is_here() -> None:
    assert set(SOURCES) <= set(FAMILIES)
