"""The served model: the names by which clients call it, and its facts in the form of each protocol."""

import re
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

from pellucid import __version__
from pellucid.facts.formulas import embedding_parameters, matrix_parameters
from pellucid.server.errors import ApiError
from pellucid.server.served_engine import ServedEngine

MAX_NAME = 256  # characters
FINGERPRINT = f"pellucid-{__version__}"


class ServedModel:
    """The one model of a server.

    Args:
        names: names by which clients may call it; replies use the first one. `*` stands for any characters. Left
            out, the model's own name.
        engine: runs the model.

    Attributes:
        created: when the server started, in seconds since 1970.
    """

    def __init__(self, names: Sequence[str], engine: ServedEngine) -> None:
        self._names = names or (engine.model_name,)
        self.name = self._names[0]
        self.created = int(time.time())
        self.max_model_len = engine.max_model_len
        self.tokenizer = engine.tokenizer
        self.default_sampling_params = engine.default_sampling_params
        self.weight_bytes = engine.memory_plan.weights
        self._engine = engine
        self._config = engine.config
        self._model_config = engine.model_config
        self._file_format = engine.model_file_format
        self._num_kv_tokens = engine.memory_plan.num_tokens
        pattern = "|".join(re.escape(name).replace(r"\*", ".*") for name in self._names)
        self._pattern = re.compile(f"(?:{pattern})(?::latest)?")  # Ollama's clients add the tag

    def check_name(self, name: str | None) -> str:
        """The name that a reply gives the model: the client's, or ours if it gave none.

        A name selects; nothing is ever looked for or loaded by it.

        Raises:
            ApiError: 404 with the names that there are.
        """
        if not name:
            return self.name
        if len(name) > MAX_NAME or self._pattern.fullmatch(name) is None:
            known = ", ".join(map(repr, self._names))
            raise ApiError(
                404,
                f"model={name[:128]!r}: this server has {known}; --model-name gives it other names",
                "model",
                "model_not_found",
            )
        return name

    @cached_property
    def identity(self) -> dict[str, str | int]:
        """What the bits of answers depend on besides requests. The first call may read all files of the checkpoint.

        Raises:
            OSError: a file cannot be read.
        """
        return self._engine.identity.facts()

    @property
    def num_parameters(self) -> int:
        """Of the matrices; biases and norms left out."""
        return matrix_parameters(self._model_config) + embedding_parameters(self._model_config)

    def facts(self) -> dict[str, Any]:
        """The model object of OpenAI's API, with Anthropic's fields and the context length under the
        names that vLLM, llama.cpp and their clients use."""
        created = datetime.fromtimestamp(self.created, timezone.utc).isoformat()
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "pellucid",
            "root": self.name,  # never a path of this machine
            "parent": None,
            "max_model_len": self.max_model_len,
            "context_length": self.max_model_len,
            "meta": {
                "n_ctx_train": self._model_config.context_length,
                "n_ctx": self.max_model_len,
                "n_vocab": self._model_config.vocab_size,
                "n_embd": self._model_config.hidden_size,
            },
            "backend": self.identity,
            "type": "model",
            "display_name": self.name,
            "created_at": created,
            "lifecycle": "active",
            "max_input_tokens": self.max_model_len - 1,  # an answer needs one
            "max_tokens": self.max_model_len,
        }

    def details(self) -> dict[str, Any]:
        """Further facts about the model, for routes with details."""
        config = self._model_config
        attention = config.attentions[0]
        return {
            "architecture": config.architecture,
            "file_format": self._file_format,
            "num_parameters": self.num_parameters,
            "num_layers": config.num_layers,
            "num_heads": attention.num_heads,
            "num_kv_heads": attention.num_kv_heads,
            "head_dim": attention.head_dim,
            "hidden_size": config.hidden_size,
            "vocab_size": config.vocab_size,
            "context_length": config.context_length,
            "max_model_len": self.max_model_len,
            "quantization": self._config.quantization,
            "kv_cache_dtype": self._config.kv_cache_dtype,
            "block_size": self._config.block_size,
            "num_kv_tokens": self._num_kv_tokens,
        }
