"""The tokenizer of a model: text to token ids and back, chat templates, special tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pellucid.inputs.conversation import Message
from pellucid.inputs.parameter_checks import check_text, shown
from pellucid.inputs.prompts import ChatPrompt
from pellucid.loading.stored_model import StoredTokenizer, TextTokenizer, whole_tokenizer
from pellucid.text.chat_encoding import ChatEncoder
from pellucid.text.chat_template import ChatTemplate, TemplateWorkers
from pellucid.text.text_encoder import TextEncoder
from pellucid.text.token_bytes import TokenBytes
from pellucid.text.tokenizer_files import read_tokenizer_files

if TYPE_CHECKING:
    from pellucid.text.responses.format import ResponseFormat

MAX_OWN_TEMPLATES = 4  # of requests, kept compiled


class Tokenizer:
    """A Hugging Face tokenizer that fits a model. Owned by the engine.

    A model may have more rows than its tokenizer has tokens (padding): such ids stand for no text.

    Args:
        hf_tokenizer: text to ids and back, without truncation and padding.
        special_tokens: by the names that chat templates use: "bos_token", "eos_token", ...
        chat_template: the template's source, None if the model has none.
        tool_chat_template: the template for conversations with tools, if it is another one.
        response_template: what answers mean, as transformers stores it; None if the model does not say.
        num_ids: all token ids are smaller; None: this is not known.

    Raises:
        ValueError: a token's id is not below `vocab_size`. Special tokens may be, except BOS and
            EOS: Gemma 3 1B has one for images, which its model lacks. Text with such a token is refused.
    """

    makes_text = True  # NoTokenizer makes none

    def __init__(
        self,
        hf_tokenizer: TextTokenizer,
        vocab_size: int,
        special_tokens: Mapping[str, str],
        chat_template: str | None = None,
        model: str = "the model",
        tool_chat_template: str | None = None,
        response_template: Any = None,
        num_ids: int | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self._hf_tokenizer = hf_tokenizer
        self._model = model
        self._encoder = TextEncoder(hf_tokenizer, model)
        self._token_bytes = TokenBytes(hf_tokenizer)
        self.special_token_ids = frozenset(
            token_id
            for token_id, token in hf_tokenizer.get_added_tokens_decoder().items()
            if token.special
        )
        bos, eos = special_tokens.get("bos_token"), special_tokens.get("eos_token")
        self.bos_token_id: int | None = None if bos is None else hf_tokenizer.token_to_id(bos)
        self.eos_token_id: int | None = None if eos is None else hf_tokenizer.token_to_id(eos)
        if num_ids is None or num_ids > vocab_size:
            self._check_ids(self.special_token_ids - {self.bos_token_id, self.eos_token_id})
        workers = TemplateWorkers()

        def chat_encoder(source: str) -> ChatEncoder:
            return ChatEncoder(self._encoder, ChatTemplate(source, special_tokens, model, workers))

        self._response_template = response_template
        self._chat = None if chat_template is None else chat_encoder(chat_template)
        self._tool_chat = None if tool_chat_template is None else chat_encoder(tool_chat_template)
        self._own_chat = lru_cache(MAX_OWN_TEMPLATES)(chat_encoder)

    @classmethod
    def load(cls, directory: Path | str, vocab_size: int) -> Tokenizer:
        """The tokenizer of a directory in Hugging Face layout.

        Raises:
            ValueError: tokenizer.json or a file that belongs to it is missing or garbled, or the
                tokenizer does not fit a model with `vocab_size` tokens.
        """
        return cls.from_stored(read_tokenizer_files(Path(directory)), vocab_size, str(directory))

    @classmethod
    def from_stored(cls, stored: StoredTokenizer, vocab_size: int, model: str) -> Tokenizer:
        """The tokenizer that a model's files hold. Arguments and errors are those of the class."""
        return cls(
            stored.hf_tokenizer,
            vocab_size,
            stored.special_tokens,
            stored.chat_template,
            model,
            stored.tool_chat_template,
            stored.response_template,
            stored.num_ids,
        )

    def make_whole(self) -> None:
        """Makes what is otherwise made while a later text is encoded, and then holds up other threads."""
        whole_tokenizer(self._hf_tokenizer)

    def encode(
        self, text: str, add_special_tokens: bool = True, max_model_len: int | None = None
    ) -> list[int]:
        """The ids of a text, in which the text of a special token is this token.

        Args:
            add_special_tokens: also what the tokenizer puts around a text, such as BOS. Not for text
                that a chat template has written.
            max_model_len: tokens of prompt and answer: a text that is certainly longer is refused before all of
                it is encoded.

        Raises:
            PromptTooLongError: the text does not fit in `max_model_len`.
            ValueError: `text` has lone surrogates, or a token that the model lacks, or the tokenizer failed on it.
        """
        check_text(text, "text")
        if max_model_len is not None:
            self._encoder.check_length(text, max_model_len)
        return self._checked(self._encoder.encode(text, add_special_tokens).ids)

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of ids at once: the UTF-8 decoding of their bytes, with U+FFFD for what is none.

        This is what the library's own decoder gives, except that invalid bytes of a byte-fallback
        tokenizer spoil only themselves, as in SentencePiece, and not the whole run of bytes.

        Raises:
            ValueError: an id is not in 0 .. vocab_size - 1.
        """
        skipped = self.special_token_ids if skip_special_tokens else frozenset()
        pieces = [(i, self.token_bytes(i)) for i in token_ids if i not in skipped]
        pieces = [(token_id, data) for token_id, data in pieces if data]
        if not pieces:
            return ""
        first, *others = pieces
        data = self.first_token_bytes(first[0]) + b"".join(data for _, data in others)
        return data.decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to the text before it, in UTF-8; perhaps only a part of a character.

        Raises:
            ValueError: `token_id` is not in 0 .. vocab_size - 1.
        """
        if not 0 <= token_id < self.vocab_size:
            raise ValueError(f"token id {token_id} is not in 0 .. {self.vocab_size - 1}")
        return self._token_bytes[token_id]

    def first_token_bytes(self, token_id: int) -> bytes:
        """The same where no text comes before it: SentencePiece's leading space is dropped."""
        return self._token_bytes.first(token_id)

    def token_text(self, token_id: int) -> str:
        """A token alone, to be shown: bytes that are no character as \\xNN."""
        return self.token_bytes(token_id).decode("utf-8", "backslashreplace")

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool | None = None,
        *,
        tokenize: bool = False,
        **options: Any,
    ) -> str | list[int]:
        """The conversation as text, or as token ids.

        Args:
            add_generation_prompt: end with what opens the assistant's answer; left out, unless the final
                message is continued.
            tokenize: return token ids. (In transformers this is the default.)
            options: `tools`, `chat_template`, `continue_final_message` and variables of the template, as
                in transformers.

        Raises:
            ValueError: the model has no chat template, or it does not take this conversation.
        """
        prompt = chat_prompt(messages, add_generation_prompt, **options)
        return self.encode_conversation(prompt) if tokenize else self.render_chat(prompt)

    def encode_chat(
        self, messages: Sequence[Message], add_generation_prompt: bool | None = None, **options: Any
    ) -> list[int]:
        """The ids of a conversation. Arguments and errors are those of `apply_chat_template`.

        No BOS is added: where the model wants one its template writes it, as in transformers.
        """
        return self.encode_conversation(chat_prompt(messages, add_generation_prompt, **options))

    def render_chat(self, prompt: ChatPrompt, max_model_len: int | None = None) -> str:
        """The conversation as text. Arguments and errors are those of `ChatEncoder.render`; or the model has no
        chat template."""
        return self._chat_encoder(prompt).render(prompt, max_model_len)

    def encode_conversation(
        self, prompt: ChatPrompt, max_model_len: int | None = None
    ) -> list[int]:
        """The ids of a conversation. Arguments and errors are those of `ChatEncoder.encode`; or the model has no
        chat template, or lacks a token of the text."""
        return self._checked(self._chat_encoder(prompt).encode(prompt, max_model_len))

    @property
    def has_chat_template(self) -> bool:
        return self._chat is not None

    @property
    def chat_template(self) -> str | None:
        """The source of the model's template."""
        return None if self._chat is None else self._chat.template.source

    def end_of_turn_token_ids(self, prompt: ChatPrompt | None = None) -> tuple[int, ...]:
        """Tokens that end an answer in a chat: EOS, and what the chat template writes after one.

        Args:
            prompt: a conversation, if it may have another template than the model's.
        """
        chat = self._chat if prompt is None else self._chat_encoder(prompt)
        end_of_turn = None if chat is None else chat.end_of_turn_token_id
        found = (self.eos_token_id, end_of_turn)
        return self.answer_ends(token_id for token_id in found if token_id is not None)

    def answer_ends(self, token_ids: Iterable[int]) -> tuple[int, ...]:
        """Those of `token_ids`, which files or a chat template call ends, that end an answer, and others that do.

        Where an answer consists of several messages (gpt-oss), the end of a message ends no answer.
        """
        of_answers, of_messages = self._format_ends
        ends = dict.fromkeys((*token_ids, *of_answers))
        return tuple(token_id for token_id in ends if token_id not in of_messages)

    @cached_property
    def _format_ends(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids of `AnswerEnds`: of answers, and of messages."""
        from pellucid.text.responses.family_records import find_answer_ends

        added = self._hf_tokenizer.get_added_tokens_decoder()
        ids = {token.content: token_id for token_id, token in added.items()}
        ends = find_answer_ends(self.chat_template, ids)
        of_answers, of_messages = (
            tuple(ids[text] for text in texts) for texts in (ends.of_answers, ends.of_messages)
        )
        return of_answers, of_messages

    def chat_template_mentions(self, variable: str) -> bool:
        """Whether the model's chat template has a variable, such as "enable_thinking"."""
        return self._chat is not None and self._chat.template.mentions(variable)

    @cached_property
    def response_format(self) -> ResponseFormat:
        """What the text of answers means: reasoning, content, tool calls.

        Raises:
            ValueError: the checkpoint's response_template has an error.
        """
        from pellucid.text.responses.format import find_response_format

        added = self._hf_tokenizer.get_added_tokens_decoder()
        special = {added[token_id].content: token_id for token_id in sorted(self.special_token_ids)}
        return find_response_format(
            None if self._chat is None else self._chat.template.source,
            {token.content for token in added.values()},
            special,
            self._response_template,
        )

    def bad_words_token_ids(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """For each word its ids, alone and after a space, as in vLLM.

        Raises:
            ValueError: a word is empty, cannot be encoded or has no tokens.
        """
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            if not word:
                raise ValueError(f"bad_words must hold non-empty strings, got {word!r}")
            stripped = word.lstrip()
            for text in (stripped, " " + stripped) if stripped else (word,):
                try:
                    token_ids = tuple(self.encode(text, add_special_tokens=False))
                except ValueError as error:
                    raise ValueError(f"bad_words: {shown(word)}: {error}") from None
                if not token_ids:
                    raise ValueError(
                        f"bad_words: {shown(word)}: the tokenizer makes no token of it"
                    )
                found[token_ids] = None
        return tuple(found)

    def _check_ids(self, optional: AbstractSet[int | None]) -> None:
        """Raises a ValueError for a token that the model lacks and whose id is not `optional`."""
        hf_tokenizer = self._hf_tokenizer
        # A dictionary of all tokens takes a tenth of a second; mostly it is enough to count them. Not in the
        # two billion ids that a config may claim.
        num_tokens = hf_tokenizer.get_vocab_size()
        if self.vocab_size <= 2 * num_tokens:
            ids = range(self.vocab_size)
            if sum(hf_tokenizer.id_to_token(i) is not None for i in ids) == num_tokens:
                return
        token, largest = max(
            (item for item in hf_tokenizer.get_vocab().items() if item[1] not in optional),
            key=lambda item: item[1],
            default=("", -1),
        )
        if largest >= self.vocab_size:
            raise ValueError(
                f"tokenizer of {self._model} does not fit: token {token!r} has id {largest}, but the"
                f" model has a vocabulary of {self.vocab_size}"
            )

    def _chat_encoder(self, prompt: ChatPrompt) -> ChatEncoder:
        if prompt.chat_template is not None:
            return self._own_chat(prompt.chat_template)
        chat = self._tool_chat if prompt.tools and self._tool_chat is not None else self._chat
        if chat is None:
            raise ValueError(
                f"{self._model} has no chat template, which chat needs; use generate with plain text,"
                " or give a chat_template"
            )
        return chat

    def _checked(self, token_ids: list[int]) -> list[int]:
        largest = max(token_ids, default=-1)
        if largest >= self.vocab_size:
            raise ValueError(
                f"text has the token {self._hf_tokenizer.id_to_token(largest)!r} with id {largest}, but"
                f" the model has a vocabulary of {self.vocab_size}"
            )
        return token_ids


def chat_prompt(
    messages: Sequence[Message],
    add_generation_prompt: bool | None = None,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    chat_template: str | None = None,
    continue_final_message: bool = False,
    **variables: Any,
) -> ChatPrompt:
    """A conversation from the arguments that transformers' `apply_chat_template` takes.

    Raises:
        ValueError: as `ChatPrompt`.
    """
    return ChatPrompt(
        messages,
        tools,
        chat_template,
        variables,
        add_generation_prompt,
        continue_final_message,
    )
