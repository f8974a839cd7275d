"""Ollama's /api/generate and /api/chat.

https://docs.ollama.com/api
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from pellucid.inputs.prompts import ChatPrompt
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.server.endpoint import Call, Reply, StreamedReply, json_reply
from pellucid.server.errors import refused
from pellucid.server.generation import GenerationRequest
from pellucid.server.protocols.answer_form import AnswerForm
from pellucid.server.protocols.answer_rules import ToolChoice, answer_rule, ollama_format_rule
from pellucid.server.protocols.messages import readable_messages
from pellucid.server.protocols.ollama_api.fields import (
    CHAT_FIELDS,
    GENERATE_FIELDS,
    CommonFields,
    Options,
)
from pellucid.server.protocols.ollama_api.input import (
    is_unfinished,
    shared_message,
    with_images,
)
from pellucid.server.protocols.ollama_api.writer import (
    Added,
    Form,
    LineWriter,
    chat_form,
    generate_form,
    time_text,
)
from pellucid.server.protocols.reasoning import (
    effort_budget,
    effort_variables,
    switch_budget,
    switch_variables,
    with_budget,
)
from pellucid.server.protocols.sampling import warn_of_room, with_given
from pellucid.server.serving import Serving
from pellucid.server.streaming import CompletionsReply
from pellucid.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class _Answer:
    """An answer that a call asks for, and how it is read."""

    form: AnswerForm
    request: GenerationRequest


@dataclass(frozen=True)
class _Wanted:
    """What a call asks for.

    Attributes:
        name: by which it calls the model.
        unloads: it no longer needs the model.
        answer: None: nothing but that the model is there, or is not.
    """

    name: str
    is_streamed: bool
    num_top_logprobs: int
    unloads: bool
    answer: _Answer | None

    @classmethod
    def of(cls, body: CommonFields, name: str, answer: _Answer | None = None) -> "_Wanted":
        return cls(name, body.stream is not False, body.top_logprobs or 0, body.unloads, answer)


@dataclass
class Ollama:
    """The handlers of the routes."""

    serving: Serving

    async def generate(self, call: Call) -> Reply | StreamedReply:
        """A text that continues a prompt, or answers it through the chat template."""
        return await self._answer(call, self._read_generate, generate_form)

    async def chat(self, call: Call) -> Reply | StreamedReply:
        """An answer to a conversation, as lines of JSON or whole."""
        return await self._answer(call, self._read_chat, chat_form)

    async def _answer(
        self, call: Call, reader: Callable[[Call], _Wanted], form: Form
    ) -> Reply | StreamedReply:
        service, tokenizer = self.serving.service, self.serving.model.tokenizer
        wanted = await service.read(call, reader)
        if wanted.answer is None:
            return self._loaded(wanted, form)
        generation = await service.start(wanted.answer.request, call)
        warn_of_room(generation, "options.num_predict", self.serving.model.max_model_len)
        blocks = wanted.answer.form.blocks(generation)
        lines = LineWriter(
            generation, wanted.name, form, blocks, tokenizer, wanted.num_top_logprobs
        )
        if not wanted.is_streamed:
            return Reply(lines.whole(await generation.finish()))
        return CompletionsReply(generation, lines)

    def _read_generate(self, call: Call) -> _Wanted:
        body = GENERATE_FIELDS.decode(call.body, call.warnings)
        body.warn(call.warnings)
        name = self.serving.model.check_name(body.model)
        if not body.prompt:
            return _Wanted.of(body, name)
        text: str = with_images(body.prompt, body.images or [], "images", call.warnings)
        prompt: str | ChatPrompt = text
        if not body.raw and self.serving.model.tokenizer.has_chat_template:
            system = [{"role": "system", "content": body.system}] if body.system else []
            user = {"role": "user", "content": text}
            variables = self._variables(body, call)
            prompt = ChatPrompt([*system, user], chat_template_kwargs=variables)
        elif body.system:
            raise refused("system: needs a chat template, and no raw", "system")
        return self._wanted(call, body, name, prompt)

    def _read_chat(self, call: Call) -> _Wanted:
        body = CHAT_FIELDS.decode(call.body, call.warnings)
        body.warn(call.warnings)
        name = self.serving.model.check_name(body.model)
        if not body.messages:
            return _Wanted.of(body, name)
        messages = [
            shared_message(message, index, call.warnings)
            for index, message in enumerate(body.messages)
        ]
        prompt = ChatPrompt(
            readable_messages(messages, call.warnings),
            body.tools or None,
            chat_template_kwargs=self._variables(body, call),
            continue_final_message=is_unfinished(messages[-1]),
        )
        return self._wanted(call, body, name, prompt)

    def _wanted(
        self, call: Call, body: CommonFields, name: str, prompt: str | ChatPrompt
    ) -> _Wanted:
        params = _sampling_params(body, self.serving.model.default_sampling_params)
        tokenizer = self.serving.model.tokenizer
        rule = ollama_format_rule(body.format)
        form = AnswerForm(tokenizer, is_plain=True, rule=rule)
        if isinstance(prompt, ChatPrompt):
            answers = tokenizer.response_format
            rule = answer_rule(rule, ToolChoice(), prompt.tools, answers, call.warnings)
            form = AnswerForm.of(tokenizer, prompt, rule)
            params = with_budget(params, _budget(body.think, tokenizer))
        request = GenerationRequest([prompt], form.adapt(params), rule_field=form.rule_field)
        return _Wanted.of(body, name, _Answer(form, request))

    def _variables(self, body: CommonFields, call: Call) -> dict[str, Any]:
        tokenizer = self.serving.model.tokenizer
        if isinstance(body.think, str) and tokenizer.chat_template_mentions("reasoning_effort"):
            return effort_variables(body.think, "think", tokenizer, call.warnings)
        wanted = None if body.think is None else bool(body.think)
        return switch_variables(wanted, "think", tokenizer, call.warnings)

    def _loaded(self, wanted: _Wanted, form: Form) -> Reply:
        """The answer to an empty prompt."""
        ended = {"done": True, "done_reason": "unload" if wanted.unloads else "load"}
        named = {"model": wanted.name, "created_at": time_text()}
        return json_reply({**named, **form(Added()), **ended})


_PARAMETER_NAMES = {
    "num_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "top_logprobs": "logprobs",
}


def _budget(think: bool | str | None, tokenizer: Tokenizer) -> int | None:
    """The budget of reasoning that a switch or a level means, in tokens."""
    if isinstance(think, str):
        return effort_budget(think, tokenizer)
    return switch_budget(think, tokenizer)


def _sampling_params(body: CommonFields, defaults: SamplingParams) -> SamplingParams:
    if body.top_logprobs and not body.logprobs:
        raise refused(f"top_logprobs={body.top_logprobs}: needs logprobs=true", "top_logprobs")
    given = msgspec.structs.asdict(body.options or Options())
    for name in ("seed", "num_predict"):  # below 0: none
        if given[name] is not None and given[name] < 0:
            given[name] = None
    if body.logprobs:
        given["top_logprobs"] = body.top_logprobs or 0
    return with_given(replace(defaults, max_tokens=None), given, _PARAMETER_NAMES)
