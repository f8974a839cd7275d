"""/tokenize and similar routes of vLLM and llama.cpp, between text and tokens."""

from typing import Any

import msgspec

from pellucid.inputs.prompts import ChatPrompt
from pellucid.server.endpoint import Call, Reply, json_reply
from pellucid.server.errors import refused
from pellucid.server.fields import FieldTable, honoured
from pellucid.server.protocols.ask import AskBody, read_conversation
from pellucid.server.protocols.conversation import ConversationBuilder
from pellucid.server.served_model import FINGERPRINT
from pellucid.server.serving import Handlers


class ConversationFields(AskBody, kw_only=True):
    model: str | None = None
    messages: list[Any] | None = None
    tools: list[Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class TokenizeBody(ConversationFields, kw_only=True):
    prompt: str | None = None
    content: str | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    return_token_strs: bool | None = None
    with_pieces: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    tokens: list[int]
    model: str | None = None


CONVERSATION_FIELDS = honoured(
    model="as everywhere",
    messages="a conversation, as for /v1/chat/completions",
    tools="functions that the template shows",
    chat_template_kwargs="variables for the template",
    add_generation_prompt="end with the text that opens the answer; left out, true",
    continue_final_message="the prompt ends within the final message",
)
TOKENIZE_FIELDS = FieldTable(
    "POST /tokenize",
    TokenizeBody,
    (
        *honoured(
            prompt="a text",
            content="the same by llama.cpp's name",
            add_special_tokens="add the tokens that the tokenizer puts around a text; left out, true",
            add_special="the same by llama.cpp's name, where it is false if left out",
            return_token_strs="token_strs: each token alone, bytes that are no character as \\xNN",
            with_pieces="llama.cpp's form of tokens: objects with id and piece",
        ),
        *CONVERSATION_FIELDS,
    ),
    example={"prompt": "Once upon a time", "return_token_strs": True},
)
DETOKENIZE_FIELDS = FieldTable(
    "POST /detokenize",
    DetokenizeBody,
    honoured(tokens="token ids", model="as everywhere"),
    example={"tokens": [1, 2, 3]},
)
APPLY_TEMPLATE_FIELDS = FieldTable(
    "POST /apply-template",
    ConversationFields,
    CONVERSATION_FIELDS,
    example={"messages": [{"role": "user", "content": "What is 12 + 7?"}]},
)


class Tokens(Handlers):
    """The handlers of the routes."""

    async def tokenize(self, call: Call) -> Reply:
        """The tokens of a text or of a conversation."""
        body, prompt, special = await self.service.read(call, TOKENIZE_FIELDS, self._read_tokenize)

        def write() -> bytes:
            if isinstance(prompt, ChatPrompt):
                token_ids = self.tokenizer.encode_conversation(prompt, self._max_model_len)
            else:
                token_ids = self.tokenizer.encode(prompt, special, self._max_model_len)
            pieces = list(map(self.tokenizer.token_text, token_ids))
            tokens: list[Any] = token_ids
            if body.with_pieces:
                pairs = zip(token_ids, pieces, strict=True)
                tokens = [{"id": token_id, "piece": piece} for token_id, piece in pairs]
            return msgspec.json.encode(
                {
                    "count": len(token_ids),
                    "max_model_len": self._max_model_len,
                    "tokens": tokens,
                    "token_strs": pieces if body.return_token_strs else None,
                }
            )

        return Reply(await self.service.work_on_text(call, write))

    def _read_tokenize(
        self, body: TokenizeBody, call: Call
    ) -> tuple[TokenizeBody, str | ChatPrompt, bool]:
        """The body, what to encode, and whether with the tokens that the tokenizer puts around a text."""
        self.model.check_name(body.model)
        given = [
            name for name in ("prompt", "content", "messages") if getattr(body, name) is not None
        ]
        if len(given) != 1:
            raise refused("prompt: give one of prompt, content and messages", "prompt")
        if body.messages is not None:
            return body, self._conversation(body, call), False
        text = body.prompt if body.content is None else body.content
        assert text is not None
        special = body.add_special_tokens
        if special is None:
            special = body.content is None if body.add_special is None else body.add_special
        return body, text, special

    async def detokenize(self, call: Call) -> Reply:
        """The text of tokens, at most as many as the context holds."""
        token_ids = await self.service.read(call, DETOKENIZE_FIELDS, self._read_detokenize)

        def write() -> bytes:
            text = self.tokenizer.decode(token_ids, skip_special_tokens=False)
            pieces = list(map(self.tokenizer.token_text, token_ids))
            return msgspec.json.encode({"prompt": text, "content": text, "token_strs": pieces})

        return Reply(await self.service.work_on_text(call, write))

    def _read_detokenize(self, body: DetokenizeBody, call: Call) -> list[int]:
        self.model.check_name(body.model)
        if len(body.tokens) > self._max_model_len:
            raise refused(
                f"tokens: has {len(body.tokens)} tokens; at most {self._max_model_len} are allowed",
                "tokens",
            )
        return body.tokens

    async def apply_template(self, call: Call) -> Reply:
        """A conversation as the text that the model reads."""
        conversation = await read_conversation(
            self.serving, call, APPLY_TEMPLATE_FIELDS, self._conversation
        )
        text = await self.service.work_on_text(
            call, lambda: self.tokenizer.render_chat(conversation, self._max_model_len)
        )
        return json_reply({"prompt": text})

    def _conversation(self, body: ConversationFields, call: Call) -> ChatPrompt:
        """Raises ValueError, naming the message, the key, the value and what is allowed."""
        builder = ConversationBuilder(self.tokenizer, call.warnings)
        builder.add_sent(body.messages or [])
        builder.require_tools(body.tools)
        builder.set_variables(body.chat_template_kwargs or {})
        return builder.prompt(
            is_continued=bool(body.continue_final_message),
            add_generation_prompt=body.add_generation_prompt,
        )

    @property
    def _max_model_len(self) -> int:
        return self.model.max_model_len

    async def tokenizer_info(self, call: Call) -> Reply:
        """The tokenizer's special tokens and its chat template."""
        bos, eos = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        return json_reply(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "vocab_size": self.tokenizer.vocab_size,
                "bos_token": None if bos is None else self.tokenizer.token_text(bos),
                "bos_token_id": bos,
                "eos_token": None if eos is None else self.tokenizer.token_text(eos),
                "eos_token_id": eos,
                "chat_template": self.tokenizer.chat_template,
                "model_max_length": self.model.max_model_len,
            }
        )

    async def props(self, call: Call) -> Reply:
        """llama.cpp's route: what clients read to learn the context length and the template."""
        defaults = self.model.default_sampling_params
        return json_reply(
            {
                "default_generation_settings": {
                    "n_ctx": self.model.max_model_len,
                    "params": {
                        name: getattr(defaults, name)
                        for name in ("temperature", "top_k", "top_p", "min_p", "typical_p")
                    },
                },
                "total_slots": self.engine.config.max_num_seqs,
                "model_alias": self.model.name,
                "chat_template": self.model.tokenizer.chat_template,
                "modalities": {"vision": False, "audio": False},
                "build_info": FINGERPRINT,
                "is_sleeping": False,
            }
        )
