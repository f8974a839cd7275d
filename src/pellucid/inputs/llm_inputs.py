"""Checks prompts and parameters of `LLM`'s callers, and brings them into one form."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypedDict, TypeVar

from pellucid.inputs.beam_search_params import BeamSearchParams, RequestParams
from pellucid.inputs.prompts import ChatPrompt, Prompt
from pellucid.inputs.sampling_params import SamplingParams


class TextPrompt(TypedDict):
    """{"prompt": "some text"}, as in vLLM."""

    prompt: str


class TokensPrompt(TypedDict):
    """{"prompt_token_ids": [1, 2, 3]}, as in vLLM."""

    prompt_token_ids: Sequence[int]


PromptInput: TypeAlias = Prompt | TextPrompt | TokensPrompt
Params = TypeVar("Params", SamplingParams, BeamSearchParams)


class GivenPrompt(NamedTuple):
    """One prompt of a call.

    Attributes:
        name: what errors call it, such as "prompts[3]".
        prompt: text, a tuple of token ids, or a conversation.
        cache_salt: who may share its KV blocks.
    """

    name: str
    prompt: Prompt
    cache_salt: str | None = None


_EXPECTED = (
    'a string, a list of token ids, {"prompt": ...}, {"prompt_token_ids": ...}, or a list of these'
)


def given_prompts(prompts: Any) -> list[GivenPrompt]:
    """A single prompt, or several, as a list.

    Args:
        prompts: a string, token ids, a dict of vLLM's or a `ChatPrompt`, or an iterable of these. Token
            ids may be integers of any library, in a list or in an array.

    Raises:
        ValueError: names the prompt and says what to pass.
    """
    if isinstance(prompts, str | bytes | bytearray | ChatPrompt | Mapping) or prompts is None:
        return [_given_prompt("prompts", prompts)]
    several = _elements("prompts", prompts)
    if several and isinstance(several[0], Integral):
        return [_given_prompt("prompts", several)]
    return [_given_prompt(f"prompts[{index}]", prompt) for index, prompt in enumerate(several)]


def chat_prompts(messages: Any, **options: Any) -> list[ChatPrompt]:
    """One conversation, or several, as prompts.

    Raises:
        ValueError: names the conversation, the message and what is allowed.
    """
    first = messages[0] if isinstance(messages, list | tuple) and messages else None
    if not isinstance(first, list | tuple):
        return [ChatPrompt(messages, **options)]
    return [_chat_prompt(index, each, options) for index, each in enumerate(messages)]


def params_for_each(
    params: Any, num_prompts: int, default: Params | None, kind: type[Params]
) -> Sequence[Params]:
    """The parameters of each prompt.

    Args:
        params: for all prompts, or one for each; None is `default`.
        kind: the class of parameters that the caller's method takes.

    Raises:
        ValueError: another kind of parameters, or another number of them.
    """
    if params is None and default is not None:
        return [default] * num_prompts
    if isinstance(params, kind):
        return [params] * num_prompts
    if isinstance(params, list | tuple):
        if len(params) != num_prompts:
            raise ValueError(f"sampling_params: {len(params)} given for {num_prompts} prompts")
        for own in params:
            if not isinstance(own, kind):
                _refuse_params(own, kind)
        return params
    return _refuse_params(params, kind)


def priority_of_each(priority: Any, num_prompts: int) -> Sequence[int]:
    """The priority of each prompt: 0 where None is given."""
    if priority is None:
        return [0] * num_prompts
    if isinstance(priority, Integral):
        return [operator.index(priority)] * num_prompts
    if not isinstance(priority, Iterable) or isinstance(priority, str | bytes):
        raise ValueError(
            f"priority={priority!r}: must be a whole number, or a list of one for each prompt"
        )
    several = list(priority)
    if len(several) != num_prompts:
        raise ValueError(f"priority: {len(several)} given for {num_prompts} prompts")
    return several


def _given_prompt(name: str, prompt: Any) -> GivenPrompt:
    if isinstance(prompt, str | ChatPrompt):
        return GivenPrompt(name, prompt)
    if isinstance(prompt, bytes | bytearray):
        raise ValueError(f"{name}: {type(prompt).__name__} given; decode them into a string first")
    if isinstance(prompt, Mapping):
        return _prompt_of_dict(name, prompt)
    token_ids = _elements(name, prompt)
    return GivenPrompt(name, _token_ids(name, token_ids))


def _chat_prompt(index: int, messages: Any, options: Mapping[str, Any]) -> ChatPrompt:
    try:
        return ChatPrompt(messages, **options)
    except ValueError as error:
        raise ValueError(f"conversation {index}: {error}") from None


def _prompt_of_dict(name: str, prompt: Mapping[str, Any]) -> GivenPrompt:
    if "role" in prompt and "content" in prompt:
        raise ValueError(f"{name}: a message of a conversation; pass conversations to LLM.chat()")
    fields = dict(prompt)
    cache_salt = fields.pop("cache_salt", None)
    if len(fields) != 1 or not fields.keys() <= {"prompt", "prompt_token_ids"}:
        raise ValueError(
            f"{name}: a dict with {sorted(map(str, prompt))}; it must have either 'prompt' or"
            " 'prompt_token_ids', and may have 'cache_salt'"
        )
    [(key, value)] = fields.items()
    if isinstance(value, str) != (key == "prompt"):
        wanted = "a string" if key == "prompt" else "a list of token ids"
        raise ValueError(f"{name}[{key!r}]: {type(value).__name__} given; pass {wanted}")
    return _given_prompt(f"{name}[{key!r}]", value)._replace(cache_salt=cache_salt)


def _token_ids(name: str, token_ids: list[Any]) -> tuple[int, ...]:
    for kind in set(map(type, token_ids)):
        if kind is bool or not issubclass(kind, Integral):
            raise ValueError(f"{name}: a list with {kind.__name__} in it; pass {_EXPECTED}")
    return tuple(map(operator.index, token_ids))


def _elements(name: str, value: Any) -> list[Any]:
    """The elements of an iterable or an array. Arrays of other libraries become lists of Python's integers."""
    if callable(to_list := getattr(value, "tolist", None)):
        value = to_list()
    if not isinstance(value, Iterable):
        raise ValueError(f"{name}={value!r}: pass {_EXPECTED}")
    return list(value)


def _refuse_params(params: Any, kind: type[RequestParams]) -> NoReturn:
    takes = {
        SamplingParams: "generate(), chat() and stream() take SamplingParams",
        BeamSearchParams: "beam_search() takes BeamSearchParams",
    }[kind]
    given = type(params).__name__
    if isinstance(params, Mapping):
        given += f" given; pass {kind.__name__}(**params)"
    else:
        given += " given"
    raise ValueError(f"sampling_params: {given}; {takes}")
