"""What a call asks for: from the body of any protocol to answers that have begun."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

import msgspec

from pellucid.inputs.prompts import ChatPrompt
from pellucid.server.call_warnings import Warnings
from pellucid.server.endpoint import Call
from pellucid.server.fields import FieldTable
from pellucid.server.generation import Generation, GenerationRequest
from pellucid.server.protocols.answer_form import AnswerForm
from pellucid.server.protocols.answer_rules import AnswerRule, ToolChoice, answer_rule
from pellucid.server.protocols.reasoning import with_budget
from pellucid.server.served_model import ServedModel
from pellucid.server.serving import Serving
from pellucid.text.tokenizer import Tokenizer


class AskBody(msgspec.Struct):
    """The body of a call about a conversation or a text, in the terms that all protocols share. Each method raises an
    ApiError or a ValueError that names the field, its value and what is allowed."""

    @property
    def model(self) -> str | None:
        raise NotImplementedError

    @property
    def limit_field(self) -> str | None:
        """The client's name for the largest number of output tokens; None: it gave none."""
        return None

    @property
    def is_plain(self) -> bool:
        """As in `AnswerForm`."""
        return False

    @property
    def keeps_reasoning(self) -> bool:
        """As in `AnswerForm`."""
        return False

    def check(self, warnings: Warnings) -> None:
        """Checks what concerns several fields.

        Args:
            warnings: gets a line for each thing that has no effect.
        """

    def format_rule(self) -> AnswerRule | None:
        """What each text must be."""

    def choice(self) -> ToolChoice:
        """Which tools an answer may or must call."""
        return ToolChoice()

    def budgets(self, tokenizer: Tokenizer, warnings: list[str]) -> Sequence[int | None]:
        """Limits of reasoning in tokens, the smallest of which counts; None: no limit.

        Args:
            warnings: gets a line for a limit that has no effect.
        """
        return ()


Body = TypeVar("Body", bound=AskBody)


@dataclass(frozen=True)
class Ask(Generic[Body]):
    """What a call asks for.

    Attributes:
        body: of the call.
        name: by which it calls the model.
        form: how the answers are read.
    """

    body: Body
    name: str
    request: GenerationRequest
    form: AnswerForm

    @classmethod
    async def read(
        cls,
        serving: Serving,
        call: Call,
        table: FieldTable[Body],
        request_of: Callable[[Body, Call], GenerationRequest],
    ) -> "Ask[Body]":
        """What a call asks for.

        Args:
            table: of the call's fields.
            request_of: makes the request, without rules and budgets.

        Raises:
            ApiError, ValueError: names the field, its value and what is allowed.
        """
        return await serving.service.read(
            call, table, lambda body, call: cls._of(serving.model, call, body, request_of)
        )

    @classmethod
    def _of(
        cls,
        model: ServedModel,
        call: Call,
        body: Body,
        request_of: Callable[[Body, Call], GenerationRequest],
    ) -> "Ask[Body]":
        body.check(call.warnings)
        name, tokenizer = model.check_name(body.model), model.tokenizer
        request = request_of(body, call)
        prompt = request.prompts[0] if request.prompts else ""
        if isinstance(prompt, ChatPrompt):
            choice, answers = body.choice(), tokenizer.response_format
            rule = answer_rule(body.format_rule(), choice, prompt.tools, answers, call.warnings)
            form = AnswerForm.of(
                tokenizer,
                prompt,
                rule,
                is_plain=body.is_plain,
                may_call=choice.may_call,
                keeps_reasoning=body.keeps_reasoning,
            )
        else:
            form = AnswerForm.of_text(tokenizer, body.format_rule())
        params = with_budget(request.params, *body.budgets(tokenizer, call.warnings))
        request = replace(request, params=form.adapt(params), rule_field=form.rule_field)
        return cls(body, name, request, form)

    async def start(self, serving: Serving, call: Call) -> Generation:
        """Queues the request; warns if the context is full before an answer has as many tokens as its client wants.

        Raises:
            ApiError, ValueError: as `GenerationService.start`.
        """
        generation = await serving.service.start(self.request, call)
        wanted, field_name = self.request.params.max_tokens, self.body.limit_field
        longest = max(len(prompt.token_ids) for prompt in generation.prompts)
        room = serving.model.max_model_len - longest
        if field_name is not None and isinstance(wanted, int) and wanted > room:
            call.warnings.append(
                f"{field_name}={wanted}: at most {room} tokens fit into the context behind the prompt"
            )
        return generation


async def read_conversation(
    serving: Serving,
    call: Call,
    table: FieldTable[Body],
    conversation_of: Callable[[Body, Call], ChatPrompt],
) -> ChatPrompt:
    """The conversation of a call that is about it alone.

    Args:
        table: of the call's fields.
        conversation_of: makes the conversation of a call.

    Raises:
        ApiError, ValueError: names the field, its value and what is allowed.
    """

    def read(body: Body, call: Call) -> ChatPrompt:
        serving.model.check_name(body.model)
        return conversation_of(body, call)

    return await serving.service.read(call, table, read)


async def count_tokens(serving: Serving, call: Call, conversation: ChatPrompt) -> int:
    """The tokens of a conversation, which must fit in the context."""
    model = serving.model
    encode = partial(model.tokenizer.encode_conversation, conversation, model.max_model_len)
    return len(await serving.service.work_on_text(call, encode))
