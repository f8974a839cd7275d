"""Loads the model that an EngineConfig names, ready to run."""

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
from msgspec import Struct

from pellucid.backends.base import Backend, CompiledDecoder
from pellucid.backends.choice import make_backend
from pellucid.backends.ops import Decoder, ForwardBatch, KVCache, Ops
from pellucid.execution.engine_identity import EngineIdentity, make_identity
from pellucid.facts.host_memory import give_back_free_memory
from pellucid.facts.model_config import ModelConfig
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loading.decoder import finish_weights, make_decoder
from pellucid.loading.hub import BUNDLED_DRAFT_MODEL, ModelLocation, find_model, find_tokenizer
from pellucid.loading.open_model import open_stored_model
from pellucid.loading.parameters import Progress
from pellucid.loading.part import stored_part
from pellucid.loading.stored_model import StoredModel
from pellucid.loading.weights_identity import weights_identity
from pellucid.memory.memory_plan import StageNeeds, check_weights_fit, in_gib
from pellucid.text.no_tokenizer import NoTokenizer
from pellucid.text.tokenizer import Tokenizer
from pellucid.text.tokenizer_files import read_tokenizer_files

if TYPE_CHECKING:  # few look at attention
    from pellucid.execution.attention_lens import AttentionStep


class PartsElsewhere(Protocol):
    """The parts of a model that other processes compute: the layers before those of this one, or a share of each
    matrix.

    Attributes:
        block_layout: how the contents of a block are put together of those of the parts; empty: as in one process.
        needs: of each other machine, if memory is planned for each of them.
        own_bytes_per_block: of a block, how many bytes lie on this machine.
    """

    @property
    def block_layout(self) -> str: ...

    @property
    def needs(self) -> tuple[StageNeeds, ...]: ...

    @property
    def own_bytes_per_block(self) -> int: ...

    def available_memory(self, own: int | None) -> int | None:
        """Bytes for which the KV cache is planned; None: unknown.

        Args:
            own: what this process can still take.
        """
        ...

    def make_kv_cache(self, num_blocks: int, num_state_slots: int) -> KVCache:
        """The cache of all layers; there can be one.

        Raises:
            ValueError: there is one already, or a machine cannot make its part.
        """
        ...

    def beside(self, block_size: int, kv_cache_dtype: str) -> "PartsElsewhere":
        """The same parts for another engine, with a KV cache of its own in this format."""
        ...

    def see_attention(self, batch: ForwardBatch, kv_cache: KVCache) -> "AttentionStep":
        """As `LoadedModel.see_attention`."""
        ...

    def when_lost(self, on_loss: Callable[[], None]) -> None:
        """Calls `on_loss`, on any thread, when another process has gone, before a request fails for that."""
        ...

    def take_loss(self) -> Exception | None:
        """Why the contents of all blocks are gone since the last call; None: they are not."""
        ...

    def close(self) -> None:
        """Lets the other machines go; of parts `beside` others, frees the cache alone."""
        ...


@dataclass(frozen=True)
class LoadedModel:
    """A checkpoint on a backend.

    Args:
        name: for people: a hub id, or the name of a directory or file.
        path: the directory or the GGUF file.
        config: the checkpoint's facts.
        decoder: the model, compiled for the backend.
        tokenizer: text to ids and back.
        backend: holds the weights.
        default_sampling_params: the sampling parameters that the checkpoint recommends.
        weight_bytes: of all weights in memory, as planned before they were loaded.
        decoder_on: makes a decoder over the same weights on other ops of the backend, which see what a
            compiled decoder hides; None: a model of random weights.
        notes: what the files hold that was left out, a sentence each.
        elsewhere: the layers that other machines compute; None: there are none.
    """

    name: str
    path: Path
    config: ModelConfig
    decoder: CompiledDecoder
    tokenizer: Tokenizer
    backend: Backend
    default_sampling_params: SamplingParams = field(default_factory=SamplingParams)
    weight_bytes: int = 0
    decoder_on: Callable[[Ops], Decoder] | None = None
    notes: tuple[str, ...] = ()
    elsewhere: PartsElsewhere | None = None

    @property
    def file_format(self) -> str:
        return file_format_of(self.path)

    def beside(self, block_size: int, kv_cache_dtype: str) -> "LoadedModel":
        """The same weights for another engine, whose KV cache has this format."""
        if self.elsewhere is None:
            return self
        return replace(self, elsewhere=self.elsewhere.beside(block_size, kv_cache_dtype))

    def make_kv_cache(
        self, num_blocks: int, block_size: int, kv_cache_dtype: str, num_state_slots: int = 1
    ) -> KVCache:
        """The cache of all layers, in the format that `elsewhere` has been told. Errors are those of
        `PartsElsewhere.make_kv_cache`."""
        if self.elsewhere is not None:
            return self.elsewhere.make_kv_cache(num_blocks, num_state_slots)
        return self.backend.make_kv_cache(
            self.config, num_blocks, block_size, kv_cache_dtype, num_state_slots
        )

    def see_attention(self, batch: ForwardBatch, kv_cache: KVCache) -> "AttentionStep":
        """Computes a step with a decoder that shows what its last row attends to.

        Raises:
            ValueError: random weights have no second decoder.
        """
        if self.elsewhere is not None:
            return self.elsewhere.see_attention(batch, kv_cache)
        if self.decoder_on is None:
            raise ValueError("attention: a model of random weights has no second decoder")
        ops = self.backend.ops
        # Imported here: few look at attention.
        from pellucid.execution.attention_lens import AttentionCapture, AttentionStep

        capture = AttentionCapture(ops)
        decoder = self.decoder_on(cast(Ops, capture))
        rows = decoder.forward(self.backend.batch(batch), kv_cache)
        return AttentionStep(ops.to_host(rows), capture.calls)

    def close(self) -> None:
        """Lets other machines go."""
        if self.elsewhere is not None:
            self.elsewhere.close()

    def identity(self, config: EngineConfig) -> EngineIdentity:
        """Of an engine with this model. The first engine of a checkpoint without SHA256SUMS reads all of its files.
        Weights that come from no file are like no others.

        Raises:
            OSError: a file cannot be read.
        """
        weights = weights_identity(self.path) if self.path.exists() else secrets.token_bytes(32)
        return make_identity(config, self.config, weights, self.backend)


class ModelWithoutWeights(Struct, frozen=True):
    """What of a checkpoint is needed to talk to an engine that runs it elsewhere. Attributes as of `LoadedModel`."""

    name: str
    path: Path
    config: ModelConfig
    tokenizer: Tokenizer
    default_sampling_params: SamplingParams
    notes: tuple[str, ...]

    @property
    def file_format(self) -> str:
        return file_format_of(self.path)


def file_format_of(path: Path) -> str:
    """Of a checkpoint's files: "gguf" or "safetensors"."""
    return "gguf" if path.suffix == ".gguf" else "safetensors"


def load_without_weights(
    config: EngineConfig, on_download: Progress | None = None
) -> ModelWithoutWeights:
    """Finds the checkpoint, and loads its facts and its tokenizer. Arguments and errors are those of `load_model`."""
    location = find_model(config.model, config.revision, on_download)
    stored = open_stored_model(location.path)
    return ModelWithoutWeights(
        location.name,
        location.path,
        stored.config,
        _load_tokenizer(config, stored, location.name, _other_tokenizer(config, stored)),
        stored.default_sampling_params,
        stored.notes,
    )


def load_model(
    config: EngineConfig,
    on_progress: Progress | None = None,
    backend: Backend | None = None,
    *,
    layers: range | None = None,
    on_download: Progress | None = None,
) -> LoadedModel:
    """Finds the checkpoint, checks it, and loads its weights on the backend.

    Args:
        backend: a backend that runs another model already; left out, a new one is made.
        layers: that this process computes; None: all.
        on_download: called with (bytes, bytes in all) while weights are downloaded; None: a bar is shown.

    Raises:
        ValueError: the checkpoint, the tokenizer or a setting cannot be used, or there is too little memory.
        OSError: a file cannot be read.
    """
    location = find_model(config.model, config.revision, on_download)
    stored = open_stored_model(location.path)
    if layers is not None:
        stored = stored_part(stored, layers)
    other = _other_tokenizer(config, stored)  # before anyone waits for weights
    _check_dtype(config.dtype, stored)
    if backend is None:
        backend = make_backend(config, stored.config)
    available = backend.available_memory()
    weights = check_weights_fit(stored, backend, config.quantization, available)
    backend.weights.expect(weights.total)
    # Another thread makes the tokenizer, on one core, while this one has native code pack weights.
    with ThreadPoolExecutor(1, "pellucid-tokenizer") as thread:
        tokenizer_made = thread.submit(_load_tokenizer, config, stored, location.name, other)
        made = make_decoder(stored, backend, on_progress, config.quantization)
        tokenizer = tokenizer_made.result()
    give_back_free_memory()
    finish_weights(stored, backend.weights, on_progress)
    return LoadedModel(
        location.name,
        location.path,
        stored.config,
        backend.compile(made.decoder, stored.config),
        tokenizer,
        backend,
        stored.default_sampling_params,
        weights.total,
        made.on_ops,
        stored.notes,
    )


def load_draft_model(config: EngineConfig, model: LoadedModel) -> LoadedModel | None:
    """The model that guesses tokens for `model`, on the same backend; None where none does.

    Raises:
        ValueError: there is none, it has another tokenizer, or it is no smaller.
    """
    name = config.draft_model
    if name is None:
        if config.speculation != "draft":
            return None
        if config.model is not None:
            raise ValueError(
                "speculation='draft': needs draft_model, a smaller model with the tokenizer of"
                f" {model.name}"
            )
        name = str(BUNDLED_DRAFT_MODEL)
    if config.speculation not in ("auto", "draft"):
        raise ValueError(
            f"draft_model={name!r}: has no effect with speculation={config.speculation!r}; allowed are"
            " 'auto' and 'draft'"
        )
    try:
        draft = load_model(
            replace(config, model=name, revision=None, tokenizer=None, chat_template=None),
            backend=model.backend,
        )
    except (ValueError, ConnectionError) as error:
        if str(error).startswith("model="):
            raise type(error)(f"draft_{error}") from error
        raise
    _check_tokenizers(name, draft, model)
    if draft.weight_bytes > model.weight_bytes:
        raise ValueError(
            f"draft_model={name!r}: has {in_gib(draft.weight_bytes)} of weights, {model.name} only"
            f" {in_gib(model.weight_bytes)}: a draft model is the smaller one"
        )
    return draft


def _check_tokenizers(name: str, draft: LoadedModel, model: LoadedModel) -> None:
    """Compares the tokens of a draft model with the model's, by their ids. Vocabularies may differ in size:
    embeddings of different sizes are padded differently, and `DraftModel` reads and draws common tokens alone.

    Raises:
        ValueError: an id stands for different tokens; says which.
    """
    for token_id in range(min(draft.config.vocab_size, model.config.vocab_size)):
        tokens = draft.tokenizer.token_bytes(token_id), model.tokenizer.token_bytes(token_id)
        if tokens[0] != tokens[1]:
            raise ValueError(
                f"draft_model={name!r}: has another tokenizer than {model.name}: token {token_id} is"
                f" {tokens[0]!r} and {tokens[1]!r}"
            )


def _check_dtype(dtype: str, stored: StoredModel) -> None:
    """Compares the setting with the checkpoint's largest tensor."""
    if dtype == "auto":
        return
    tensors = stored.tensors
    name = max(tensors, key=lambda each: tensors.info(each).num_bytes)
    tensor = tensors.tensor(name)
    found = str(tensor.dtype) if isinstance(tensor, np.ndarray) else "quantized"
    tensors.release(name)
    if found != dtype:
        raise ValueError(
            f"dtype={dtype!r}: the weights of {stored.path} are {found}, and pellucid keeps their values;"
            " leave dtype out, or choose a smaller format by quantization"
        )


def _other_tokenizer(config: EngineConfig, stored: StoredModel) -> ModelLocation | None:
    """The tokenizer that is asked for in place of the model's own; None: none is.

    Raises:
        ValueError: there is none, or the model's own cannot be used.
    """
    if config.tokenizer is not None:
        return find_tokenizer(config.tokenizer)
    if stored.tokenizer_refusal is not None and not config.skip_tokenizer_init:
        raise ValueError(stored.tokenizer_refusal)
    return None


def _load_tokenizer(
    config: EngineConfig, stored: StoredModel, name: str, other: ModelLocation | None
) -> Tokenizer:
    """The model's own tokenizer, or the `other` one; with its own template, or with the one asked for."""
    if config.skip_tokenizer_init:
        return NoTokenizer(stored.config.vocab_size)
    read = stored.read_tokenizer or partial(read_tokenizer_files, stored.path)
    if other is not None:
        name, read = other.name, partial(read_tokenizer_files, other.path)
    tokenizer = read()
    if config.chat_template is not None:
        tokenizer = replace(
            tokenizer,
            chat_template=config.chat_template,
            tool_chat_template=None,
            response_template=None,
        )
    return Tokenizer.from_stored(tokenizer, stored.config.vocab_size, name)
