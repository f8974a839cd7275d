"""The options of all verbs, each declared once."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import typer

from pellucid.config import EngineConfig

MODEL, SAMPLING, STOPPING, OUTPUT = "Model", "Sampling", "When to stop", "Output"
PREFIX_CACHE = "Prefix cache on disk"


def _model(*names: str, **facts: Any) -> Any:
    return typer.Option(*names, rich_help_panel=MODEL, **facts)


def _sampling(*names: str, default: str | bool = False, **facts: Any) -> Any:
    return typer.Option(*names, rich_help_panel=SAMPLING, show_default=default, **facts)


def _prefix_cache(*names: str, **facts: Any) -> Any:
    return typer.Option(*names, rich_help_panel=PREFIX_CACHE, **facts)


def _stopping(*names: str, **facts: Any) -> Any:
    return typer.Option(*names, rich_help_panel=STOPPING, **facts)


MODEL_ARGUMENT = typer.Argument(
    metavar="MODEL",
    help="Directory in Hugging Face layout, GGUF file or hub id; left out, the bundled model.",
    show_default=False,
)
MAX_TOKENS = _stopping("--max-tokens", metavar="N", help="Most tokens to generate.")
IgnoreEos = Annotated[
    bool, _stopping("--ignore-eos", help="Go on after the model's own end tokens.")
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        rich_help_panel=OUTPUT,
        help="One JSON object on stdout, in seconds, bytes and tokens, instead of text.",
    ),
]


@dataclass(frozen=True)
class ModelOptions:
    """Fields of `EngineConfig`, with its defaults."""

    backend: Annotated[
        str, _model(metavar="auto|numpy|cpu", help="Who computes; auto takes the fastest.")
    ] = EngineConfig.backend
    quantization: Annotated[
        str,
        _model(
            metavar="none|int8|int4|...", help="Weights in memory; docs/quantization.md lists all."
        ),
    ] = EngineConfig.quantization
    kv_cache_dtype: Annotated[
        str, _model(metavar="bf16|int8|int4|f32", help="Keys and values in the cache.")
    ] = EngineConfig.kv_cache_dtype
    block_size: Annotated[
        int, _model(metavar="16|32|64|128", help="Tokens per block of the KV cache.")
    ] = EngineConfig.block_size
    max_num_batched_tokens: Annotated[
        int,
        _model(metavar="N", help="Most tokens computed in one step: longer prompts go in chunks."),
    ] = EngineConfig.max_num_batched_tokens
    max_model_len: Annotated[
        int | None,
        _model(metavar="N", help="Longest prompt and output.", show_default="the model's limit"),
    ] = EngineConfig.max_model_len
    kv_cache_memory: Annotated[
        int | None,
        _model(
            metavar="BYTES",
            help="Memory for the KV cache.",
            show_default="what is left, as far as it is of use",
        ),
    ] = EngineConfig.kv_cache_memory
    num_threads: Annotated[
        int | None,
        _model(metavar="N", help="CPU threads.", show_default="the backend's own choice"),
    ] = EngineConfig.num_threads
    revision: Annotated[
        str | None, _model(metavar="REV", help="Branch, tag or commit of a hub id.")
    ] = EngineConfig.revision

    def knobs(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class PrefixCacheOptions:
    """Fields of `EngineConfig`, with its defaults."""

    prefix_cache_dir: Annotated[
        str | None,
        _prefix_cache(
            metavar="DIR", help="Keep computed blocks there: the next start finds its prompt again."
        ),
    ] = EngineConfig.prefix_cache_dir
    prefix_cache_bytes: Annotated[
        int, _prefix_cache(metavar="BYTES", help="Most bytes of files in it.")
    ] = EngineConfig.prefix_cache_bytes

    def knobs(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class SamplingOptions:
    """Fields of `SamplingParams`; None means that it was not given."""

    temperature: Annotated[
        float | None,
        _sampling(
            metavar="T",
            default="the model's, or 1",
            help="Divides the logits; 0: the likeliest token.",
        ),
    ] = None
    top_p: Annotated[
        float | None,
        _sampling(
            metavar="P",
            default="the model's, or 1: off",
            help="Keep the likeliest tokens that together reach this probability.",
        ),
    ] = None
    top_k: Annotated[
        int | None,
        _sampling(
            metavar="K",
            default="the model's, or 0: off",
            help="Keep this many of the likeliest tokens.",
        ),
    ] = None
    min_p: Annotated[
        float | None,
        _sampling(
            metavar="P",
            default="the model's, or 0: off",
            help="Keep tokens with at least this share of the likeliest one's probability.",
        ),
    ] = None
    typical_p: Annotated[
        float | None,
        _sampling(
            metavar="P",
            default="the model's, or 1: off",
            help="Keep the tokens of most typical surprise that together reach this probability.",
        ),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        _sampling(
            metavar="X",
            default="the model's, or 1: off",
            help="Above 1 weakens tokens that prompt or output have.",
        ),
    ] = None
    presence_penalty: Annotated[
        float | None,
        _sampling(metavar="X", default="0: off", help="Weakens tokens that the output has."),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        _sampling(
            metavar="X", default="0: off", help="Weakens tokens by how often the output has them."
        ),
    ] = None
    seed: Annotated[
        int | None,
        _sampling(metavar="S", default="drawn, and shown", help="The same seed, the same answer."),
    ] = None

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class StopOptions:
    """Fields of `SamplingParams`, with its defaults."""

    min_tokens: Annotated[
        int, _stopping(metavar="N", help="Tokens before an end or stop is allowed.")
    ] = 0
    stop: Annotated[
        list[str] | None,
        _stopping(metavar="STR", help="Text that ends the answer; may be repeated."),
    ] = None
    stop_token_ids: Annotated[
        list[int] | None,
        _stopping("--stop-token-id", metavar="ID", help="Token that ends it; may be repeated."),
    ] = None
    include_stop_str_in_output: Annotated[
        bool, _stopping("--include-stop", help="Show what ended the answer.")
    ] = False
    ignore_eos: IgnoreEos = False
    max_time: Annotated[float | None, _stopping(metavar="SECONDS", help="End after this time.")] = (
        None
    )

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def takes_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Lets a verb take groups of options: a parameter whose type is one of the dataclasses above
    becomes an option for each of its fields."""
    hints = get_type_hints(verb, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = []
    for parameter in inspect.signature(verb).parameters.values():
        if (group := groups.get(parameter.name)) is None:
            parameters.append(parameter.replace(annotation=hints[parameter.name]))
            continue
        field_hints = get_type_hints(group, include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=field_hints[field.name],
            )
            for field in fields(group)
        ]

    @functools.wraps(verb)
    def command(**values: Any) -> None:
        for name, group in groups.items():
            assert isinstance(group, type)
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        verb(**values)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command
