"""The options of all verbs, each declared once."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import typer

from pellucid.beam_search_params import BeamSearchParams
from pellucid.cli.parsing.models import complete_model, resolve_model
from pellucid.cli.parsing.option_types import (
    directory,
    size,
    text_or_file,
    text_with_escapes,
    tokens,
)
from pellucid.cli.parsing.settings import origin_of_error
from pellucid.config import QUANTIZATIONS, EngineConfig
from pellucid.model_names import find_short_name
from pellucid.sampling_params import SamplingParams
from pellucid.structured_outputs import StructuredOutputsParams

# Groups of options in the help.
MODEL, SAMPLING, STOPPING, OUTPUT = "Model", "Sampling", "When to stop", "Output"
RULE = "Form of the answer: text itself, or a file of it"
SPECULATION = "Speculation"
PREFIX_CACHE, BEAM_SEARCH = "Prefix cache on disk", "Beam search"
SERVER = "Server"
MODEL_HELP = (
    "Directory in Hugging Face layout, .gguf file, owner/name on the Hugging Face hub, or a short name such"
    " as qwen3:0.6b. Left out: the bundled model."
)
_EARLY_STOPPING = {"false": False, "true": True, "never": "never"}


def choice(*values: str) -> dict[str, Any]:
    """How an option shows that it takes one of these: in the help, and where Tab completes."""
    return {
        "metavar": "|".join(values),
        "autocompletion": lambda incomplete: [
            each for each in values if each.startswith(incomplete)
        ],
    }


def _model(*names: str, **facts: Any) -> Any:
    return typer.Option(*names, rich_help_panel=MODEL, **facts)


def _sampling(*names: str, default: str | bool = False, **facts: Any) -> Any:
    return typer.Option(*names, rich_help_panel=SAMPLING, show_default=default, **facts)


def _prefix_cache(*names: str, **facts: Any) -> Any:
    return typer.Option(*names, rich_help_panel=PREFIX_CACHE, **facts)


def _stopping(*names: str, **facts: Any) -> Any:
    return typer.Option(*names, rich_help_panel=STOPPING, **facts)


def _rule(**facts: Any) -> Any:
    return typer.Option(rich_help_panel=RULE, show_default="text without a rule", **facts)


def _beams(default: str, **facts: Any) -> Any:
    return typer.Option(rich_help_panel=BEAM_SEARCH, show_default=default, **facts)


MAX_TOKENS = _stopping(
    "--max-tokens",
    "-n",
    metavar="N",
    help="Most tokens to generate; -1: until the model ends its answer or the context is full.",
)
IgnoreEos = Annotated[bool, _stopping("--ignore-eos", help="Continue after the model's end token.")]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        rich_help_panel=OUTPUT,
        help="Write one JSON object instead of text; times in seconds, sizes in bytes.",
    ),
]
Url = Annotated[
    str,
    typer.Argument(metavar="URL", help="Address of the server, with or without /v1 at its end."),
]
DEFAULT_URL = "http://127.0.0.1:8000"
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        rich_help_panel=OUTPUT,
        help="Show memory, times and speeds of each answer.",
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", rich_help_panel=OUTPUT, help="Write nothing on stderr but errors."
    ),
]


@dataclass(frozen=True)
class StoredModelOptions:
    """Which files a model is read from, and the formats of its weights and of the KV cache. Fields of
    `EngineConfig`, with its defaults."""

    revision: Annotated[
        str | None, _model(metavar="REV", help="Branch, tag or commit of a model on the hub.")
    ] = EngineConfig.revision
    quantization: Annotated[
        str,
        _model(
            **{**choice(*QUANTIZATIONS), "metavar": "none|int8|int4|..."},
            help="Format of the weights in memory; docs/quantization.md lists all.",
        ),
    ] = EngineConfig.quantization
    kv_cache_dtype: Annotated[
        str,
        _model(
            **choice("bf16", "int8", "int4", "f32"), help="Format of keys and values in the cache."
        ),
    ] = EngineConfig.kv_cache_dtype
    block_size: Annotated[
        int, _model(**choice("16", "32", "64", "128"), help="Tokens per block of the KV cache.")
    ] = EngineConfig.block_size

    def settings(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class PlannedModelOptions(StoredModelOptions):
    """What else decides the sizes of an engine. Fields of `EngineConfig`, with its defaults."""

    kv_cache_memory: Annotated[
        int | None,
        _model(
            metavar="SIZE",
            parser=size,
            help="Memory for the KV cache, as in 2GiB.",
            show_default="the free memory, but no more than the engine can use",
        ),
    ] = EngineConfig.kv_cache_memory
    max_model_len: Annotated[
        int | None,
        _model(
            "--max-model-len",
            "-c",
            "--ctx-size",
            metavar="N",
            parser=tokens,
            help="Context: most tokens of prompt and output together, as in 8192, 8k (8,000) or 8K (8,192).",
            show_default="the model's limit",
        ),
    ] = EngineConfig.max_model_len
    max_num_batched_tokens: Annotated[
        int,
        _model(
            metavar="N",
            help="Most tokens that one step computes; longer prompts are split into chunks.",
        ),
    ] = EngineConfig.max_num_batched_tokens


@dataclass(frozen=True)
class ModelOptions(PlannedModelOptions):
    """Fields of `EngineConfig`, with its defaults."""

    tokenizer: Annotated[
        str | None,
        _model(
            metavar="DIR|owner/name",
            help="Tokenizer and chat template of another directory or repository.",
            show_default="the model's own",
        ),
    ] = EngineConfig.tokenizer
    chat_template: Annotated[
        str | None,
        _model(
            metavar="FILE",
            parser=text_or_file,
            help="Chat template in Jinja, in a file or as text.",
            show_default="the tokenizer's own",
        ),
    ] = EngineConfig.chat_template
    backend: Annotated[
        str,
        _model(
            **choice("auto", "numpy", "cpu"),
            help="What computes: native kernels (cpu) or NumPy (numpy). auto: cpu where it is built.",
        ),
    ] = EngineConfig.backend
    experts: Annotated[
        str,
        _model(
            **choice("memory", "mapped"),
            help="Where the experts' weights are kept: in memory, or mapped from a temporary file on disk.",
        ),
    ] = EngineConfig.experts
    num_threads: Annotated[
        int | None,
        _model(
            "--num-threads",
            "-t",
            "--threads",
            metavar="N",
            help="CPU threads.",
            show_default="as many as suit the machine",
        ),
    ] = EngineConfig.num_threads


Speculation = Annotated[
    str,
    typer.Option(
        **choice("off", "auto", "ngram", "draft"),
        rich_help_panel=SPECULATION,
        help="Guess the next tokens, from the text itself (ngram) or by a draft model, and verify several in"
        " a step. The output never changes. auto: only where that is faster.",
    ),
]


@dataclass(frozen=True)
class SpeculationOptions:
    """Fields of `EngineConfig`, with its defaults."""

    speculation: Speculation = EngineConfig.speculation
    draft_model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            rich_help_panel=SPECULATION,
            help="A smaller model with the same tokenizer, which guesses the next tokens.",
            show_default="the bundled one, for the bundled model",
            autocompletion=complete_model,
        ),
    ] = EngineConfig.draft_model
    num_draft_tokens: Annotated[
        int,
        typer.Option(
            metavar="K", rich_help_panel=SPECULATION, help="Most tokens to guess in a step."
        ),
    ] = EngineConfig.num_draft_tokens

    def settings(self) -> dict[str, Any]:
        settings = asdict(self)
        if self.draft_model is not None and find_short_name(self.draft_model) is not None:
            settings["draft_model"] = resolve_model(self.draft_model)
        return settings


@dataclass(frozen=True)
class BenchSpeculationOptions(SpeculationOptions):
    """The same, for measurements: of plain decode, unless drafts are asked for."""

    speculation: Speculation = "off"


@dataclass(frozen=True)
class PrefixCacheOptions:
    """Fields of `EngineConfig`, with its defaults."""

    prefix_cache_dir: Annotated[
        str | None,
        _prefix_cache(
            metavar="DIR",
            parser=directory,
            help="Keep computed blocks of the KV cache in this directory for later runs.",
        ),
    ] = EngineConfig.prefix_cache_dir
    prefix_cache_bytes: Annotated[
        int,
        _prefix_cache(
            metavar="SIZE",
            parser=size,
            help="Most bytes of files in that directory.",
            show_default="4GiB",
        ),
    ] = EngineConfig.prefix_cache_bytes

    def settings(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class SamplingOptions:
    """Fields of `SamplingParams`; None means that it was not given."""

    temperature: Annotated[
        float | None,
        _sampling(
            "--temperature",
            "--temp",
            metavar="T",
            default="the model's, or 1",
            help="Randomness; 0 always takes the likeliest token.",
        ),
    ] = None
    top_p: Annotated[
        float | None,
        _sampling(
            metavar="P",
            default="the model's, or 1: off",
            help="Sample from the likeliest tokens that together have this probability.",
        ),
    ] = None
    top_k: Annotated[
        int | None,
        _sampling(
            metavar="K",
            default="the model's, or 0: off",
            help="Sample from this many of the likeliest tokens.",
        ),
    ] = None
    min_p: Annotated[
        float | None,
        _sampling(
            metavar="P",
            default="the model's, or 0: off",
            help="Sample from tokens with at least this share of the likeliest token's probability.",
        ),
    ] = None
    typical_p: Annotated[
        float | None,
        _sampling(
            metavar="P",
            default="the model's, or 1: off",
            help="Locally typical sampling: keep the most typical tokens that together have this probability.",
        ),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        _sampling(
            "--repetition-penalty",
            "--repeat-penalty",
            metavar="X",
            default="the model's, or 1: off",
            help="Above 1: tokens of the prompt and the output become less likely.",
        ),
    ] = None
    presence_penalty: Annotated[
        float | None,
        _sampling(
            metavar="X", default="0: off", help="Above 0: tokens of the output become less likely."
        ),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        _sampling(
            metavar="X",
            default="0: off",
            help="Above 0: tokens become less likely each time that they occur in the output.",
        ),
    ] = None
    seed: Annotated[
        int | None,
        _sampling(
            "--seed",
            "-s",
            metavar="S",
            default="drawn at random, and shown",
            help="The same seed gives the same answer.",
        ),
    ] = None

    def given(self) -> dict[str, Any]:
        values = asdict(self)
        if self.seed == -1:  # what other engines call a seed that is drawn
            del values["seed"]
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class StopOptions:
    """Fields of `SamplingParams`, with its defaults."""

    min_tokens: Annotated[
        int,
        _stopping(
            metavar="N",
            help="Minimum tokens before EOS or a stop string may end the text.",
        ),
    ] = 0
    stop: Annotated[
        list[str] | None,
        _stopping(
            "--stop",
            "-r",
            metavar="TEXT",
            parser=text_with_escapes,
            help=r"Text that ends the output; \n is a newline. May be repeated.",
        ),
    ] = None
    stop_token_ids: Annotated[
        list[int] | None,
        _stopping(
            "--stop-token-id", metavar="ID", help="Token that ends the output. May be repeated."
        ),
    ] = None
    include_stop_str_in_output: Annotated[
        bool, _stopping("--include-stop", help="Keep the stop string in the output.")
    ] = False
    ignore_eos: IgnoreEos = False
    max_time: Annotated[
        float | None, _stopping(metavar="SECONDS", help="Most seconds that a request may take.")
    ] = None

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class RuleOptions:
    """A rule for the whole answer: fields of `StructuredOutputsParams`, of which one may be given."""

    json_schema: Annotated[
        str | None,
        _rule(metavar="SCHEMA", parser=text_or_file, help="JSON that fits this schema."),
    ] = None
    choice: Annotated[
        list[str] | None,
        _rule(metavar="TEXT", help="One of these texts. Is repeated for each of them."),
    ] = None
    regex: Annotated[
        str | None, _rule(metavar="PATTERN", help="Text that this regular expression matches.")
    ] = None
    grammar: Annotated[
        str | None,
        _rule(
            metavar="GRAMMAR",
            parser=text_or_file,
            help="Text of this grammar, in Lark's syntax.",
        ),
    ] = None

    def given(self) -> dict[str, Any]:
        """`structured_outputs` of `SamplingParams`, if there is a rule.

        Raises:
            ValueError: more than one rule is given, or a rule has another form.
        """
        rules = {
            "json": self.json_schema,
            "choice": self.choice,
            "regex": self.regex,
            "grammar": self.grammar,
        }
        own: dict[str, Any] = {name: rule for name, rule in rules.items() if rule is not None}
        return {"structured_outputs": StructuredOutputsParams(**own)} if own else {}


@dataclass(frozen=True)
class BeamOptions:
    """Fields of `BeamSearchParams`; None means that it was not given."""

    beam_width: Annotated[
        int | None,
        _beams("off", metavar="W", help="Beam search with this many beams instead of sampling."),
    ] = None
    length_penalty: Annotated[
        float | None,
        _beams("1", metavar="P", help="Above 0 favours long completions, below 0 short ones."),
    ] = None
    early_stopping: Annotated[
        str | None,
        _beams(
            "false",
            **choice(*_EARLY_STOPPING),
            help="Whether to stop as soon as W completions are finished.",
        ),
    ] = None

    def search(self, given: Mapping[str, Any]) -> dict[str, Any] | None:
        """Fields of `BeamSearchParams`, if a search is asked for.

        Args:
            given: fields of `SamplingParams` that were given besides.

        Raises:
            ValueError: an option has no meaning with the others, or a value is not allowed.
        """
        own = {name: value for name, value in asdict(self).items() if value is not None}
        if self.beam_width is None:
            for name, value in own.items():
                raise ValueError(f"{name}={value!r}: needs --beam-width")
            return None
        known = {field.name for field in fields(BeamSearchParams)}
        for field in fields(SamplingParams):
            value = given.get(field.name, field.default)
            if field.name not in known and value != field.default:
                raise ValueError(
                    f"{field.name}={value!r}: does not apply to a beam search"
                    f" (beam_width={self.beam_width})"
                )
        if (word := self.early_stopping) is not None:
            if word not in _EARLY_STOPPING:
                raise ValueError(f"early_stopping={word!r}: must be one of false, true, never")
            own["early_stopping"] = _EARLY_STOPPING[word]
        search = {**{name: value for name, value in given.items() if name in known}, **own}
        BeamSearchParams(**search)  # a wrong value is refused before anyone waits for weights
        return search


def beam_search_params(
    search: Mapping[str, Any], model_defaults: SamplingParams
) -> BeamSearchParams:
    """What `BeamOptions.search` gave; the penalty that was not given is the model's own."""
    repetition_penalty = model_defaults.repetition_penalty
    return BeamSearchParams(**{"repetition_penalty": repetition_penalty, **search})


def token_limit(max_tokens: int | None) -> int | None:
    """`--max-tokens` as `SamplingParams` has it: -1, as in llama.cpp, is no limit."""
    return None if max_tokens == -1 else max_tokens


def takes_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Lets a verb take groups of options: a parameter whose type is one of the dataclasses above
    becomes an option for each of its fields. A field `context` gets typer's context."""
    hints = get_type_hints(verb, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("context", keyword, annotation=typer.Context)]
    for parameter in inspect.signature(verb).parameters.values():
        if (group := groups.get(parameter.name)) is None:
            parameters.append(parameter.replace(annotation=hints[parameter.name], kind=keyword))
            continue
        field_hints = get_type_hints(group, include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name, keyword, default=field.default, annotation=field_hints[field.name]
            )
            for field in fields(group)
            if field.name != "context"
        ]

    @functools.wraps(verb)
    def command(context: typer.Context, **values: Any) -> None:
        values["context"] = context
        for name, group in groups.items():
            assert isinstance(group, type)
            values[name] = group(**{field.name: values[field.name] for field in fields(group)})
        own = {name: values[name] for name in inspect.signature(verb).parameters}
        try:
            verb(**own)
        except ValueError as error:
            raise ValueError(f"{error}{origin_of_error(context, str(error))}") from error

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command
