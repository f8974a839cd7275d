"""Token ids of a conversation, in which only the template writes control tokens."""

import copy
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property

from tokenizers import AddedToken, normalizers
from tokenizers import Tokenizer as Backend

from pellucid.text.chat_template import ChatTemplate, check_messages

# Noncharacters: Unicode keeps them for a program's own use (Unicode 16, section 23.7)
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"

_ANSWER = "the-answer-of-the-assistant"
_PROBE = (
    {"role": "system", "content": "the-system-prompt"},
    {"role": "user", "content": "the-first-question"},
    {"role": "assistant", "content": _ANSWER},
    {"role": "user", "content": "the-second-question"},
)


class ChatEncoder:
    """Renders a conversation with its template and encodes the result.

    Control tokens are the special tokens, and all other added tokens that the template writes around
    messages. Where a message contains the text of one, that text is encoded as text. All else is encoded
    as if it were one string, so messages without such text get the ids of the plain rendering.

    Text that becomes a control token only together with its surroundings is not found: one half at
    the end of a message, the other at the start of what the template puts behind it.

    Args:
        backend: text to ids.
        template: the model's.
    """

    def __init__(self, backend: Backend, template: ChatTemplate) -> None:
        self._backend = backend
        self.template = template

    def encode(
        self,
        messages: Sequence[Mapping[str, str]],
        add_generation_prompt: bool = True,
        **variables: str | bool,
    ) -> list[int]:
        """The ids of the rendered conversation; the template alone decides on a BOS token.

        Raises:
            ValueError: as `ChatTemplate.render`, or a message has the text of a control token that this
                tokenizer cannot encode as text.
        """
        check_messages(messages)
        if not any(self._control.search(text) for message in messages for text in message.values()):
            text = self.template.render(messages, add_generation_prompt, **variables)
            plain: list[int] = self._backend.encode(text, add_special_tokens=False).ids
            return plain
        marked = [
            {key: self._mark(text, f"messages[{i}][{key!r}]") for key, text in message.items()}
            for i, message in enumerate(messages)
        ]
        return self._encode_marked(self.template.render(marked, add_generation_prompt, **variables))

    @cached_property
    def end_of_turn_token_id(self) -> int | None:
        """The control token that the template writes right after an assistant's message, if any."""
        _, found, rest = self._probe.partition(_ANSWER)
        token = self._control.match(rest.lstrip()) if found else None
        return None if token is None else self._backend.token_to_id(token[0])

    def _mark(self, text: str, name: str) -> str:
        """Wraps control tokens: the template can still search and split the text, as it may want to."""
        if _OPEN in text or _CLOSE in text:
            raise ValueError(
                f"{name} has the text of a control token; it must not also have U+FDD0 or U+FDD1"
            )
        return self._control.sub(f"{_OPEN}\\g<0>{_CLOSE}", text)

    def _encode_marked(self, text: str) -> list[int]:
        # <|x|> in marks becomes <, mark, |x|>, which matches no added token; then the normalizer drops
        # the mark. Marks that the template tore apart keep their surroundings from joining.
        wrapped = re.compile(f"{_OPEN}({self._control.pattern}){_CLOSE}")
        text = wrapped.sub(lambda match: match[1][0] + _OPEN + match[1][1:], text)
        text = text.replace(_CLOSE, _OPEN)
        encoding = self._mark_dropping_backend.encode(text, add_special_tokens=False)
        for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id in self._control_tokens and _OPEN in text[start:end]:
                literal = text[start:end].replace(_OPEN, "")
                raise ValueError(
                    f"messages contain {literal!r}, which this model's tokenizer can only encode as"
                    " its control token"
                )
        ids: list[int] = encoding.ids
        return ids

    @cached_property
    def _probe(self) -> str:
        """A conversation as the template writes it; "" if it takes neither form of ours."""
        for messages in (_PROBE, _PROBE[1:]):  # some refuse system prompts
            with suppress(ValueError):
                return self.template.render(messages, add_generation_prompt=False)
        return ""

    @cached_property
    def _control_tokens(self) -> dict[int, AddedToken]:
        return {
            token_id: token
            for token_id, token in self._backend.get_added_tokens_decoder().items()
            if token.special or (token.content in self._probe and not token.content.isspace())
        }

    @cached_property
    def _control(self) -> re.Pattern[str]:
        contents = [token.content for token in self._control_tokens.values()]
        longest_first = sorted(contents, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    @cached_property
    def _mark_dropping_backend(self) -> Backend:
        """A copy that drops marks after it has looked for control tokens, and does not look again."""
        backend = copy.deepcopy(self._backend)
        backend.add_special_tokens(
            [
                AddedToken(
                    token.content,
                    single_word=token.single_word,
                    lstrip=token.lstrip,
                    rstrip=token.rstrip,
                    normalized=False,
                )
                for token in self._control_tokens.values()
            ]
        )
        drop = normalizers.Replace(_OPEN, "")
        own = backend.normalizer
        backend.normalizer = drop if own is None else normalizers.Sequence([drop, own])
        return backend
