"""EngineConfig: what each setting allows, and the errors that say so."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.facts.kv_formats import KV_FORMATS
from pellucid.inputs.config import BLOCK_SIZES, EngineConfig, block_sizes
from pellucid.inputs.stage_address import StageAddress, parse_addresses
from support.refusals import check_refusals

BAD = {
    "model": ["", 7, b"model", ["model"]],
    "revision": ["", 7],
    "backend": ["gpu", None, ["cpu"], True],
    "device": ["gpu", "CUDA", None, 0, True],
    "dtype": ["int8", "half", None],
    "quantization": ["fp8", None, 8],
    "experts": ["disk", None, True],
    "kv_cache_dtype": ["fp8", "auto", None],
    "block_size": [0, 7, 48, 32.0, "32", True, None],
    "max_num_seqs": [0, -1, 1.0, "64", True, None, 2**16 + 1],
    "max_num_batched_tokens": [0, 2048.0, True, None, 2**20 + 1],
    "max_model_len": [0, 1, 2.0, "2", True, 2**30 + 1],
    "kv_cache_memory": [0, -1, 1e9, "1GiB", True, 2**60 + 1],
    "num_kv_blocks": [0, 1.0, True, 2**31 + 1],
    "memory_utilization": [0, -0.5, 1.01, "0.9", True, None, float("nan")],
    "num_threads": [0, 1.5, True, 2**16 + 1],
    "prefix_store": [
        "",
        7,
        b"there",
        "mooncake://",
        "mooncake://here/0",
        "redis://",
        "redis://user:secret@here:1/0",
        "redis://here:1/first",
    ],
    "prefix_store_key": ["", 7, b"there"],
    "prefix_cache_bytes": [0, None, True, 2**60 + 1],
    "swap_space": [-1, 0.5, "1", None, True, 2**60 + 1],
    "quantize_activations": ["false", 0, None],
    "enable_prefix_caching": ["true", 1, None],
    "use_kv_cache": ["false", 0, None],
    "skip_tokenizer_init": ["false", 0, None],
    "speculation": ["on", None, True],
    "tokenizer": ["", 7],
    "chat_template": ["", 7, "no/such/file.jinja"],
    "draft_model": ["", 7],
    "num_draft_tokens": [0, 33, 1.5, None, True],
    "stages": ["", 7],
    "stages_key": ["", 7, b"there"],
    "tensor_parallel_size": [0, 2.0, "2", True, None, 2**10 + 1],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in BAD.items() for v in values])
def test_a_value_that_is_not_allowed_is_named(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{name}=.*: must be ") as caught:
        EngineConfig(**{name: value})
    assert repr(value) in str(caught.value)


def test_every_field_is_checked() -> None:
    assert BAD.keys() == EngineConfig.__dataclass_fields__.keys()


def test_numbers_and_paths_of_other_libraries_become_pythons_own() -> None:
    config = EngineConfig(
        model=Path("there"),
        max_num_seqs=np.int64(8),
        block_size=np.int32(64),
        memory_utilization=np.float32(0.5),
        prefix_store=Path("here"),
    )
    plain = {"max_num_seqs": 8, "block_size": 64, "memory_utilization": 0.5}
    assert config == EngineConfig(model="there", prefix_store="here", **plain)
    assert type(config.max_num_seqs) is type(config.block_size) is int


def test_addresses_of_stages() -> None:
    config = EngineConfig(stages="10.0.0.1:7000/12,[::1]:7001,here:7002", stages_key="key")
    assert config.stages is not None
    assert parse_addresses(config.stages) == [
        StageAddress("10.0.0.1", 7000, 12),
        StageAddress("::1", 7001),
        StageAddress("here", 7002),
    ]


# Beside each other
STORE = {"prefix_store": "there"}
KEYS = {"stages_key": "key"}
RANKS = {"tensor_parallel_size": 2}
REFUSED: list[dict[str, Any]] = [
    {"tokenizer": "there", "skip_tokenizer_init": True},
    {"chat_template": "{{ messages }}", "skip_tokenizer_init": True},
    STORE | {"enable_prefix_caching": False},
    STORE | {"use_kv_cache": False},
    {"prefix_store": "redis://there"},
    {"prefix_store_key": "key"},
    *(
        KEYS | {"stages": f"10.0.0.1:7000,{wrong}"}
        for wrong in ("there", "there:70000", "there:1/0", "there:1/x", "a:1,", ":1", "a b:1")
    ),
    {"stages": "there:1"},
    KEYS,
    RANKS | {"speculation": "draft"},
    RANKS | {"draft_model": "x"},
    RANKS | KEYS | {"stages": "a:1"},
    {"block_size": 16, "kv_cache_dtype": "int4"},
    {"backend": "cpu", "device": "cuda"},
    {"backend": "numpy", "device": "cuda"},
]


def test_settings_that_do_not_go_together() -> None:
    check_refusals("config", REFUSED, lambda knobs: EngineConfig(**knobs))


def test_a_prefix_store_that_is_shared() -> None:
    servers = ("redis://there", "rediss://10.0.0.1:6379", "redis://[::1]:6379/3")
    for store in (*servers, "mooncake://there:50051"):
        assert EngineConfig(prefix_store=store, prefix_store_key="key").shares_prefix_store
    assert not EngineConfig(prefix_store="there", prefix_store_key="key").shares_prefix_store


def test_keys_that_become_codes_in_groups_need_blocks_of_whole_groups() -> None:
    for name, kv_format in KV_FORMATS.items():
        group = max(1, kv_format.open_positions)
        assert block_sizes(name) == tuple(size for size in BLOCK_SIZES if size % group == 0)


def test_a_step_has_no_more_tokens_than_all_requests_together() -> None:
    for knobs, most in (
        ({}, 2048),
        ({"max_num_seqs": 1}, 1000),  # the model's context
        ({"max_num_seqs": 3, "max_model_len": 40}, 120),
        ({"max_num_seqs": 3, "max_model_len": 40, "max_num_batched_tokens": 64}, 64),
    ):
        assert EngineConfig(**knobs).max_step_tokens(1000) == most
