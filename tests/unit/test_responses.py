"""The parser of answers of every family: whole answers, and answers in pieces of any size."""

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.text.responses.content import in_type, parsed_content
from pellucid.text.responses.deltas import ContentText, ResponseDelta, ToolCallStart, merged
from pellucid.text.responses.family_records import FAMILIES
from pellucid.text.responses.format import ResponseFormat, find_response_format
from pellucid.text.responses.parser import ResponseParser
from pellucid.text.responses.template import ResponseTemplate, literal_delimiter
from support.answers import ANSWERS, CHATML, TOOLS, Message, message_of
from support.chat_templates import FAMILIES as CHAT_TEMPLATES
from support.golden_files import compare, shortened
from support.refusals import check_refusals

FOLDER = Path(find_response_format.__code__.co_filename).with_name("families")


def template_of(family: str) -> ResponseTemplate | None:
    if family == "text":
        return None
    record = json.loads((FOLDER / f"{family}.json").read_text(encoding="utf-8"))
    return ResponseTemplate.compile(record["response_template"], family)


TEMPLATES = {family: template_of(family) for family in ("text", *FAMILIES)}


def read(
    template: ResponseTemplate | None,
    pieces: list[str],
    prompt: str = "",
    tools: Any = TOOLS,
    special_tokens: tuple[str, ...] = (),
) -> list[ResponseDelta]:
    parser = ResponseParser(template, prompt, tools, special_tokens)
    deltas = [delta for piece in pieces for delta in parser.push(piece)]
    return merged(deltas + parser.flush())


@pytest.mark.parametrize(("family", "prompt", "answer", "message"), ANSWERS)
def test_answers(family: str, prompt: str, answer: str, message: Message) -> None:
    whole = read(TEMPLATES[family], [answer], prompt)
    assert message_of(whole) == message
    assert read(TEMPLATES[family], list(answer), prompt) == whole


def test_every_family_has_answers() -> None:
    assert {family for family, *_ in ANSWERS} == set(TEMPLATES)
    assert {path.stem for path in FOLDER.glob("*.json")} == set(FAMILIES)


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    ends = sorted({cut % (len(text) + 1) for cut in cuts} | {len(text)})
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


# What answers are made of, whole and torn
_FRAGMENTS = sorted(
    {
        fragment
        for _, _, answer, _ in ANSWERS
        for size in (5, 13, 40)
        for start in range(0, len(answer), size)
        if (fragment := answer[start : start + size])
    }
)


@pytest.mark.parametrize("family", FAMILIES)
def test_any_text_in_any_pieces(family: str) -> None:
    """No text is an error, and how it is split makes no difference."""
    own = [answer for name, _, answer, _ in ANSWERS if name == family]
    prompts = [prompt for name, prompt, *_ in ANSWERS if name == family]
    text = st.lists(
        st.sampled_from(own) | st.sampled_from(_FRAGMENTS) | st.sampled_from(list(' \n{}[]",:<|x')),
        max_size=8,
    ).map("".join)

    @settings(max_examples=40)
    @given(
        text=text,
        cuts=st.lists(st.integers(0, 2**16), max_size=30),
        prompt=st.sampled_from(["", *prompts]),
        special_tokens=st.sampled_from([(), ("<|end|>", "</s>", "<|x|>", "<think>")]),
    )
    def check(text: str, cuts: list[int], prompt: str, special_tokens: tuple[str, ...]) -> None:
        template = TEMPLATES[family]
        whole = read(template, [text], prompt, TOOLS, special_tokens)
        assert read(template, pieces_of(text, cuts), prompt, TOOLS, special_tokens) == whole
        for delta in whole:
            if isinstance(delta, ToolCallStart):
                assert delta.name

    check()


@pytest.mark.parametrize("family", FAMILIES)
def test_what_torn_answers_mean(family: str) -> None:
    """Answers as models fail to write them: the deltas of each, by their first letters."""
    own = [(prompt, answer) for name, prompt, answer, _ in ANSWERS if name == family]
    draw = random.Random(family)
    lines = []
    for number in range(40):
        prompt, answer = own[number % len(own)]
        start = draw.randrange(len(answer))
        end = start + draw.choice([0, 1, 3, 9])
        added = draw.choice([answer, draw.choice(_FRAGMENTS), "", "", "}", "{", '"', ",", "<"])
        torn = answer[:start] + added + answer[end:]
        prompt, tools = draw.choice([("", TOOLS), (prompt, TOOLS), (prompt, TOOLS), (prompt, None)])
        deltas = read(
            TEMPLATES[family], [torn], prompt, tools, draw.choice([(), ("<|x|>", "</s>")])
        )
        found = [list(dataclasses.asdict(delta).values()) for delta in deltas]
        lines.append(shortened(json.dumps(torn, ensure_ascii=False)))
        lines.append("    " + shortened(json.dumps(found, ensure_ascii=False)))
    compare(Path(__file__).parent / "torn_answers" / f"{family}.txt", lines)


def test_deltas_come_as_soon_as_they_are_certain() -> None:
    parser = ResponseParser(TEMPLATES["hermes"], CHATML, TOOLS)
    assert parser.push("Hello <") == [ContentText("Hello")]
    assert parser.push("b>") == [ContentText(" <b>")]
    parser.push('<tool_call>{"name": "add", "arguments"')
    assert [type(delta).__name__ for delta in parser.push(': {"a": "long text')] == [
        "ToolCallArguments"
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_marks_of_reasoning_are_those_of_the_template(family: str) -> None:
    record = json.loads((FOLDER / f"{family}.json").read_text(encoding="utf-8"))
    template = TEMPLATES[family]
    assert template is not None
    answers = ResponseFormat(family, template, None, {}, tuple(record.get("reasoning_opens", ())))
    reasoning = [field for field in template.fields if field.kind == "reasoning"]
    marks = answers.reasoning_marks("")
    assert (marks is None) == (not reasoning)
    if marks is not None:
        for text, is_open in ((marks.opens[0], True), (marks.opens[0] + marks.closes[0], False)):
            parser = ResponseParser(template)
            parser.push(text + "x")
            assert parser.is_reasoning is is_open
    for field in reasoning:  # which patterns alone find
        assert field.close is not None
        field = dataclasses.replace(field, close=dataclasses.replace(field.close, literals=None))
        by_pattern = dataclasses.replace(template, fields=(field,))
        assert ResponseFormat(family, by_pattern, None, {}).reasoning_marks("") is None


def test_a_long_text_that_the_prompt_begins_is_no_part_of_the_answer() -> None:
    parser = ResponseParser(TEMPLATES["hermes"], CHATML + "word " * 2000, TOOLS)
    assert message_of([*parser.push("a < b"), *parser.flush()]) == Message("", "a < b", [])


def spec(**fields: Any) -> dict[str, Any]:
    return {"start_anchor": "A:", "fields": fields}


def nested(depth: int) -> dict[str, Any]:
    """Arguments of a form whose values have a form whose values ..."""
    args: dict[str, Any] = {}
    for _ in range(depth):
        args = {"value_parser": {"name": "kv-lines", "args": args}}
    return args


def test_the_other_forms() -> None:
    calls = {
        "open_pattern": r"<call (?P<name>\w+)>",
        "close": "</call>",
        "content": "kv-lines",
        "content_args": {"value_parser": {"name": "int"}},
        "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
    }
    template = ResponseTemplate.compile(spec(tool_calls=calls, content={}))
    message = message_of(read(template, ["x<call add>a: 1\nb: 2\n</call>y"]))
    assert message == Message("", "x\n\ny", [("add", {"a": 1, "b": 2})])
    message = message_of(read(template, ["<call add>a: one</call>"]))
    assert message == Message("", "<call add>a: one", [])

    template = ResponseTemplate.compile(spec(tool_calls=calls | {"content": "int"}, content={}))
    message = message_of(read(template, ["<call add>7</call>"]))  # arguments are an object
    assert message == Message("", "<call add>7", [])

    bare = {"open": "<call>", "close": "</call>", "content": "json"}  # the content is the call
    template = ResponseTemplate.compile(spec(tool_calls=bare, content={}))
    for text in (
        '{"name": "add", "arguments": {"a": 1}}',
        '{"arguments": {"a": 1}, "name": "add"}',
        '{"arguments": "{\\"a\\": 1}", "name": "add"}',
    ):
        for pieces in ([f"<call>{text}</call>"], [*f"<call>{text}</call>"]):
            assert message_of(read(template, pieces)) == Message("", "", [("add", {"a": 1})])

    for content, text in (
        ({"content": "json", "content_args": {}}, '<call >{"a": 1}'),
        ({"content": "xml-inline", "content_args": TAGS}, "<call ><a>1</a>"),
    ):
        nameless = calls | content | {"open_pattern": r"<call (?P<name>\w*)>"}
        template = ResponseTemplate.compile(spec(tool_calls=nameless, content={}))
        for pieces in ([f"{text}</call>y"], [*text, "</call>", "y"]):
            assert message_of(read(template, pieces)) == Message("", f"{text}y", [])

    repeated = {
        "open_pattern": r"<call (?P<name>\w+)>",
        "close": "</call>",
        "content": "xml-inline",
        "content_args": {
            "tag_pattern": r"<(?P<key>\w+)>(?P<value>.*?)</\1>",
            "merge_duplicates": True,
            "value_parser": {"name": "json", "args": {"allow_non_json": True}},
        },
        "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
    }
    template = ResponseTemplate.compile(spec(tool_calls=repeated, content={"close": "."}))
    message = message_of(read(template, ["<call add><a>1</a><a>x</a></call>Yes.No."]))
    assert message == Message("", "Yes\n\nNo", [("add", {"a": [1, "x"]})])


TAGS = {"tag_pattern": r"<(?P<key>\w+)>(?P<value>.*?)</\1>"}


@pytest.mark.parametrize(
    ("form", "args", "text", "value"),
    [
        ("text", {}, " a ", "a"),
        ("text", {"strip": False}, " a ", " a "),
        ("int", {}, " 7 ", 7),
        ("float", {}, "7.5", 7.5),
        ("bool", {}, " True ", True),
        ("bool", {}, "1", True),
        ("bool", {}, "no", False),
        ("json", {"allow_non_json": True}, " [1 ", "[1"),
        (
            "json",
            {"string_delims": [["<", ">"], ["«", "»"]], "unquoted_keys": True},
            '{a: <"b">, c:[«}»]}',
            {"a": '"b"', "c": ["}"]},
        ),
        ("kv-lines", {}, "a : b:c\n\nd\ne:", {"a": "b:c", "e": ""}),
        ("kv-lines", {"strip": False, "line_sep": ";", "kv_sep": "="}, "a = 1;b", {"a ": " 1"}),
        ("kv-lines", {"value_parser": {}}, "a: b", {"a": "b"}),
        ("kv-lines", {"value_parser": {"name": "json"}}, "a: [1]", {"a": [1]}),
        ("xml-inline", TAGS, "<a>1</a> <a>2\n</a><b></b>", {"a": "2\n", "b": ""}),
        ("xml-inline", TAGS | {"merge_duplicates": True}, "<a>1</a><a>2</a><a>3</a>", {"a": ["1", "2", "3"]}),
    ],
)  # fmt: skip
def test_what_a_form_makes_of_a_text(
    form: str, args: dict[str, Any], text: str, value: Any
) -> None:
    found = parsed_content(text, form, args)
    assert (found, type(found)) == (value, type(value))


def test_fields_with_other_names_are_content() -> None:
    template = ResponseTemplate.compile(spec(plan={"open": "<p>", "close": "</p>"}, content={}))
    assert message_of(read(template, ["<p>first</p>then"])).content == "first\n\nthen"


def form(name: str, **args: Any) -> dict[str, Any]:
    return spec(tool_calls={"open": "<", "content": name, "content_args": args})


# Also those that would take hours to compile
WRONG_TEMPLATES: list[Any] = [
    [],
    {"start_anchor": "A", "fields": {}},
    spec(a={}, b={}),
    {"fields": {"content": {}}},
    {**spec(content={}), "version": 2},
    {**spec(content={}), "x": 2},
    {**spec(content={}), "defaults": []},
    spec(content={"opens": "x"}),
    *(spec(content={"open": wrong}) for wrong in ("", [], [""], [1], 1)),
    spec(content={"open": "a", "open_pattern": "b"}),
    spec(content={"open": [f"{number}" for number in range(300_000)]}),
    spec(content={"open_pattern": ""}),
    spec(content={"open_pattern": "a" * 4097}),
    spec(content={"content": "yaml"}),
    spec(content={"content": "x" * 10_000}),
    spec(content={"join": 1}),
    spec(content={"x" * 10_000: 1}),
    spec(**{"x" * 10_000: 1}),
    spec(content={"content_args": nested(2_000)}),
    form("xml-inline", tag_pattern="(?P<key>a)"),
    form("kv-lines", value_parser=1),
    form("kv-lines", value_parser={"name": "x"}),
    *(form("json", string_delims=wrong) for wrong in (["<<"], [["<"]], [["<", ""]])),
    form("xml-inline"),
    spec(tool_calls={"open": "<", "transform": {"function": {"name": "f"}}}),
    spec(tool_calls={"open": "<", "transform_each": True}),
]


def test_templates_with_errors() -> None:
    check_refusals(
        "response_template", WRONG_TEMPLATES, ResponseTemplate.compile, name=lambda _: ""
    )
    with pytest.raises(ValueError, match=r"open_pattern='\(': is not a regular expression"):
        ResponseTemplate.compile(spec(content={"open_pattern": "("}))
    ResponseTemplate.compile(spec(content={"open_pattern": "a" * 4096}))
    largest = spec(content={"join": "a" * (20_000 - len(json.dumps(spec(content={"join": ""}))))})
    ResponseTemplate.compile(largest)
    with pytest.raises(ValueError, match="has 20001 characters as JSON"):
        ResponseTemplate.compile(largest | {"start_anchor": "A:b"})


def test_a_literal_can_grow_if_another_one_begins_with_it() -> None:
    assert literal_delimiter(["<a>", "<ab>", "<a"]).can_grow
    assert not literal_delimiter(["<a>", "<ab>", "a"]).can_grow


def test_patterns_that_never_end_are_given_up() -> None:
    template = ResponseTemplate.compile(
        spec(reasoning={"open_pattern": "(x+x+)+y", "close": "z"}, content={})
    )
    assert message_of(read(template, ["x" * 40])) == Message("", "x" * 40, [])


def test_delimiters_without_a_character_come_to_an_end() -> None:
    template = ResponseTemplate.compile(
        spec(reasoning={"open_pattern": "(?=a)", "close_pattern": "(?=a)"}, content={})
    )
    assert message_of(read(template, ["xaay"])) == Message("a\n\nay", "x", [])
    assert message_of(read(template, ["aay"])) == Message("", "a\n\nay", [])


def test_a_region_without_delimiters_may_follow_another() -> None:
    """Reasoning ends and content begins at the same place, where neither has a character of its own."""
    template = ResponseTemplate.compile(
        spec(
            reasoning={"open": "<r>", "close_pattern": "(?=Answer)"},
            content={"open_pattern": "(?=Answer)"},
        )
    )
    assert message_of(read(template, ["<r>why", "Answer: 4"])) == Message("why", "Answer: 4", [])


class TestFormat:
    @pytest.mark.parametrize(
        ("source", "tokens", "family"),
        [
            (CHAT_TEMPLATES["qwen"], (), "hermes"),
            (CHAT_TEMPLATES["llama"], (), "llama3"),
            (CHAT_TEMPLATES["mistral"], (), "mistral"),
            (CHAT_TEMPLATES["gemma"], (), "text"),
            (CHAT_TEMPLATES["harmony"], (), "harmony"),
            ("{{ content.split('</think>')[-1] }}", (), "think"),
            ("<|tool|>", ("<|tool_call|>", "<|/tool_call|>"), "phi4"),
            ("<|tool|>", (), "text"),
            (None, (), "text"),
        ],
    )
    def test_the_family_of_a_chat_template(
        self, source: str | None, tokens: tuple[str, ...], family: str
    ) -> None:
        assert find_response_format(source, tokens).name == family

    def test_the_checkpoints_own_template_comes_first(self) -> None:
        own = {
            "start_anchor": "A:",
            "fields": {
                "tool_calls": {
                    "open": "<<",
                    "close": ">>",
                    "content": "json",
                    "transform": {"function": "{content}"},
                },
                "content": {},
            },
        }
        found = find_response_format(CHAT_TEMPLATES["qwen"], own_template=own)
        assert found.name == "checkpoint"
        assert found.call is not None
        assert found.call.begin == '<<{"name": "{name}", "arguments": '
        assert found.call.end == "}>>"
        with pytest.raises(ValueError, match=r"response_template\.fields: must be an object"):
            find_response_format(None, own_template={})

    def test_special_tokens_are_shown_where_they_are_delimiters(self) -> None:
        hidden = find_response_format(CHAT_TEMPLATES["qwen"], special_tokens={"<|im_end|>": 1})
        shown = find_response_format(CHAT_TEMPLATES["harmony"], special_tokens={"<|message|>": 1})
        assert hidden.skip_special_tokens and not shown.skip_special_tokens
        assert find_response_format(None, special_tokens={"<x>": 1}).skip_special_tokens

    def test_what_a_grammar_would_enforce_is_read_back(self) -> None:
        for family in FAMILIES:
            record = json.loads((FOLDER / f"{family}.json").read_text(encoding="utf-8"))
            sources = " ".join(record["chat_template"]["has"])
            found: ResponseFormat = find_response_format(sources, record.get("tokens", ()))
            assert found.name == family
            grammars = found.call_grammars(TOOLS)
            if grammars is None:
                assert "call" not in record
                continue
            for grammar in grammars:
                assert grammar.begin.startswith(grammar.trigger)
                arguments = {"city": "Paris", "now": True}
                if grammar.argument is None:
                    written = json.dumps(arguments)
                else:
                    begin, end = grammar.argument.begin, grammar.argument.end
                    written = "".join(
                        begin.replace("{key}", key)
                        + (value if isinstance(value, str) else json.dumps(value))
                        + end
                        for key, value in arguments.items()
                    )
                text = grammar.begin + written + grammar.end
                message = message_of(read(found.template, [text]))
                expected = arguments if grammar.name == "get_weather" else message.calls[0][1]
                assert message == Message("", "", [(grammar.name, expected)])
                assert expected.keys() == arguments.keys()


@pytest.mark.parametrize(
    ("text", "types", "expected"),
    [
        (" 3 ", ["integer"], 3),
        ("3.0", ["integer"], 3),
        ("3.5", ["integer"], "3.5"),
        ("3.5", ["number"], 3.5),
        ("true", ["number"], "true"),
        ("NaN", ["number"], "NaN"),  # no JSON
        ("1e999", ["integer"], "1e999"),
        ("True", ["boolean"], True),
        ("yes", ["boolean"], "yes"),
        ("None", ["null"], None),
        ("[1]", ["object", "array"], [1]),
        ("{}", ["array"], "{}"),
        ("3", ["string"], "3"),
    ],
)
def test_an_argument_outside_of_json_is_what_its_schema_wants(
    text: str, types: list[str], expected: object
) -> None:
    for schema in ({"type": types}, {"anyOf": [{"type": name} for name in types]}):
        value = in_type(text, schema)
        assert (value, type(value)) == (expected, type(expected))
