"""The variables that a chat template reads, without running or compiling it."""

from jinja2 import Environment, TemplateSyntaxError

_TAG_WORDS = frozenset(
    {
        *("and", "defined", "else", "false", "if", "in", "is", "loop", "none", "not", "or", "true"),
        *("False", "None", "True", "block", "break", "call", "continue", "do", "elif", "endblock"),
        *("endcall", "endfilter", "endfor", "endgeneration", "endif", "endmacro", "endset"),
        *("endwith", "filter", "for", "generation", "ignore", "import", "include", "macro"),
        *("recursive", "set", "with"),
    }
)
_Word = tuple[str, str]  # kind and text


def template_variables(source: str) -> list[str]:
    """Names that the template reads before it sets them, functions included, in order of the alphabet; [] if it
    is no template.

    The lexer alone reads it: a template is untrusted, and compiling one computes its constants.
    """
    try:
        words = [
            (kind, text)
            for _, kind, text in Environment(autoescape=False).lex(source)
            if kind in ("name", "operator", "block_begin", "block_end", "variable_begin")
        ]
    except TemplateSyntaxError:
        return []
    read: set[str] = set()
    is_set: set[str] = set()
    parameters: set[str] = set()  # of the macro
    for index, (kind, word) in enumerate(words):
        if kind != "name":
            continue
        if word in _TAG_WORDS:
            if word == "macro":
                parameters = _names_of_tag(words, index)
                is_set.add(words[index + 1][1])
            elif word == "endmacro":
                parameters = set()
            continue
        before = words[index - 1][1] if index else ""
        after = words[index + 1][1] if index + 1 < len(words) else ""
        is_test = before == "is" or (before == "not" and words[index - 2][1] == "is")
        if before in (".", "|") or is_test or word in parameters:
            continue
        if before == "set" or _is_loop_variable(words, index):
            is_set.add(word)
        elif after != "=" and word not in is_set:  # not the name of an argument
            read.add(word)
    return sorted(read)


def _names_of_tag(words: list[_Word], index: int) -> set[str]:
    """From a word to the end of its tag: the name of a macro and of its parameters."""
    names = set()
    for kind, word in words[index + 1 :]:
        if kind == "block_end":
            break
        if kind == "name":
            names.add(word)
    return names


def _is_loop_variable(words: list[_Word], index: int) -> bool:
    """Whether a name stands between "for" and "in"."""
    for kind, word in reversed(words[:index]):
        if kind in ("block_begin", "variable_begin") or word == "in":
            return False
        if word == "for":
            return True
    return False
