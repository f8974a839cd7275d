"""The engine's identity: everything besides a request that the bits of its answer depend on."""

import hashlib
from dataclasses import asdict, dataclass
from functools import cached_property

from pellucid import __version__
from pellucid.backends.base import Backend
from pellucid.facts.kv_formats import find_kv_format
from pellucid.facts.model_config import ModelConfig
from pellucid.inputs.config import EngineConfig


@dataclass(frozen=True)
class EngineIdentity:
    """Engines with equal identities give the same bits for the same request, on any machine.

    Attributes:
        version: of pellucid.
        backend: its arithmetic: instruction set level and the hash of the extension's file, or versions of libraries.
        weights: `loading.weights_identity`, in hexadecimal digits.
        model: `ModelConfig.digest`.
        quantization, quantize_activations, kv_cache_dtype, block_size: as in `EngineConfig`. The layout of a block
            depends on its size.
    """

    version: str
    backend: str
    weights: str
    model: str
    quantization: str
    quantize_activations: bool
    kv_cache_dtype: str
    block_size: int

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that differ if any of the attributes differs, or how the KV format stores numbers: the fingerprint
        of blocks on disk."""
        facts = asdict(self), find_kv_format(self.kv_cache_dtype)
        return hashlib.sha256(repr(facts).encode()).digest()

    @property
    def id(self) -> str:
        """The first half of the digest, in hexadecimal digits."""
        return self.digest.hex()[:32]

    def facts(self) -> dict[str, str | int]:
        """The identity for clients and routers: `identity` first, then what it consists of."""
        return {"identity": self.id, **asdict(self)}


def make_identity(
    config: EngineConfig, model_config: ModelConfig, weights: bytes, backend: Backend
) -> EngineIdentity:
    """The identity of an engine.

    Args:
        weights: `loading.weights_identity`.
    """
    return EngineIdentity(
        version=__version__,
        backend=backend.identity,
        weights=weights.hex(),
        model=model_config.digest,
        quantization=config.quantization,
        quantize_activations=config.quantize_activations,
        kv_cache_dtype=config.kv_cache_dtype,
        block_size=config.block_size,
    )
