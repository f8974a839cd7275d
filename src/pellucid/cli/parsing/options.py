"""The options of all verbs, each declared once."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import typer
from typer.models import ParameterInfo

from pellucid.cli.parsing.models import complete_model, resolve_model
from pellucid.cli.parsing.option_types import (
    directory,
    size,
    text_or_file,
    text_with_escapes,
    tokens,
)
from pellucid.cli.parsing.panels import (
    BEAM_SEARCH,
    MODEL,
    OUTPUT,
    PREFIX_CACHE,
    RULE,
    SAMPLING,
    SERVER,
    SPECULATION,
    STAGES,
    STOPPING,
    Options,
    argument,
    option_and_default,
)
from pellucid.cli.parsing.settings import origin_of_error
from pellucid.facts.model_names import find_short_name
from pellucid.inputs.beam_search_params import BeamSearchParams
from pellucid.inputs.config import QUANTIZATIONS, EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.inputs.structured_outputs import StructuredOutputsParams

MODEL_HELP = (
    "Directory in Hugging Face layout, .gguf file, owner/name on the Hugging Face hub, or a short name such"
    " as qwen3:0.6b. Left out: the bundled model."
)
STAGES_KEY_HELP = "The secret that all machines of a model have, in a file: at least 16 bytes."
_EARLY_STOPPING = {"false": False, "true": True, "never": "never"}
_RULES = {"json_schema": "json", "choice": "choice", "regex": "regex", "grammar": "grammar"}
_NO_RULE = "text without a rule"
MAX_TOKENS = STOPPING.option(
    "N",
    "Most tokens to generate; -1: until the model ends its answer or the context is full.",
    "--max-tokens",
    "-n",
)
IgnoreEos = Annotated[bool, STOPPING.flag("Continue after the model's end token.", "--ignore-eos")]
Json = Annotated[
    bool,
    OUTPUT.flag(
        "Write one JSON object instead of text; times in seconds, sizes in bytes.", "--json"
    ),
]
Url = Annotated[str, argument("URL", "Address of the server, with or without /v1 at its end.")]
DEFAULT_URL = "http://127.0.0.1:8000"
AdminKey = Annotated[
    str | None, SERVER.option("KEY", "A key with the role admin, if the server has keys.")
]
Verbose = Annotated[
    bool, OUTPUT.flag("Show memory, times and speeds of each answer.", "--verbose", "-v")
]
Quiet = Annotated[bool, OUTPUT.flag("Write nothing on stderr but errors.", "--quiet", "-q")]


Revision = Annotated[
    str | None, MODEL.option("REV", "Branch, tag or commit of a model on the hub.")
]
NumThreads = Annotated[
    int | None,
    MODEL.option(
        "N",
        "CPU threads.",
        "--num-threads",
        "-t",
        "--threads",
        show_default="as many as suit the machine",
    ),
]


@dataclass(frozen=True)
class EngineOptions(Options, of=EngineConfig):
    """Fields of `EngineConfig`, with its defaults."""

    def settings(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class StoredModelOptions(EngineOptions):
    """Which files a model is read from, and the formats of its weights and of the KV cache."""

    revision: Revision = None
    quantization: str = MODEL.choice(
        QUANTIZATIONS,
        "Format of the weights in memory; docs/quantization.md lists all.",
        metavar="none|int8|int4|...",
    )
    kv_cache_dtype: str = MODEL.choice(
        ("bf16", "int8", "int8,int4", "int4", "f32"),
        "Format of keys and values in the cache; int8,int4: of keys and of values.",
    )
    block_size: int = MODEL.choice(
        ("16", "32", "64", "128"), "Tokens per block of the KV cache; not 16 with keys of int4."
    )


@dataclass(frozen=True)
class PlannedModelOptions(StoredModelOptions):
    """What else decides the sizes of an engine."""

    kv_cache_memory: int | None = MODEL.option(
        "SIZE",
        "Memory for the KV cache, as in 2GiB.",
        parser=size,
        show_default="the free memory, but no more than the engine can use",
    )
    max_model_len: int | None = MODEL.option(
        "N",
        "Context: most tokens of prompt and output together, as in 8192, 8k (8,000) or 8K (8,192).",
        "--max-model-len",
        "-c",
        "--ctx-size",
        parser=tokens,
        show_default="the model's limit",
    )
    max_num_batched_tokens: int = MODEL.option(
        "N", "Most tokens that one step computes; longer prompts are split into chunks."
    )


@dataclass(frozen=True)
class ModelOptions(PlannedModelOptions):
    """All that is said of the model."""

    tokenizer: str | None = MODEL.option(
        "DIR|owner/name",
        "Tokenizer and chat template of another directory or repository.",
        show_default="the model's own",
    )
    chat_template: str | None = MODEL.option(
        "FILE",
        "Chat template in Jinja, in a file or as text.",
        parser=text_or_file,
        show_default="the tokenizer's own",
    )
    backend: str = MODEL.choice(
        ("auto", "numpy", "cpu", "torch"),
        "What computes: native kernels (cpu), NumPy (numpy) or PyTorch (torch). auto: torch on a device, else cpu where"
        " it is built.",
    )
    device: str = MODEL.choice(
        ("auto", "cuda", "xpu", "mps", "cpu"),
        "Where it computes; other devices than cpu need PyTorch. auto: cuda where PyTorch finds such a GPU, else cpu.",
    )
    experts: str = MODEL.choice(
        ("memory", "mapped"),
        "Where the experts' weights are kept: in memory, or mapped from a temporary file on disk.",
    )
    num_threads: NumThreads = None


Speculation = Annotated[
    str,
    SPECULATION.choice(
        ("off", "auto", "ngram", "draft"),
        "Guess the next tokens, from the text itself (ngram) or by a draft model, and verify several in"
        " a step. The output never changes. auto: only where that is faster.",
    ),
]


@dataclass(frozen=True)
class SpeculationOptions(EngineOptions):
    """Whether and how tokens are guessed."""

    speculation: Speculation = EngineConfig.speculation
    draft_model: str | None = SPECULATION.option(
        "MODEL",
        "A smaller model with the same tokenizer, which guesses the next tokens.",
        show_default="the bundled one, for the bundled model",
        autocompletion=complete_model,
    )
    num_draft_tokens: int = SPECULATION.option("K", "Most tokens to guess in a step.")

    def settings(self) -> dict[str, Any]:
        settings = super().settings()
        if self.draft_model is not None and find_short_name(self.draft_model) is not None:
            settings["draft_model"] = resolve_model(self.draft_model)
        return settings


@dataclass(frozen=True)
class BenchSpeculationOptions(SpeculationOptions):
    """The same, for measurements: of plain decode, unless drafts are asked for."""

    speculation: Speculation = "off"


@dataclass(frozen=True)
class PrefixCacheOptions(EngineOptions):
    """Where blocks of the KV cache outlive an engine."""

    prefix_store: str | None = PREFIX_CACHE.option(
        "DIR|URL",
        "Keep computed blocks of the KV cache for later runs: in this directory, or in redis://host:port/db or"
        " mooncake://host:port for several servers.",
        parser=directory,
    )
    prefix_store_key: str | None = PREFIX_CACHE.option(
        "FILE",
        "The secret of all who share a prefix store: blocks that others have written are not used.",
    )
    prefix_cache_bytes: int = PREFIX_CACHE.option(
        "SIZE", "Most bytes of files in a directory.", parser=size, show_default="4GiB"
    )


@dataclass(frozen=True)
class StagesOptions(EngineOptions):
    """Other processes that compute a part of the model."""

    stages: str | None = STAGES.option(
        "HOST:PORT,...",
        "Machines on which pellucid stage runs: they compute the first layers, in this order, and this machine the"
        " last ones. The memory of each decides how many; HOST:PORT/12 gives one 12 layers. serve --replicas takes"
        " a group for each, with semicolons between.",
    )
    stages_key: str | None = STAGES.option("FILE", STAGES_KEY_HELP)
    tensor_parallel_size: int = STAGES.option(
        "N",
        "Processes that compute each matrix product together, on this machine or on several: start the command by"
        " mpirun -n N --bind-to none.",
        show_default="1",
    )


@dataclass(frozen=True)
class RequestOptions(Options):
    """Fields of a request's parameters; None means that it was not given."""

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class SamplingOptions(RequestOptions):
    """Fields of `SamplingParams`; None means that it was not given."""

    temperature: float | None = SAMPLING.option(
        "T",
        "Randomness; 0 always takes the likeliest token.",
        "--temperature",
        "--temp",
        show_default="the model's, or 1",
    )
    top_p: float | None = SAMPLING.option(
        "P",
        "Sample from the likeliest tokens that together have this probability.",
        show_default="the model's, or 1: off",
    )
    top_k: int | None = SAMPLING.option(
        "K", "Sample from this many of the likeliest tokens.", show_default="the model's, or 0: off"
    )
    min_p: float | None = SAMPLING.option(
        "P",
        "Sample from tokens with at least this share of the likeliest token's probability.",
        show_default="the model's, or 0: off",
    )
    typical_p: float | None = SAMPLING.option(
        "P",
        "Locally typical sampling: keep the most typical tokens that together have this probability.",
        show_default="the model's, or 1: off",
    )
    repetition_penalty: float | None = SAMPLING.option(
        "X",
        "Above 1: tokens of the prompt and the output become less likely.",
        "--repetition-penalty",
        "--repeat-penalty",
        show_default="the model's, or 1: off",
    )
    presence_penalty: float | None = SAMPLING.option(
        "X", "Above 0: tokens of the output become less likely.", show_default="0: off"
    )
    frequency_penalty: float | None = SAMPLING.option(
        "X",
        "Above 0: tokens become less likely each time that they occur in the output.",
        show_default="0: off",
    )
    seed: int | None = SAMPLING.option(
        "S",
        "The same seed gives the same answer.",
        "--seed",
        "-s",
        show_default="drawn at random, and shown",
    )

    def given(self) -> dict[str, Any]:
        values = super().given()
        if self.seed == -1:  # what other engines call a seed that is drawn
            del values["seed"]
        return values


@dataclass(frozen=True)
class StopOptions(RequestOptions):
    """Fields of `SamplingParams`, with its defaults."""

    min_tokens: int = STOPPING.option(
        "N", "Minimum tokens before EOS or a stop string may end the text.", default=0
    )
    stop: list[str] | None = STOPPING.option(
        "TEXT",
        r"Text that ends the output; \n is a newline. May be repeated.",
        "--stop",
        "-r",
        parser=text_with_escapes,
    )
    stop_token_ids: list[int] | None = STOPPING.option(
        "ID", "Token that ends the output. May be repeated.", "--stop-token-id"
    )
    include_stop_str_in_output: bool = STOPPING.flag(
        "Keep the stop string in the output.", "--include-stop"
    )
    ignore_eos: IgnoreEos = False
    max_time: float | None = STOPPING.option("SECONDS", "Most seconds that a request may take.")


@dataclass(frozen=True)
class RuleOptions(StopOptions):
    """And a rule for the whole answer: fields of `StructuredOutputsParams`, of which one may be given."""

    json_schema: str | None = RULE.option(
        "SCHEMA", "JSON that fits this schema.", parser=text_or_file, show_default=_NO_RULE
    )
    choice: list[str] | None = RULE.option(
        "TEXT", "One of these texts. Is repeated for each of them.", show_default=_NO_RULE
    )
    regex: str | None = RULE.option(
        "PATTERN", "Text that this regular expression matches.", show_default=_NO_RULE
    )
    grammar: str | None = RULE.option(
        "GRAMMAR",
        "Text of this grammar, in Lark's syntax.",
        parser=text_or_file,
        show_default=_NO_RULE,
    )

    def given(self) -> dict[str, Any]:
        """With `structured_outputs` of `SamplingParams`, if there is a rule.

        Raises:
            ValueError: more than one rule is given, or a rule has another form.
        """
        values = super().given()
        rules = {kind: values.pop(name) for name, kind in _RULES.items() if name in values}
        return values | ({"structured_outputs": StructuredOutputsParams(**rules)} if rules else {})


@dataclass(frozen=True)
class AnswerOptions(SamplingOptions, RuleOptions):
    """Fields of `SamplingParams`: what chooses, ends and forms an answer."""


@dataclass(frozen=True)
class BeamOptions(RequestOptions):
    """Fields of `BeamSearchParams`; None means that it was not given."""

    beam_width: int | None = BEAM_SEARCH.option(
        "W", "Beam search with this many beams instead of sampling.", show_default="off"
    )
    length_penalty: float | None = BEAM_SEARCH.option(
        "P", "Above 0 favours long completions, below 0 short ones.", show_default="1"
    )
    early_stopping: str | None = BEAM_SEARCH.choice(
        tuple(_EARLY_STOPPING),
        "Whether to stop as soon as W completions are finished.",
        show_default="false",
    )

    def search(self, given: Mapping[str, Any]) -> dict[str, Any] | None:
        """Fields of `BeamSearchParams`, if a search is asked for.

        Args:
            given: fields of `SamplingParams` that were given besides.

        Raises:
            ValueError: an option has no meaning with the others, or a value is not allowed.
        """
        own = self.given()
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
            hint, default = hints[parameter.name], parameter.default
            if isinstance(default, ParameterInfo):
                option, default = option_and_default(default, hint)
                hint = Annotated[hint, option]
            parameters.append(parameter.replace(annotation=hint, default=default, kind=keyword))
            continue
        field_hints = get_type_hints(group, include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name,
                keyword,
                default=field.default,
                annotation=Annotated[field_hints[field.name], field.metadata.get(ParameterInfo)],
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
