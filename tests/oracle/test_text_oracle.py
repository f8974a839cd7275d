"""Tokenizers and chat templates, compared live with transformers: the same ids, prompts and texts."""

import json

import pytest

from pellucid.text.tokenizer import Tokenizer
from support.chat_templates import FAMILIES
from support.tokenizer_kinds import KINDS

transformers = pytest.importorskip("transformers")

TEXTS = [
    "",
    "the quick brown fox",
    "  the  dog\n\n",
    "naïve café 你好 🚀",
    "<|begin|>the<think><s>",
]
MESSAGES = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "the 'quick' <b>fox</b>\n"},
    {"role": "assistant", "content": "你好"},
    {"role": "user", "content": "and?"},
]
TEMPLATES = {
    # in the manner of Llama 3, Qwen 2.5 with tools, Gemma, Mistral
    "trims": "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n\n{{ m['content'] | trim }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n\n{% endif %}",
    "tools": "{%- if tools %}\n    {{- 'tools' }}\n{%- else %}\n    {{- messages[0].content | tojson }}\n{%- endif %}\n"
    "{%- for m in messages %}\n    {%- if loop.first %}{%- continue %}{% endif %}\n    {{- m.role + '\n' + m.content }}"
    "\n{%- endfor %}\n",
    "merges": "{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}"
    "{% set ns.system = m.content %}{% elif m.role == 'user' %}[INST] {{ ns.system }}{{ m.content }} [/INST]"
    "{% set ns.system = '' %}{% else %}{% generation %} {{ m.content }}{{ eos_token }}{% endgeneration %}{% endif %}"
    "{% endfor %}",
    "dumps": "{{ messages | tojson(indent=2) }}{{ bos_token }}{{ unk_token }}{{ pad_token }}{{ nothing }}",
}


def save(directory, kind, **config):
    backend = KINDS[kind]()
    backend.save(str(directory / "tokenizer.json"))
    bos, eos = ("<|begin|>", "<|end|>") if kind == "byte_level_bpe" else ("<s>", "</s>")
    content = {
        "bos_token": bos,
        "eos_token": eos,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **config,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(content))
    ours = Tokenizer.load(directory, backend.get_vocab_size())
    return ours, transformers.AutoTokenizer.from_pretrained(directory)


@pytest.fixture(params=[kind for kind in KINDS if kind != "word_piece"])
def kind(request):
    return request.param


@pytest.mark.parametrize(
    "config", [{}, {"add_bos_token": False}, {"add_bos_token": True, "add_eos_token": True}]
)
def test_ids_and_text(tmp_path, kind, config):
    ours, theirs = save(tmp_path, kind, **config)
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)
    for text in TEXTS:
        for special in (False, True):
            ids = theirs.encode(text, add_special_tokens=special)
            assert ours.encode(text, add_special_tokens=special) == ids
            assert ours.decode(ids, special) == theirs.decode(ids, skip_special_tokens=special)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("add_generation_prompt", [False, True])
def test_chats(tmp_path, kind, name, add_generation_prompt):
    ours, theirs = save(tmp_path, kind, chat_template=TEMPLATES[name])
    options = {"add_generation_prompt": add_generation_prompt}
    text = theirs.apply_chat_template(MESSAGES, tokenize=False, **options)
    assert ours.apply_chat_template(MESSAGES, **options) == text
    ids = theirs.apply_chat_template(MESSAGES, return_dict=False, **options)
    assert ours.encode_chat(MESSAGES, **options) == ids


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds <two> numbers: 'a' & \"b\"",
            "parameters": {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}},
        },
    }
]
CALL = {
    "id": "abc123def",
    "type": "function",
    "function": {"name": "add", "arguments": {"b": 1, "a": ["é", None, True, 0.5]}},
}
CONVERSATIONS = {
    "plain": [{"role": "system", "content": "Be brief."}, *MESSAGES[1:]],
    "call": [
        {"role": "user", "content": "What is 1 + 2?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "abc123def", "content": "3"},
        {"role": "assistant", "content": "3", "reasoning_content": "so 3"},
    ],
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("end", ["opened", "closed", "continued"])
def test_families(tmp_path, family, name, tools, end):
    """The same text and ids; what transformers cannot render, we may."""
    ours, theirs = save(tmp_path, "sentencepiece_bpe", chat_template=FAMILIES[family])
    options = {
        "tools": tools,
        "add_generation_prompt": end == "opened",
        "continue_final_message": end == "continued",
    }
    if FAMILIES[family].count("date_string"):
        options["date_string"] = "1 Jan 2026"
    messages = CONVERSATIONS[name]
    if end == "continued":
        messages = [*messages[:2], {"role": "assistant", "content": "The answer is "}]
        if name == "call":
            messages.pop(1)
    try:
        text = theirs.apply_chat_template(messages, tokenize=False, **options)
    except Exception as error:
        if family not in ("gemma", "parts only", "text arguments") and "alternate" not in str(
            error
        ):
            raise
        return
    if tools and "tools" not in FAMILIES[family]:  # transformers drops them silently
        with pytest.raises(ValueError, match="template does not take tools"):
            ours.apply_chat_template(messages, **options)
        return
    if family == "parts only":  # transformers lets the template walk over a string's characters
        return
    assert ours.apply_chat_template(messages, **options) == text
    ids = theirs.apply_chat_template(messages, return_dict=False, **options)
    assert ours.encode_chat(messages, **options) == ids
