"""What decides the end of answers, and how a model chats: by its files, without a tokenizer."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pellucid.checking.chat import chat_facts
from pellucid.checking.report import ChatFacts, EndToken
from pellucid.facts.json_object import JsonObject
from pellucid.loading import file_names
from pellucid.loading.stored_model import StoredModel
from pellucid.text import tokenizer_texts
from pellucid.text.responses.family_records import find_answer_ends

_GGUF_END_KEY = re.compile(r"tokenizer\.ggml\.(eos|eot|eom)_token_ids?")
_EOS_TOKEN = f"{file_names.TOKENIZER_CONFIG_FILE}: eos_token"
_ANSWER_FORMAT = "the format of its answers"


class _Tokens(NamedTuple):
    """What the files of a tokenizer say.

    Attributes:
        added: texts of tokens that are found before words are, by id.
        named_ends: ids of end tokens by the key that names them.
        has_own_format: whether the files say how to read answers.
    """

    added: Mapping[int, str]
    named_ends: Mapping[str, tuple[int, ...]]
    chat_template: str | None
    tool_chat_template: str | None
    has_own_format: bool = False


def read_token_facts(stored: StoredModel) -> tuple[tuple[EndToken, ...], ChatFacts]:
    """The tokens that end an answer, and what the model does with conversations.

    In a conversation, the token that the chat template writes after an answer ends it too; the template is not
    rendered here.

    Raises:
        ValueError: loading would refuse the tokenizer.
    """
    tokens = (
        _read_directory(stored.path) if stored.metadata is None else _read_gguf(stored.metadata)
    )
    chat = chat_facts(
        tokens.chat_template,
        tokens.tool_chat_template,
        tokens.added.values(),
        tokens.has_own_format,
    )
    return _end_tokens(stored.config.eos_token_ids, tokens), chat


def _end_tokens(of_config: tuple[int, ...], tokens: _Tokens) -> tuple[EndToken, ...]:
    """Those that `Tokenizer.answer_ends` leaves, each with what names it."""
    ids = {text: token_id for token_id, text in tokens.added.items()}
    ends = find_answer_ends(tokens.chat_template, ids)
    of_answers = tuple(ids[text] for text in ends.of_answers)
    of_messages = {ids[text] for text in ends.of_messages}
    named = {**tokens.named_ends, _ANSWER_FORMAT: of_answers}
    of_tokenizer = tokens.named_ends.get(_EOS_TOKEN, ())
    return tuple(
        EndToken(
            token_id,
            tokens.added.get(token_id),
            tuple(key for key, named_ids in named.items() if token_id in named_ids),
        )
        for token_id in dict.fromkeys((*of_config, *of_tokenizer, *of_answers))
        if token_id not in of_messages
    )


def _read_gguf(metadata: JsonObject) -> _Tokens:
    # Imported here: a directory needs none of it.
    from pellucid.loading.gguf_tokenizer_facts import facts_of, find_tokenizer_refusal
    from pellucid.loading.gguf_vocabulary import TokenType, Vocabulary

    if (refusal := find_tokenizer_refusal(metadata)) is not None:
        raise ValueError(refusal)
    vocabulary = Vocabulary(metadata)
    facts = facts_of(metadata, vocabulary)
    keys = [key for key in metadata.values if _GGUF_END_KEY.fullmatch(key)]
    special = (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED)
    added = {each: vocabulary.tokens[each] for each in vocabulary.ids_of_types(special)}
    return _Tokens(
        {**facts.end_tokens, **added},
        {key: _ids(metadata.values[key]) for key in keys},
        facts.chat_template,
        facts.tool_chat_template,
    )


def _read_directory(directory: Path) -> _Tokens:
    tokenizer_texts.find_tokenizer_file(directory)
    config = tokenizer_texts.read_optional_json(directory / file_names.TOKENIZER_CONFIG_FILE)
    templates = tokenizer_texts.read_chat_templates(config, directory)
    added = tokenizer_texts.read_added_tokens(directory)
    eos = config.get("eos_token")
    eos_text = eos.get("content") if isinstance(eos, dict) else eos
    named = {_EOS_TOKEN: tuple(token_id for token_id, text in added.items() if text == eos_text)}
    for file in (file_names.CONFIG_FILE, file_names.GENERATION_CONFIG_FILE):
        values = tokenizer_texts.read_optional_json(directory / file)
        named[f"{file}: eos_token_id"] = _ids(values.get("eos_token_id"))
        if isinstance(text := values.get("text_config"), dict):
            named[f"{file}: text_config.eos_token_id"] = _ids(text.get("eos_token_id"))
    return _Tokens(
        added,
        named,
        templates.get("default"),
        templates.get("tool_use"),
        config.get("response_template") is not None,
    )


def _ids(value: Any) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, list) else (value,)
