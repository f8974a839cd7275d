"""Other names than llama.cpp's converters write: Ollama's, and those of llama.cpp's first files.

Source: `llama/compat` in https://github.com/ollama/ollama, which reads Ollama's own files with llama.cpp.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Dialect:
    """Other names of one architecture.

    Args:
        architectures: other values of `general.architecture`, which also stand before keys.
        keys: llama.cpp's key, "<architecture>." left out -> another one.
        tensors: a pattern of another name -> llama.cpp's name, for `re.sub`.
    """

    architectures: tuple[str, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)

    def stored_keys(self, keys: Iterable[str], prefix: str) -> dict[str, str]:
        """llama.cpp's key -> the one that the file has, where it is another one.

        Args:
            keys: all keys of the file.
            prefix: stands before those of its architecture.
        """
        found = set(keys)
        return {
            ours: theirs
            for ours, theirs in self.keys.items()
            if prefix + theirs in found and prefix + ours not in found
        }

    def stored_tensors(self, tensors: Iterable[str]) -> dict[str, str]:
        """llama.cpp's name -> the one that the file has, where it is another one."""
        found = dict.fromkeys(tensors)
        stored: dict[str, str] = {}
        for pattern, replacement in self.tensors.items():
            matcher = re.compile(pattern)
            for name in found:
                if (
                    matcher.fullmatch(name)
                    and (ours := matcher.sub(replacement, name)) not in found
                ):
                    stored[ours] = name
        return stored


_DELTA_NET = Dialect(tensors={r"(blk\.\d+\.ssm_dt)": r"\1.bias"})
_EXPERT_SCALES = {r"(blk\.\d+)\.ffn_gate_inp\.per_expert_scale": r"\1.ffn_down_exps.scale"}

# By llama.cpp's `general.architecture`.
DIALECTS: Mapping[str, Dialect] = {
    "gpt-oss": Dialect(
        ("gptoss",),
        tensors={
            r"(blk\.\d+)\.attn_out\.(weight|bias)": r"\1.attn_output.\2",
            r"(blk\.\d+\.attn_sinks)": r"\1.weight",
            r"(blk\.\d+)\.ffn_norm\.weight": r"\1.post_attention_norm.weight",
        },
    ),
    "olmo2": Dialect(("olmo3",)),
    "lfm2": Dialect(tensors={r"output_norm\.weight": "token_embd_norm.weight"}),
    "lfm2moe": Dialect(tensors={r"output_norm\.weight": "token_embd_norm.weight"}),
    "gemma3": Dialect(
        keys={
            "rope.freq_base": "rope.global.freq_base",
            "rope.freq_base_swa": "rope.local.freq_base",
        }
    ),
    "gemma4": Dialect(tensors=_EXPERT_SCALES),
    "mistral3": Dialect(
        keys={
            "rope.scaling.yarn_beta_fast": "rope.scaling.beta_fast",
            "rope.scaling.yarn_beta_slow": "rope.scaling.beta_slow",
            "rope.scaling.yarn_log_multiplier": "rope.scaling.mscale_all_dim",
            "attention.temperature_scale": "rope.scaling_beta",
        }
    ),
    "qwen2vl": Dialect(("qwen25vl",)),
    "qwen35": _DELTA_NET,
    "qwen35moe": _DELTA_NET,
    "qwen3next": _DELTA_NET,
    # The first files of Mixtral have a tensor for each expert.
    "llama": Dialect(
        tensors={r"(blk\.\d+\.ffn_(?:gate|up|down))\.(\d+)\.weight": r"\1_exps.\2.weight"}
    ),
}
_PLAIN = Dialect()
_OTHER_ARCHITECTURES = {
    other: architecture
    for architecture, dialect in DIALECTS.items()
    for other in dialect.architectures
}


def usual_architecture(name: str) -> str:
    """llama.cpp's name of the architecture that a file calls `name`."""
    return _OTHER_ARCHITECTURES.get(name, name)


def dialect_of(architecture: str) -> Dialect:
    """Other names of what files of llama.cpp's `architecture` hold."""
    return DIALECTS.get(architecture, _PLAIN)
