"""Tokenizers of every kind: files, special tokens, chats, and texts that make the library panic."""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from pellucid.inputs.prompts import ChatPrompt, PromptTooLongError
from pellucid.text.chat_template import ChatTemplate, RenderingTime
from pellucid.text.text_encoder import TextEncoder
from pellucid.text.tokenizer import Tokenizer
from pellucid.text.tokenizer_texts import read_added_tokens
from support.refusals import check_refusals
from support.tokenizer_kinds import KINDS

TEMPLATES = {
    "plain": "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "no_bos": "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}",
    "no_system": "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
    "{% endif %}{{ m.role }}: {{ m.content }}<end_of_turn>\n{% endfor %}",
    "no_end_of_turn": "{% for m in messages %}### {{ m.role }}\n{{ m.content }}\n{% endfor %}",
    "splits": "{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('</think>')[-1] }}<|end|>{% endfor %}",
    "dumps": "{{ messages | tojson }}{{ tools | tojson }}{{ documents | tojson }}<|end|>",
    "searches": "{% for m in messages %}{% if '<|end|>' in m.content %}found {% endif %}{{ m.content }}{% endfor %}",
}
CHAT_TOKENS = ("<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<end_of_turn>")


@cache  # they share the workers of their templates
def chat_tokenizer(kind: str, template: str = "plain") -> tuple[tokenizers.Tokenizer, Tokenizer]:
    """Special tokens, and two that are only "added", as Phi-3 and Qwen 3 have them."""
    backend = KINDS[kind]()
    backend.add_special_tokens([token for token in CHAT_TOKENS if token != "<end_of_turn>"])
    backend.add_tokens(
        [tokenizers.AddedToken(t, normalized=False) for t in ("<end_of_turn>", "</think>")]
    )
    bos = "<|begin|>" if kind == "byte_level_bpe" else "<s>"
    return backend, Tokenizer(
        backend, backend.get_vocab_size(), {"bos_token": bos}, TEMPLATES[template], "tiny"
    )


def ask(content: str, role: str = "user") -> list[dict[str, str]]:
    return [{"role": role, "content": content}]


def write(
    directory: Path, kind: str = "byte_level_bpe", **files: dict[str, Any]
) -> tokenizers.Tokenizer:
    backend = KINDS[kind]()
    backend.save(str(directory / "tokenizer.json"))
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return backend


def changed(**changes: object) -> str:
    """A good tokenizer.json with other parts."""
    return json.dumps(json.loads(KINDS["byte_level_bpe"]().to_str()) | changes)


def replaced(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


ABSENT = "there is no such file"
ADDED = json.loads(changed())["added_tokens"]
# Files beside a good tokenizer.json, or in its place
REFUSED_FILES: list[dict[str, str]] = [
    {"tokenizer.json": ABSENT},
    *({"tokenizer.json": ABSENT, it: ""} for it in ("tokenizer.model", "vocab.json", "qwen.tiktoken")),
    {"tokenizer.json": changed(normalizer=replaced({"Regex": "a" * 20_001}, ""))},
    {"tokenizer.json": changed(added_tokens=[{"id": 0}])},
    {"tokenizer.json": changed(added_tokens=[*ADDED[:-1], ADDED[-1] | {"content": "x" * 3_000_000}])},
    {"tokenizer.json": changed(added_tokens=[*ADDED[:-1], ADDED[-1] | {"id": ADDED[-1]["id"] + 1}])},
    {"generation_config.json": '{"bos_token_id": -5}'},
    {"config.json": '{"bos_token_id": -5}'},
    {"tokenizer_config.json": "[]"},
    {"tokenizer_config.json": '{"eos_token": "<none>"}'},
    {"tokenizer_config.json": '{"eos_token": {}, "bos_token": {"lstrip": true}}'},
    {"tokenizer_config.json": '{"added_tokens_decoder": {"0": "x"}}'},
    {"tokenizer_config.json": '{"added_tokens_decoder": {"x": {}}}'},
    {"tokenizer_config.json": '{"a": ' * 5000 + "1" + "}" * 5000},
    {"tokenizer_config.json": '{"chat_template": 5}'},
    {"tokenizer_config.json": '{"chat_template": [{"name": "tools", "template": ""}]}'},
]  # fmt: skip


class TestLoad:
    def test_from_a_directory(self, tmp_path: Path) -> None:
        backend = write(
            tmp_path,
            tokenizer_config={"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"}},
        )
        tokenizer = Tokenizer.load(tmp_path, backend.get_vocab_size())
        assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1)
        assert tokenizer.encode("the quick") == backend.encode("the quick").ids
        assert tokenizer.encode("the", add_special_tokens=False) == tokenizer.encode("the")[1:]
        assert tokenizer.decode(tokenizer.encode("the quick")) == "the quick"
        assert tokenizer.vocab_size == backend.get_vocab_size()

    def test_named_tokens_from_the_other_files(self, tmp_path: Path) -> None:
        backend = write(
            tmp_path,
            special_tokens_map={"bos_token": "<|begin|>"},
            generation_config={"eos_token_id": [1, 5]},
            config={"eos_token_id": 7, "bos_token_id": 9, "pad_token_id": 5},
        )
        tokenizer = Tokenizer.load(tmp_path, backend.get_vocab_size())
        assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1)
        assert (
            tokenizer.decode([5]) == backend.decode([5]) != ""
        )  # what pads is no end, and stays text

    def test_a_named_token_becomes_special(self, tmp_path: Path) -> None:
        backend = write(tmp_path, tokenizer_config={"eos_token": "<think>"})
        tokenizer = Tokenizer.load(tmp_path, backend.get_vocab_size())
        ids = tokenizer.encode("the<think>")
        assert tokenizer.decode(ids) == "the"
        assert tokenizer.decode(ids, skip_special_tokens=False) == "<|begin|>the<think>"

    def test_tokenizer_json_alone_puts_bos_before_a_text(self, tmp_path: Path) -> None:
        config = {"bos_token": "<|begin|>", "add_bos_token": False}
        backend = write(tmp_path, tokenizer_config=config)
        assert Tokenizer.load(tmp_path, backend.get_vocab_size()).encode("the")[0] == 0

    def test_tokens_of_a_fine_tune(self, tmp_path: Path) -> None:
        size = KINDS["byte_level_bpe"]().get_vocab_size()
        added = {str(size): {"content": "<|user|>", "special": True}}
        write(tmp_path, tokenizer_config={"added_tokens_decoder": added})
        tokenizer = Tokenizer.load(tmp_path, size + 1)
        assert tokenizer.encode("<|user|>", add_special_tokens=False) == [size]
        assert tokenizer.decode([size]) == ""
        wrong = {str(size + 1): {"content": "<|user|>", "special": True}}
        write(tmp_path, tokenizer_config={"added_tokens_decoder": wrong})
        with pytest.raises(
            ValueError, match=rf"gives '<\|user\|>' the id {size + 1}, tokenizer.json {size}"
        ):
            Tokenizer.load(tmp_path, size + 2)

    def test_added_tokens_of_a_file_that_is_cut_off_are_not_known(self, tmp_path: Path) -> None:
        (tmp_path / "tokenizer.json").write_text('{"added_tokens": [{"id": 0, "content": "a"}')
        assert read_added_tokens(tmp_path) == {}
        added = [{"id": 5, "content": "<a>"}, {"id": 6, "content": 7}, 8]
        (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added, "model": {}}))
        assert read_added_tokens(tmp_path) == {5: "<a>"}

    def test_truncation_padding_and_dropout_are_off(self, tmp_path: Path) -> None:
        """A tokenizer.json that was saved in training has them: it would give a text other ids each time."""
        backend = KINDS["byte_level_bpe"]()
        backend.enable_truncation(4)
        backend.enable_padding(length=9)
        content = json.loads(backend.to_str())
        content["model"]["dropout"] = 0.5
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
        tokenizer = Tokenizer.load(tmp_path, backend.get_vocab_size())
        text = "the quick brown fox " * 50
        assert tokenizer.encode(text) == KINDS["byte_level_bpe"]().encode(text).ids
        assert len(tokenizer.encode("the")) == 2

    @pytest.mark.parametrize(
        ("file", "content", "error"),
        [
            *(
                ("tokenizer.json", content, "is not a tokenizer: ")
                for content in (b"", b"{", b"[]", b"\xff", b"{}", b'{"model": {"type": "New"}}')
            ),
            ("tokenizer.json", b'{"model": {"type": "BPE"}}', "is not a tokenizer: "),
            ("tokenizer_config.json", b"{", "not JSON: "),
        ],
    )
    def test_garbled_files(self, tmp_path: Path, file: str, content: bytes, error: str) -> None:
        write(tmp_path)
        (tmp_path / file).write_bytes(content)
        with pytest.raises(ValueError, match=rf"{file}:? {error}"):
            Tokenizer.load(tmp_path, 10)

    @pytest.mark.parametrize(
        ("part", "changes", "message"),
        [
            ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}, "Precompiled"),
            (
                "normalizer",
                {"type": "Precompiled", "precompiled_charsmap": "/" * 40},
                "4294967295 bytes",
            ),
            ("pre_tokenizer", {"type": "FixedLength", "length": 0}, "chunk size must be non-zero"),
            ("normalizer", replaced({"String": ""}, "x"), "index out of bounds"),
        ],
    )
    def test_tokenizers_that_would_panic_or_take_gigabytes(
        self, tmp_path: Path, part: str, changes: dict[str, Any], message: str
    ) -> None:
        (tmp_path / "tokenizer.json").write_text(changed(**{part: changes}))
        with pytest.raises(ValueError, match=rf"tokenizer\.json.*{message}"):
            Tokenizer.load(tmp_path, 1000)

    def test_fifo_is_not_a_missing_file(self, tmp_path: Path) -> None:
        write(tmp_path)
        os.mkfifo(tmp_path / "special_tokens_map.json")
        with pytest.raises(ValueError, match=r"special_tokens_map\.json: must be a regular file"):
            Tokenizer.load(tmp_path, 1000)

    def test_files_that_are_refused(self, tmp_path: Path) -> None:
        def load(files: dict[str, str]) -> None:
            for path in tmp_path.iterdir():
                path.unlink()
            for name, text in ({"tokenizer.json": changed()} | files).items():
                if text != ABSENT:
                    (tmp_path / name).write_text(text)
            Tokenizer.load(tmp_path, 1000)

        check_refusals("tokenizer_files", REFUSED_FILES, load, name=" ".join, hidden=tmp_path)


class TestVocabulary:
    def test_a_tokenizer_that_does_not_fit(self) -> None:
        backend = KINDS["unigram"]()
        size = backend.get_vocab_size()
        Tokenizer(backend, size, {})
        with pytest.raises(
            ValueError,
            match=rf"tokenizer of m does not fit: token '\ufffd' has id {size - 1}, but .* of {size - 1}$",
        ):
            Tokenizer(backend, size - 1, {}, model="m")

    def test_padding_of_the_vocabulary(self) -> None:
        backend = KINDS["byte_level_bpe"]()
        size = backend.get_vocab_size()
        tokenizer = Tokenizer(backend, size + 8, {})
        assert tokenizer.decode([size + 7]) == tokenizer.token_text(size + 7) == ""

    def test_a_special_token_that_the_model_lacks(self) -> None:
        """Gemma 3 1B: the tokenizer has <image_soft_token>, the model has no row for it."""
        backend = KINDS["byte_level_bpe"]()
        size = backend.get_vocab_size()
        backend.add_special_tokens(["<image>"])
        tokenizer = Tokenizer(backend, size, {}, "{{ messages[0].content }}<image>")
        assert tokenizer.decode(tokenizer.encode("text")) == "text"
        for encode in (tokenizer.encode, lambda text: tokenizer.encode_chat(ask(text))):
            with pytest.raises(
                ValueError, match=f"token '<image>' with id {size}, but .* of {size}"
            ):
                encode("an <image>")
        with pytest.raises(ValueError, match="does not fit: token '<image>'"):
            Tokenizer(backend, size, {"eos_token": "<image>"})

    def test_no_text(self) -> None:
        tokenizer = chat_tokenizer("byte_level_bpe")[1]
        assert tokenizer.encode("", add_special_tokens=False) == []
        assert tokenizer.encode("") == [0]
        with pytest.raises(ValueError, match="text is not Unicode text"):
            tokenizer.encode("\ud800")

    @pytest.mark.parametrize("kind", KINDS)
    def test_token_text_and_token_bytes(self, kind: str) -> None:
        backend, tokenizer = chat_tokenizer(kind)
        for token_id in range(tokenizer.vocab_size):
            data = tokenizer.token_bytes(token_id)
            twice = backend.decode([token_id] * 2, skip_special_tokens=False)
            if "\ufffd" not in twice:
                assert twice.endswith(data.decode())
                assert tokenizer.token_text(token_id) == data.decode()

    @pytest.mark.parametrize(
        ("kind", "token", "data", "text"),
        [
            ("byte_level_bpe", "ä", b"\xe4", r"\xe4"),
            ("gemma_bpe", "<0xE4>", b"\xe4", r"\xe4"),
            ("byte_level_bpe", "Ġthe", b" the", " the"),
            ("sentencepiece_bpe", "▁the", b" the", " the"),
            ("unigram", "▁the", b" the", " the"),
        ],
    )
    def test_bytes_and_spaces_are_shown(
        self, kind: str, token: str, data: bytes, text: str
    ) -> None:
        backend, tokenizer = chat_tokenizer(kind)
        token_id = backend.token_to_id(token)
        assert (tokenizer.token_bytes(token_id), tokenizer.token_text(token_id)) == (data, text)

    def test_bad_words(self) -> None:
        backend, tokenizer = chat_tokenizer("byte_level_bpe")
        the, space_the, newline = (backend.token_to_id(token) for token in ("the", "Ġthe", "Ċ"))
        assert tokenizer.bad_words_token_ids([]) == ()
        assert tokenizer.bad_words_token_ids(["the", " the"]) == ((the,), (space_the,))
        assert tokenizer.bad_words_token_ids(["\n"]) == ((newline,),)
        with pytest.raises(ValueError, match="bad_words must hold non-empty strings, got ''"):
            tokenizer.bad_words_token_ids(["the", ""])


class TestChat:
    def test_no_template(self) -> None:
        tokenizer = Tokenizer(KINDS["unigram"](), 100, {"eos_token": "</s>"}, model="base-model")
        for method in (tokenizer.encode_chat, tokenizer.apply_chat_template):
            with pytest.raises(
                ValueError, match="base-model has no chat template, which chat needs"
            ):
                method(ask("Hi"))
        assert tokenizer.end_of_turn_token_ids() == (2,)

    def test_template_files(self, tmp_path: Path) -> None:
        named = [{"name": "tools", "template": "no"}, {"name": "default", "template": "list"}]
        backend = write(tmp_path, tokenizer_config={"chat_template": named})
        size = backend.get_vocab_size()
        assert Tokenizer.load(tmp_path, size).apply_chat_template(ask("Hi")) == "list"
        (tmp_path / "chat_template.jinja").write_text("file: {{ messages[0].content }}")
        assert Tokenizer.load(tmp_path, size).apply_chat_template(ask("Hi")) == "file: Hi"

    def test_errors_name_the_model(self, tmp_path: Path) -> None:
        backend = write(tmp_path, tokenizer_config={"chat_template": "{{ x.y }}"})
        with pytest.raises(ValueError, match=f"^chat template of {tmp_path} fails: UndefinedError"):
            Tokenizer.load(tmp_path, backend.get_vocab_size()).encode_chat(ask("Hi"))

    def test_what_a_template_is_asked_first_takes_of_the_conversations_time(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With a limit of its own, a slow template would work twice as long before it is refused."""
        limits: list[RenderingTime | None] = []
        render = ChatTemplate.render

        def note(*given: Any, time_left: RenderingTime | None = None) -> str:
            limits.append(time_left)
            return render(*given, time_left=time_left)

        monkeypatch.setattr(ChatTemplate, "render", note)
        _, tokenizer = chat_tokenizer("byte_level_bpe")
        tokenizer.encode_chat(ask("Hi"))
        assert len(limits) > 1
        assert all(each is limits[0] for each in limits)

    @pytest.mark.parametrize(
        ("template", "eos", "ends"),
        [
            ("plain", "<think>", ["<think>", "<|end|>"]),
            ("plain", "<|end|>", ["<|end|>"]),
            ("no_bos", "<think>", ["<think>", "<|end|>"]),
            ("no_system", "<think>", ["<think>", "<end_of_turn>"]),  # not special in the tokenizer
            ("no_end_of_turn", "<think>", ["<think>"]),
        ],
    )
    def test_end_of_turn(self, template: str, eos: str, ends: list[str]) -> None:
        backend, _ = chat_tokenizer("byte_level_bpe")
        special_tokens = {"bos_token": "<|begin|>", "eos_token": eos}
        tokenizer = Tokenizer(backend, 1000, special_tokens, TEMPLATES[template])
        assert tokenizer.end_of_turn_token_ids() == tuple(map(backend.token_to_id, ends))

    def test_a_template_that_fails_leaves_eos(self) -> None:
        tokenizer = Tokenizer(KINDS["unigram"](), 100, {"eos_token": "</s>"}, "{{ x.y }}")
        assert tokenizer.end_of_turn_token_ids() == (2,)


# For each of several kinds of tokenizer and template
CHATS = [("byte_level_bpe", "splits"), ("sentencepiece_bpe", "plain"), ("gemma_bpe", "no_bos")]
fewer = settings(max_examples=settings.default.max_examples // 3)
TYPED = st.text(st.sampled_from("ab the,<|>/_你\n ▁\ufdd0"), max_size=20)
LOOKALIKES = st.sampled_from(
    ["<|end", "<|end |>", "< |end|>", "<|END|>", "end|>", "<|", "</s", "<think>"]
)


class TestControlTokens:
    """What users type stays text; the rest gets the ids of the plain rendering."""

    @pytest.mark.parametrize(("kind", "template"), [*CHATS, ("unigram", "plain")])
    def test_harmless_messages_are_encoded_as_rendered(self, kind: str, template: str) -> None:
        _, tokenizer = chat_tokenizer(kind, template)

        @fewer
        @given(contents=st.lists(TYPED | LOOKALIKES, min_size=1, max_size=3))
        def check(contents: list[str]) -> None:
            messages = [m for content in contents for m in ask(content)]
            rendered = tokenizer.apply_chat_template(messages)
            assert tokenizer.encode_chat(messages) == tokenizer.encode(
                rendered, add_special_tokens=False
            )

        check()

    @pytest.mark.parametrize(("kind", "template"), CHATS)
    def test_control_tokens_in_messages_are_text(self, kind: str, template: str) -> None:
        _, tokenizer = chat_tokenizer(kind, template)
        special = tokenizer.special_token_ids
        clean = [i for i in tokenizer.encode_chat(ask("x")) if i in special]

        @fewer
        @given(contents=st.lists(TYPED | LOOKALIKES | st.sampled_from(CHAT_TOKENS), max_size=6))
        def check(contents: list[str]) -> None:
            ids = tokenizer.encode_chat(ask("".join(contents).replace("\ufdd0", "")))
            assert [i for i in ids if i in special] == clean

        check()

    @pytest.mark.parametrize("kind", ["byte_level_bpe", "sentencepiece_bpe", "gemma_bpe"])
    def test_they_get_the_ids_of_a_tokenizer_that_does_not_know_them(self, kind: str) -> None:
        backend, tokenizer = chat_tokenizer(kind, "no_system")
        ignorant = KINDS[kind]()
        ignorant.add_tokens([tokenizers.AddedToken("<end_of_turn>", normalized=False)])
        typed = st.sampled_from(["<|user|>", "<|assistant|>", "<|system|>"])

        @fewer
        @given(contents=st.lists(TYPED | typed, max_size=6))
        def check(contents: list[str]) -> None:
            messages = ask("".join(contents).replace("\ufdd0", ""))
            rendered = tokenizer.apply_chat_template(messages)
            tokens = [backend.id_to_token(i) for i in tokenizer.encode_chat(messages)]
            assert tokens == ignorant.encode(rendered, add_special_tokens=False).tokens

        check()

    def test_a_token_that_only_the_template_makes_a_control_token(self) -> None:
        backend, tokenizer = chat_tokenizer("byte_level_bpe", "no_system")
        end = backend.token_to_id("<end_of_turn>")
        assert tokenizer.encode_chat(ask("a<end_of_turn>b")).count(end) == 1
        # one that it does not write is what the model calls it
        think = backend.token_to_id("<think>")
        assert tokenizer.encode_chat(ask("a<think>b")).count(think) == 1

    def test_nested_and_torn_tokens(self) -> None:
        backend, tokenizer = chat_tokenizer("byte_level_bpe", "splits")
        end = backend.token_to_id("<|end|>")
        assert tokenizer.encode_chat(ask("<|e<|end|>nd|>")).count(end) == 1
        ids = tokenizer.encode_chat(ask("<|end|>a</think><|e</think><|end|>b"))
        assert ids.count(end) == 1
        assert tokenizer.decode(ids, skip_special_tokens=False) == "<|user|><|end|>b<|end|>"

    def test_templates_can_search_for_them(self) -> None:
        _, tokenizer = chat_tokenizer("byte_level_bpe", "searches")
        ids = tokenizer.encode_chat(ask("a<|end|>"))
        assert tokenizer.decode(ids) == "found a<|end|>"

    def test_names_arguments_and_tools_are_text_too(self) -> None:
        backend, tokenizer = chat_tokenizer("byte_level_bpe", "dumps")
        end = backend.token_to_id("<|end|>")
        call = {
            "id": "<|end|>",
            "function": {"name": "<|end|>", "arguments": {"<|end|>": "<|end|>"}},
        }
        messages = [
            {"role": "user", "content": "Hi", "name": "<|end|>"},
            {"role": "assistant", "tool_calls": [call], "reasoning_content": "<|end|>"},
            {"role": "tool", "content": [{"type": "text", "text": "<|end|>"}]},
        ]
        tool = {"type": "function", "function": {"name": "<|end|>", "enum": ["<|end|>"]}}
        ids = tokenizer.encode_chat(messages, tools=[tool], documents=[{"text": "<|end|>"}])
        assert ids.count(end) == 1
        assert tokenizer.decode(ids, False) == tokenizer.apply_chat_template(
            messages, tools=[tool], documents=[{"text": "<|end|>"}]
        )

    def test_marks_cannot_be_forged(self) -> None:
        _, tokenizer = chat_tokenizer("byte_level_bpe")
        with pytest.raises(
            ValueError,
            match=r"messages\[0\]\.content: a conversation with the text of a control token",
        ):
            tokenizer.encode_chat(ask("\ufdd0<|end|>\ufdd1"))

    def test_a_tokenizer_that_cannot_encode_them_as_text(self) -> None:
        """Unigram and word-level vocabularies contain the token's text as a piece of text."""
        backend = tokenizers.Tokenizer(models.WordLevel({"<unk>": 0, "Hi": 1, "</s>": 2}, "<unk>"))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        backend.add_special_tokens(["</s>"])
        tokenizer = Tokenizer(backend, 3, {"eos_token": "</s>"}, "{{ messages[0].content }} </s>")
        assert tokenizer.encode_chat(ask("Hi")) == [1, 2]
        with pytest.raises(
            ValueError, match="messages contain '</s>', which this model's tokenizer can only"
        ):
            tokenizer.encode_chat(ask("Hi </s> Hi"))

    @pytest.mark.parametrize(
        ("kind", "token", "written", "match"),
        [
            ("gemma_bpe", "<|x y|>", "<|x y|>", {"normalized": True}),  # as in older files
            ("byte_level_bpe", "<|x|>", " a<|x|> <|x|>", {"single_word": True}),
        ],
        ids=["after normalization", "as words alone"],
    )
    def test_special_tokens_that_match(
        self, kind: str, token: str, written: str, match: dict[str, bool]
    ) -> None:
        backend = KINDS[kind]()
        backend.add_special_tokens([tokenizers.AddedToken(token, **match)])
        tokenizer = Tokenizer(backend, 1000, {}, "{{ messages[0].content }}" + written)
        for content in ("Hi", f"Hi {token}"):
            found = tokenizer.encode_chat(ask(content))
            assert found.count(backend.token_to_id(token)) == 1


def panicking_tokenizer() -> Tokenizer:
    """Its pre-tokenizer's expression gives up on a long run of "a" before a "b", by a panic."""
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1, " ": 2}, []))
    backend.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex("(a+)+$"), "isolated")
    return Tokenizer(backend, 3, {}, "{{ messages[0].content }}", "tiny")


class TestTexts:
    def test_a_panic_is_an_error_of_that_text(self, capfd: pytest.CaptureFixture[str]) -> None:
        tokenizer = panicking_tokenizer()
        bomb = "a" * 40 + "b"
        for encode in (
            lambda: tokenizer.encode(bomb),
            lambda: tokenizer.encode(bomb * 100),
            lambda: tokenizer.encode_chat(ask(bomb)),
        ):
            with pytest.raises(ValueError, match="the tokenizer of tiny failed on it: Onig: Regex"):
                encode()
        with pytest.raises(
            ValueError, match=r"bad_words: 'a{40}b': text: the tokenizer of tiny failed"
        ):
            tokenizer.bad_words_token_ids(["b", bomb])
        assert tokenizer.encode("ab") == [0, 1]

    def test_a_bad_word_without_tokens(self) -> None:
        backend = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
        tokenizer = Tokenizer(backend, 1, {})
        with pytest.raises(ValueError, match="bad_words: 'é': the tokenizer makes no token of it"):
            tokenizer.bad_words_token_ids(["a", "é"])

    @pytest.mark.parametrize("kind", KINDS)
    def test_long_texts_have_the_ids_of_short_ones(self, kind: str) -> None:
        backend, tokenizer = chat_tokenizer(kind)
        text = "the quick brown fox, isn't it? <|user|> 你好 " * 200
        for special in (False, True):
            expected = backend.encode(text, add_special_tokens=special).ids
            assert tokenizer.encode(text, special) == expected

    @pytest.mark.parametrize("kind", KINDS)
    def test_texts_that_are_surely_too_long_are_refused_early(
        self, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        backend, tokenizer = chat_tokenizer(kind)
        encoded = []
        plain = tokenizer._encoder.encode

        def encode(text: str, *args: bool) -> object:
            encoded.append(len(text))
            return plain(text, *args)

        tokenizer._encoder.encode = encode  # type: ignore[method-assign]
        longest = max(map(len, backend.get_vocab()))
        with pytest.raises(
            PromptTooLongError, match="has at least 1000 tokens; the context of 1000"
        ):
            tokenizer.encode("x" * longest * 1000, max_model_len=1000)
        monkeypatch.setattr(ChatTemplate, "render", None)
        with pytest.raises(PromptTooLongError, match="at least"):
            tokenizer.encode_conversation(ChatPrompt(ask("x" * longest * 1000)), 1000)
        assert encoded == []
        words = "the quick 你好 " * 50_000
        with pytest.raises(PromptTooLongError, match="at least") as refused:
            tokenizer.encode(words, max_model_len=2 * len(words) // longest)
        assert sum(encoded) < len(words)
        assert refused.value.num_tokens <= len(backend.encode(words[: sum(encoded)]).ids)

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_text_that_fits_is_never_refused(self, kind: str) -> None:
        _, tokenizer = chat_tokenizer(kind)
        for text in ("the quick brown fox " * 400, " " * 9000, "é" * 5000, "the" * 3000):
            ids = tokenizer.encode(text)
            if len(ids) > 1:  # WordPiece drops white space, however much there is
                assert tokenizer.encode(text, max_model_len=len(ids) + 1) == ids


class Vocabulary:
    """A tokenizer of the library's that says how often all of its tokens were listed."""

    def __init__(self) -> None:
        self.num_lists = 0

    def get_vocab(self) -> dict[str, int]:
        self.num_lists += 1
        return {"a": 0, "abc": 1}


def test_a_text_that_fits_does_not_list_the_vocabulary() -> None:
    """Of 262,144 tokens this takes a tenth of a second, before the first token of a process."""
    vocabulary = Vocabulary()
    encoder = TextEncoder(vocabulary, "the model")  # type: ignore[arg-type]
    encoder.check_num_chars(9, 10)
    assert vocabulary.num_lists == 0
    encoder.check_num_chars(29, 10)
    with pytest.raises(PromptTooLongError):
        encoder.check_num_chars(30, 10)
    assert vocabulary.num_lists == 1
