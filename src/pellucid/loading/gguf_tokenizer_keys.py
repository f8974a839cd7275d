"""The keys of a GGUF file that say something about its tokenizer, each read by itself."""

import re

from pellucid.facts.json_object import MAX_INTEGER, JsonObject

PREFIX = "tokenizer.ggml."
MODEL, PRE, TOKENS, TOKEN_TYPE, SCORES, MERGES = (
    f"{PREFIX}{name}" for name in ("model", "pre", "tokens", "token_type", "scores", "merges")
)
BOS_TOKEN_ID, EOS_TOKEN_ID = f"{PREFIX}bos_token_id", f"{PREFIX}eos_token_id"
EOS_TOKEN_IDS = f"{PREFIX}eos_token_ids"
_TEMPLATE, _TEMPLATE_NAMES = "tokenizer.chat_template", "tokenizer.chat_templates"

# Roles of single tokens: `tokenizer.ggml.eos_token_id` and so on.
END_ROLES = ("eos", "eot", "eom")
_ROLES = re.compile(
    "(bos|eos|eot|eom|unknown|seperator|separator|padding|cls|mask|prefix|suffix|middle|fim_[a-z]+)"
    "_token_id"
)
_ID_LISTS = re.compile(r"\w+_token_ids|suppress_tokens")
_FLAGS = re.compile(r"add_\w+_(token|prefix)|remove_extra_whitespaces|normalizer\.\w+")
_READ_ELSEWHERE = (MODEL, PRE, TOKENS, TOKEN_TYPE, SCORES, MERGES, f"{PREFIX}token_type_count")
_CHARACTER_MAP = f"{PREFIX}precompiled_charsmap"
# What changes a text before it is split, which other kinds than ours use.
_CHANGES_OF_TEXT = (
    _CHARACTER_MAP,
    *(
        f"{PREFIX}{name}"
        for name in (
            "remove_extra_whitespaces",
            "normalizer.lowercase",
            "normalizer.strip_accents",
        )
    ),
)
# What writers put where no token has a role: -1, in as many bits as the key has.
_NO_TOKEN = (-1, 2**32 - 1, 2**64 - 1)


def check_keys(metadata: JsonObject) -> None:
    """Raises a ValueError for a key that is not known, or that has a value of another type."""
    for key in metadata.values:
        if not key.startswith(PREFIX) or key in _READ_ELSEWHERE or key == _CHARACTER_MAP:
            continue
        name = key.removeprefix(PREFIX)
        if _FLAGS.fullmatch(name):
            metadata.boolean(key, False)
        elif _ROLES.fullmatch(name):
            role_id(metadata, key)
        elif _ID_LISTS.fullmatch(name):
            id_list(metadata, key)
        else:
            raise metadata.error(key, "is not known: an unknown key may change tokens")


def find_change_of_text(metadata: JsonObject) -> str | None:
    """A key that asks for a change of the text that pellucid does not make."""
    return next((key for key in _CHANGES_OF_TEXT if metadata.values.get(key)), None)


def role_id(metadata: JsonObject, key: str) -> int | None:
    """A token id, None where no token has the role.

    Raises:
        ValueError: the value is neither.
    """
    if key not in metadata.values or _is_no_token(metadata.values[key]):
        return None
    return metadata.integer(key, minimum=0)


def id_list(metadata: JsonObject, key: str) -> list[int]:
    """A list of token ids, without what stands for none.

    Raises:
        ValueError: the value is no such list.
    """
    values = metadata.values.get(key, [])
    if not isinstance(values, list) or not all(map(_is_token_id_or_none, values)):
        raise metadata.error(key, "must be a list of token ids")
    return [value for value in values if not _is_no_token(value)]


def read_end_token_ids(metadata: JsonObject) -> tuple[int, ...]:
    """Every token that ends an answer: of text, of a turn, of a message; and Ollama's list of them.

    Raises:
        ValueError: a key has a value that is not allowed.
    """
    found = [role_id(metadata, f"{PREFIX}{role}_token_id") for role in END_ROLES]
    found += id_list(metadata, EOS_TOKEN_IDS)
    return tuple(dict.fromkeys(token_id for token_id in found if token_id is not None))


def read_chat_templates(metadata: JsonObject) -> tuple[str | None, str | None]:
    """The sources of the template and of the one for tools, None where there is none.

    Raises:
        ValueError: a template is no string, or the list of templates names one that is not there.
    """
    keys = [key for key in metadata.values if key.startswith(f"{_TEMPLATE}.") or key == _TEMPLATE]
    templates = {
        key.removeprefix(_TEMPLATE).removeprefix("."): metadata.string(key) for key in keys
    }
    default = templates.get("", templates.get("default"))
    for name in metadata.optional_strings(_TEMPLATE_NAMES) or ():
        if name not in templates and (name != "default" or default is None):
            raise metadata.error(_TEMPLATE_NAMES, f"there is no {_TEMPLATE}.{name}")
    return default, templates.get("tool_use")


def _is_no_token(value: object) -> bool:
    return type(value) is int and value in _NO_TOKEN


def _is_token_id_or_none(value: object) -> bool:
    return type(value) is int and (0 <= value <= MAX_INTEGER or value in _NO_TOKEN)
