"""What a call asks for: from the body of any protocol to answers that have begun."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from pellucid.inputs.prompts import ChatPrompt, Prompt
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.server.endpoint import Call
from pellucid.server.generation import Generation, GenerationRequest
from pellucid.server.protocols.answer_form import AnswerForm
from pellucid.server.protocols.answer_rules import AnswerRule, ToolChoice, answer_rule
from pellucid.server.protocols.reasoning import with_budget
from pellucid.server.served_model import ServedModel
from pellucid.server.serving import Serving
from pellucid.text.tokenizer import Tokenizer


class NamedBody(Protocol):
    """A body that names the model."""

    @property
    def model(self) -> str | None: ...


class AnswerBody(NamedBody, Protocol):
    """A body that asks for answers, in the terms that all protocols share. Each method raises an ApiError or a
    ValueError that names the field, its value and what is allowed."""

    @property
    def limit_field(self) -> str | None:
        """The client's name for the largest number of output tokens; None: it gave none."""

    def format_rule(self) -> AnswerRule | None:
        """What each text must be."""

    def choice(self) -> ToolChoice:
        """Which tools an answer may or must call."""

    def sampling_params(self, defaults: SamplingParams) -> SamplingParams:
        """The engine's parameters.

        Args:
            defaults: the model's.
        """

    def budgets(self, tokenizer: Tokenizer, warnings: list[str]) -> Sequence[int | None]:
        """Limits of reasoning in tokens, the smallest of which counts; None: no limit.

        Args:
            warnings: gets a line for a limit that has no effect.
        """


Body = TypeVar("Body", bound=AnswerBody)
Named = TypeVar("Named", bound=NamedBody)


@dataclass(frozen=True)
class Prompts:
    """The prompts of a call, and what of the call concerns them alone.

    Attributes:
        prompts: texts, or one conversation.
        priority, cache_salt, aspects: as in `GenerationRequest`.
        is_plain, keeps_reasoning: as in `AnswerForm`.
    """

    prompts: Sequence[Prompt]
    priority: int = 0
    cache_salt: str | None = None
    aspects: Mapping[str, bytes] = field(default_factory=dict)
    is_plain: bool = False
    keeps_reasoning: bool = False


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
    def of(
        cls, model: ServedModel, call: Call, body: Body, prompts_of: Callable[[Body, Call], Prompts]
    ) -> "Ask[Body]":
        """What a body asks for.

        Args:
            model: that the server has.
            call: gets the warnings.
            body: decoded.
            prompts_of: makes the prompts of a call.

        Raises:
            ApiError, ValueError: names the field, its value and what is allowed.
        """
        name, tokenizer = model.check_name(body.model), model.tokenizer
        given = prompts_of(body, call)
        prompt = given.prompts[0] if given.prompts else ""
        if isinstance(prompt, ChatPrompt):
            choice, answers = body.choice(), tokenizer.response_format
            rule = answer_rule(body.format_rule(), choice, prompt.tools, answers, call.warnings)
            form = AnswerForm.of(
                tokenizer,
                prompt,
                rule,
                is_plain=given.is_plain,
                may_call=choice.may_call,
                keeps_reasoning=given.keeps_reasoning,
            )
        else:
            form = AnswerForm.of_text(tokenizer, body.format_rule())
        params = body.sampling_params(model.default_sampling_params)
        params = with_budget(params, *body.budgets(tokenizer, call.warnings))
        request = GenerationRequest(
            given.prompts,
            form.adapt(params),
            given.priority,
            given.cache_salt,
            given.aspects,
            form.rule_field,
        )
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


async def count_tokens(
    serving: Serving,
    call: Call,
    decode: Callable[[bytes, list[str]], Named],
    conversation_of: Callable[[Named, Call], ChatPrompt],
) -> int:
    """The tokens that the conversation of a call has.

    Args:
        decode: the body.
        conversation_of: makes the conversation of a call.

    Raises:
        ApiError, ValueError: names the field, its value and what is allowed.
    """

    def read(call: Call) -> ChatPrompt:
        body = decode(call.body, call.warnings)
        serving.model.check_name(body.model)
        return conversation_of(body, call)

    return await serving.service.count_tokens(call, await serving.service.read(call, read))
