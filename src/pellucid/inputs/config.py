"""The settings of an engine, checked when they are made; they never change."""

import os
import re
from dataclasses import dataclass
from numbers import Integral

from pellucid.inputs.parameter_checks import CheckedFields, Interval, refuse, shown
from pellucid.inputs.stage_address import parse_addresses

# Each level of priority counts as so many seconds of earlier arrival.
PRIORITY_SECONDS = 10.0

QUANTIZATIONS = ("none", "int8", "int8-channel", "int4", "int4-g128", "int4-zp", "int4-g128-zp")


@dataclass(frozen=True)
class EngineConfig(CheckedFields):
    """The settings of an engine. `LLM(...)` takes the same names.

    Args:
        model: a directory in Hugging Face layout, a GGUF file or a hub id; None is the bundled model.
        revision: branch, tag or commit of a hub id.
        tokenizer: a directory in Hugging Face layout or a hub id, whose tokenizer and chat template are taken
            instead of the model's own.
        chat_template: a template in Jinja instead of the tokenizer's own.
        backend: "cpu" runs native kernels, "numpy" the readable definition of every op, "torch" PyTorch on
            `device`. "auto" takes "torch" for a device besides the CPU, else "cpu" where it is built and supports
            the model.
        device: where weights and KV blocks lie, and what computes: "cuda" (also AMD's), "xpu", "mps" or "cpu".
            "auto" takes "cuda" where PyTorch finds such a GPU; with backend="torch" any device that it finds.
        dtype: the float type that the checkpoint's weights must have: "bfloat16", "float16" or "float32".
            pellucid computes with the values that the checkpoint has; "auto" takes any.
        quantization: format of the weight matrices in memory; "none" keeps the checkpoint's values.
            "int8" and "int4" store one scale per 32 inputs, "-g128" one per 128, "-channel" one per
            output; "-zp" adds zero points.
        quantize_activations: round activations to int8 before products with integer weights. False is
            more exact and slower.
        experts: "memory" keeps the matrices of all experts in memory. "mapped" puts them into a temporary file
            on disk; the system keeps in memory what steps read, as far as memory allows.
        kv_cache_dtype: format of keys and values in the cache; "int8,int4" stores keys in int8 and values in int4.
        block_size: tokens per KV block: 16, 32, 64 or 128; not 16 with keys in int4, which become codes in groups of 32
            positions.
        max_num_seqs: most requests in one step; 1..65,536.
        max_num_batched_tokens: most tokens in one step; longer prompts are split. 1..1,048,576.
        max_model_len: most tokens of prompt and output together, at least 2; None is the model's limit.
        kv_cache_memory: bytes for KV blocks; None takes the memory that is left, see `plan_memory`.
        num_kv_blocks: number of KV blocks; overrides `kv_cache_memory`.
        memory_utilization: the share of the memory available after loading that the engine may use;
            (0, 1].
        num_threads: compute threads; None lets the backend choose.
        enable_prefix_caching: reuse KV blocks of earlier requests that began with the same tokens.
        prefix_store: keeps such blocks after the engine ends: a directory, or redis://host:port/db or
            mooncake://host:port, which several machines share; None keeps them in memory only.
        prefix_store_key: a file with the secret that all engines of a shared store have, at least 16 bytes: a block
            that was written without it is not used.
        prefix_cache_bytes: most bytes of files in a directory; the least recently used are deleted.
        swap_space: bytes of a temporary file for the blocks of preempted requests; 0 recomputes them.
        use_kv_cache: False computes the whole text again for every token, as a naive loop would.
        skip_tokenizer_init: load no tokenizer; prompts are token ids, and answers have no text.
        speculation: how to draft tokens ahead; drafts change no answer. "ngram" looks them up in the
            request's own text, "draft" asks a draft model, both in every step. "auto" does one of them (the
            draft model if one is given) when measured times say that it pays, and drafts nothing without a
            KV cache. "off" drafts nothing.
        draft_model: a smaller model with the same tokenizer, given like `model`. With speculation="draft"
            None is the bundled draft model, for the bundled model.
        num_draft_tokens: most drafts for one request in one step; 1..32.
        stages: "host:port,...": machines that compute the first layers, in order, where `pellucid stage` listens;
            this process computes the last ones. "host:port/12" gives a machine 12 layers; left out, the memory
            of each machine decides.
        stages_key: a file with the secret that the stages have, too, at least 16 bytes.
        tensor_parallel_size: processes that `mpirun` has started, each of which has a share of the rows of every
            large matrix.

    Raises:
        ValueError: names the field, its value and what is allowed.
    """

    model: str | None = None
    revision: str | None = None
    tokenizer: str | None = None
    chat_template: str | None = None
    backend: str = "auto"
    device: str = "auto"
    dtype: str = "auto"
    quantization: str = "none"
    quantize_activations: bool = True
    experts: str = "memory"
    kv_cache_dtype: str = "bf16"
    block_size: int = 32
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_model_len: int | None = None
    kv_cache_memory: int | None = None
    num_kv_blocks: int | None = None
    memory_utilization: float = 0.9
    num_threads: int | None = None
    enable_prefix_caching: bool = True
    prefix_store: str | None = None
    prefix_store_key: str | None = None
    prefix_cache_bytes: int = 4 << 30
    swap_space: int = 0
    use_kv_cache: bool = True
    skip_tokenizer_init: bool = False
    speculation: str = "auto"
    draft_model: str | None = None
    num_draft_tokens: int = 6
    stages: str | None = None
    stages_key: str | None = None
    tensor_parallel_size: int = 1

    def __post_init__(self) -> None:
        for name in _NAMES:
            self._normalise(name, _checked_name(name, getattr(self, name)))
        for name, choices in _CHOICES.items():
            if (value := getattr(self, name)) not in choices or not isinstance(value, str):
                refuse(name, value, f"one of {', '.join(map(repr, choices))}")
        if self.backend in ("numpy", "cpu") and self.device not in ("auto", "cpu"):
            raise ValueError(
                f"device={self.device!r}: backend={self.backend!r} computes on the CPU; backend='torch' is for"
                " other devices"
            )
        self._check_switches(
            "quantize_activations", "enable_prefix_caching", "use_kv_cache", "skip_tokenizer_init"
        )
        size = self.block_size
        if type(size) is bool or not isinstance(size, Integral) or size not in BLOCK_SIZES:
            refuse("block_size", size, f"one of {', '.join(map(str, BLOCK_SIZES))}")
        self._normalise("block_size", int(size))
        if self.block_size not in (allowed := block_sizes(self.kv_cache_dtype)):
            raise ValueError(
                f"block_size={self.block_size}: must be one of {', '.join(map(str, allowed))} with"
                f" kv_cache_dtype={self.kv_cache_dtype!r}, whose keys become codes in groups of {allowed[0]} positions"
            )
        self._check_integers(_SIZES)
        self._check_integers(_OPTIONAL_SIZES, optional=True)
        share = _SHARE.real("memory_utilization", self.memory_utilization)
        self._normalise("memory_utilization", share)
        for name in ("tokenizer", "chat_template"):
            if (value := getattr(self, name)) is not None and self.skip_tokenizer_init:
                raise ValueError(
                    f"{name}={shown(value)}: has no effect with skip_tokenizer_init=True"
                )
        template = self.chat_template
        if template is not None and not (isinstance(template, str) and "{" in template):
            refuse("chat_template", template, "the text of a template in Jinja, or None")
        self._check_prefix_store()
        self._check_stages()
        self._check_ranks()

    def max_step_tokens(self, context_length: int) -> int:
        """Most tokens that a step can have: `max_num_batched_tokens`, or fewer where all requests together have fewer.

        Args:
            context_length: of the model.
        """
        longest = min(context_length, self.max_model_len or context_length)
        return min(self.max_num_batched_tokens, self.max_num_seqs * longest)

    @property
    def shares_prefix_store(self) -> bool:
        """Whether the prefix store is a server."""
        return self.prefix_store is not None and "://" in self.prefix_store

    def _check_prefix_store(self) -> None:
        store, key = self.prefix_store, self.prefix_store_key
        if store is None:
            if key is not None:
                raise ValueError(f"prefix_store_key={key!r}: has no effect without prefix_store")
            return
        if not (self.enable_prefix_caching and self.use_kv_cache):
            raise ValueError(
                f"prefix_store={store!r}: needs enable_prefix_caching and use_kv_cache"
            )
        if self.shares_prefix_store:
            if not _STORE_ADDRESS.fullmatch(store):
                refuse(
                    "prefix_store",
                    store,
                    "a directory, redis://host:port/db or rediss://host:port/db (the environment variable REDISCLI_AUTH"
                    " has the password), or mooncake://host:port",
                )
            if key is None:
                raise ValueError(
                    f"prefix_store={store!r}: needs prefix_store_key: without a secret, whoever can write there"
                    " can change answers"
                )

    def _check_stages(self) -> None:
        if self.stages is None:
            if self.stages_key is not None:
                raise ValueError(f"stages_key={self.stages_key!r}: has no effect without stages")
            return
        parse_addresses(self.stages)
        if self.stages_key is None:
            raise ValueError(
                f"stages={self.stages!r}: needs stages_key: without a secret, whoever reaches a stage can use it"
            )

    def _check_ranks(self) -> None:
        """Only the model's own steps are computed by all processes, in one order."""
        if (num_ranks := self.tensor_parallel_size) == 1:
            return
        others = {"stages": self.stages, "draft_model": self.draft_model}
        if self.speculation == "draft":
            others["speculation"] = self.speculation
        for name, value in others.items():
            if value is not None:
                raise ValueError(f"{name}={value!r}: not with tensor_parallel_size={num_ranks}")


_NAMES = (
    *("model", "revision", "tokenizer", "draft_model", "prefix_store", "prefix_store_key"),
    *("stages", "stages_key"),
)
_STORE_ADDRESS = re.compile(
    r"rediss?://([\w.-]+|\[[0-9a-fA-F:]+\])(:\d{1,5})?(/\d{1,5})?|mooncake://[\w.-]+(:\d{1,5})?"
)
MAX_DRAFT_TOKENS = 32
BLOCK_SIZES = (16, 32, 64, 128)
_SIZES_OF_WHOLE_GROUPS = {"int4": (32, 64, 128)}  # by kv_cache_dtype
_CHOICES = {
    "backend": ("auto", "numpy", "cpu", "torch"),
    "device": ("auto", "cuda", "xpu", "mps", "cpu"),
    "dtype": ("auto", "bfloat16", "float16", "float32"),
    "quantization": QUANTIZATIONS,
    "experts": ("memory", "mapped"),
    "kv_cache_dtype": ("bf16", "f32", "int8", "int8,int4", "int4"),
    "speculation": ("off", "auto", "ngram", "draft"),
}
# The upper ends only keep sizes computed from these fields within 64 bits; memory is checked by the plan.
_SIZES = {
    "num_draft_tokens": Interval(1, MAX_DRAFT_TOKENS),
    "max_num_seqs": Interval(1, 1 << 16),
    "max_num_batched_tokens": Interval(1, 1 << 20),
    "prefix_cache_bytes": Interval(1, 1 << 60),
    "swap_space": Interval(0, 1 << 60),
    "tensor_parallel_size": Interval(1, 1 << 10),
}
_OPTIONAL_SIZES = {
    "max_model_len": Interval(2, 1 << 30),  # one token of prompt, one of output
    "kv_cache_memory": Interval(1, 1 << 60),
    "num_kv_blocks": Interval(1, 1 << 31),
    "num_threads": Interval(1, 1 << 16),
}
_SHARE = Interval(0, 1, above_low=True)


def block_sizes(kv_cache_dtype: str) -> tuple[int, ...]:
    """The block sizes that a format of the KV cache can have."""
    return _SIZES_OF_WHOLE_GROUPS.get(kv_cache_dtype, BLOCK_SIZES)


def fitting_block_size(block_size: int, kv_cache_dtype: str) -> int:
    """`block_size`, or the least that a format of the KV cache can have if that is larger."""
    return max(block_size, min(block_sizes(kv_cache_dtype)))


def _checked_name(name: str, value: object) -> str | None:
    """A name or path as text; None if there is none."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if value is None or (isinstance(value, str) and value):
        return value
    return refuse(name, value, "a non-empty string or None")
