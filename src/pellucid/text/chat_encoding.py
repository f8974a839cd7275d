"""Encodes conversations: only the chat template writes control tokens, not the messages."""

import copy
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from tokenizers import AddedToken, normalizers

from pellucid.inputs.conversation import num_characters
from pellucid.inputs.prompts import ChatPrompt
from pellucid.loading.stored_model import whole_tokenizer
from pellucid.text.chat_template import ChatTemplate, RenderingTime
from pellucid.text.template_forms import TemplateForms, find_forms, in_forms
from pellucid.text.text_encoder import TextEncoder

# Noncharacters: Unicode keeps them for a program's own use (Unicode 16, section 23.7)
_OPEN, _CLOSE, _CONTINUED = "\ufdd0", "\ufdd1", "\ufdd2"
_NEVER = re.compile("(?!)")


class ChatEncoder:
    """Renders conversations with a template and encodes the result.

    Control tokens are the special tokens, and all other added tokens that the template writes around
    messages. Where a message contains the text of one, that text is encoded as text. All else is encoded
    as if it were one string, so messages without such text get the ids of the plain rendering.

    Text that becomes a control token only together with its surroundings is not found: one half at
    the end of a message, the other at the start of the template's text after it.
    """

    def __init__(self, encoder: TextEncoder, template: ChatTemplate) -> None:
        self._encoder = encoder
        self.template = template
        self._found_forms: TemplateForms | None = None

    def render(self, prompt: ChatPrompt, max_model_len: int | None = None) -> str:
        """The conversation as text.

        Args:
            max_model_len: tokens of prompt and answer: a conversation that is certainly longer is refused.

        Raises:
            PromptTooLongError: the conversation does not fit in `max_model_len`.
            ValueError: as `ChatTemplate.render`; or there are tools, or a variable in
                `chat_template_kwargs`, that the template does not mention; or the final message cannot be continued.
        """
        self._check_num_chars(prompt, max_model_len)
        return self._render(prompt, self._full_time(), _NEVER)

    def encode(self, prompt: ChatPrompt, max_model_len: int | None = None) -> list[int]:
        """The ids of the rendered conversation; the template alone decides on a BOS token.

        Args:
            max_model_len: tokens of prompt and answer. A conversation that is certainly longer is refused before
                it is rendered, or before all of it is encoded.

        Raises:
            PromptTooLongError: the conversation does not fit in `max_model_len`.
            ValueError: as `render`, or a message has the text of a control token that this tokenizer
                cannot encode as text.
        """
        self._check_num_chars(prompt, max_model_len)
        time_left = self._full_time()
        self._forms(time_left)
        is_plain = not any(map(self._control.search, _texts(_given(prompt))))
        text = self._render(prompt, time_left, _NEVER if is_plain else self._control)
        if max_model_len is not None:
            self._encoder.check_length(text, max_model_len)
        if not is_plain:
            return self._encode_marked(text)
        ids: list[int] = self._encoder.encode(text).ids
        return ids

    @cached_property
    def end_of_turn_token_id(self) -> int | None:
        """The control token that the template writes right after an assistant's message, if any."""
        token = self._control.match(self._forms(self._full_time()).after_answer.lstrip())
        return None if token is None else self._encoder.hf_tokenizer.token_to_id(token[0])

    def _render(
        self, prompt: ChatPrompt, time_left: RenderingTime, control: re.Pattern[str]
    ) -> str:
        """The text, in which marks enclose what `control` finds in messages, tools and variables."""
        for name in prompt.chat_template_kwargs:
            if not self.template.mentions(name):
                raise ValueError(
                    f"chat_template_kwargs: this model's chat template has no variable {name!r}"
                )
        if prompt.tools and not self.template.mentions("tools"):
            raise ValueError("tools: this model's chat template does not take tools")
        messages = _marked(
            in_forms(prompt.messages, self._forms(time_left), self.template), control, "messages"
        )
        if prompt.continue_final_message:
            _append_mark(messages[-1])
        text = self.template.render(
            messages,
            bool(prompt.add_generation_prompt),
            _marked(prompt.tools, control, "tools"),
            _marked(prompt.chat_template_kwargs, control, "chat_template_kwargs"),
            time_left=time_left,
        )
        return _up_to_mark(text) if prompt.continue_final_message else text

    def _encode_marked(self, text: str) -> list[int]:
        # <|x|> in marks becomes <, mark, |x|>, which matches no added token; then the normalizer drops
        # the mark. Marks that the template tore apart keep their surroundings from joining.
        wrapped = re.compile(f"{_OPEN}({self._control.pattern}){_CLOSE}")
        text = wrapped.sub(lambda match: match[1][0] + _OPEN + match[1][1:], text)
        text = text.replace(_CLOSE, _OPEN)
        encoding = self._mark_dropping_encoder.encode(text)
        for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id in self._control_tokens and _OPEN in text[start:end]:
                literal = text[start:end].replace(_OPEN, "")
                raise ValueError(
                    f"messages contain {literal!r}, which this model's tokenizer can only encode as"
                    " its control token"
                )
        ids: list[int] = encoding.ids
        return ids

    def _check_num_chars(self, prompt: ChatPrompt, max_model_len: int | None) -> None:
        if max_model_len is not None:
            # A template may leave out text, such as earlier reasoning, but hardly most of it
            self._encoder.check_num_chars(num_characters(_given(prompt)), max_model_len)

    def _full_time(self) -> RenderingTime:
        return RenderingTime(self.template.limits.seconds)

    def _forms(self, time_left: RenderingTime) -> TemplateForms:
        if self._found_forms is None:
            self._found_forms = find_forms(self.template, time_left)
        return self._found_forms

    @cached_property
    def _control_tokens(self) -> dict[int, AddedToken]:
        written = self._forms(self._full_time()).written
        return {
            token_id: token
            for token_id, token in self._encoder.hf_tokenizer.get_added_tokens_decoder().items()
            if token.special or (token.content in written and not token.content.isspace())
        }

    @cached_property
    def _control(self) -> re.Pattern[str]:
        contents = [token.content for token in self._control_tokens.values()]
        longest_first = sorted(contents, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first))) if contents else _NEVER

    @cached_property
    def _mark_dropping_encoder(self) -> TextEncoder:
        """A copy that drops marks after it has looked for control tokens, and does not look again."""
        hf_tokenizer = copy.deepcopy(whole_tokenizer(self._encoder.hf_tokenizer))
        hf_tokenizer.add_special_tokens(
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
        own = hf_tokenizer.normalizer
        hf_tokenizer.normalizer = drop if own is None else normalizers.Sequence([drop, own])
        return TextEncoder(hf_tokenizer, self._encoder.model)


def _given(prompt: ChatPrompt) -> tuple[Any, ...]:
    """What has text."""
    return prompt.messages, prompt.tools, prompt.chat_template_kwargs


def _texts(value: Any) -> Iterator[str]:
    """All text within lists and mappings, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _marked(value: Any, control: re.Pattern[str], name: str) -> Any:
    """A copy with marks around control tokens: templates can still search and split the text."""
    if isinstance(value, str):
        if control is _NEVER:
            return value
        if _OPEN in value or _CLOSE in value:
            raise ValueError(
                f"{name}: a conversation with the text of a control token must not have U+FDD0 or U+FDD1"
            )
        return control.sub(f"{_OPEN}\\g<0>{_CLOSE}", value)
    if isinstance(value, Mapping):
        return {
            _marked(key, control, name): _marked(item, control, f"{name}.{key}")
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_marked(item, control, f"{name}[{index}]") for index, item in enumerate(value)]
    return value


def _append_mark(message: dict[str, Any]) -> None:
    """Marks the end of a message's content. The blank after the mark shows whether the template trims."""
    content = message["content"]
    if isinstance(content, str):
        message["content"] = f"{content}{_CONTINUED} "
    else:
        content[-1] = {**content[-1], "text": f"{content[-1]['text']}{_CONTINUED} "}


def _up_to_mark(text: str) -> str:
    before, mark, after = text.rpartition(_CONTINUED)
    if not mark:
        raise ValueError(
            "continue_final_message=True: the chat template does not write the final message's content"
        )
    return before if after.startswith(" ") else before.rstrip()
