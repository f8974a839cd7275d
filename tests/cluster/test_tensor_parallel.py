"""A model whose matrices two processes of MPI have a share of each answers like one process, to the last bit."""

import json
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pellucid.backends.choice import make_backend
from pellucid.backends.cpu.weights import divide
from pellucid.engine import LLMEngine
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from support.checkpoints import write_checkpoint
from support.divided_run import answers
from support.mpi import HAS_MPI, TIMEOUT, mpirun

SWAPPED = {
    "num_kv_blocks": 9,
    "max_model_len": 256,
    "swap_space": 8 << 20,
    "enable_prefix_caching": False,
}

pytestmark = pytest.mark.skipif(not HAS_MPI, reason="needs mpirun")


def command_line(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pellucid", *words], capture_output=True, text=True, timeout=TIMEOUT
    )


def requests(rng: np.random.Generator) -> list[tuple[list[int], SamplingParams]]:
    """Greedy and drawn ones; prompts of few rows and of more than a program takes at a time."""
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=6, logprobs=2, ignore_eos=True)
    greedy = SamplingParams(temperature=0.0, max_tokens=6, prompt_logprobs=1, ignore_eos=True)
    return [
        (rng.integers(3, 300, length).tolist(), own)
        for length, own in ((24, params), (1, params), (700, greedy), (411, params), (33, greedy))
    ]


def growing_requests(rng: np.random.Generator) -> list[tuple[list[int], SamplingParams]]:
    """Requests that run out of blocks together, so that one of them moves to the swap file and back."""
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=60, ignore_eos=True)
    return [(rng.integers(3, 300, 110).tolist(), params) for _ in range(2)]


@pytest.mark.parametrize(
    ("family", "settings", "num_kv_shares"),
    [
        ("llama", {}, 2),
        ("llama", {"quantization": "int4", "kv_cache_dtype": "int4"}, 2),
        ("llama", SWAPPED, 2),
        ("qwen3-moe", {"quantization": "int8"}, 2),
        ("gpt-oss", {}, 2),
        ("gemma4", {}, 2),
        ("gemma4-moe", {}, 1),  # a layer has a single kv-head
        ("qwen3.5-moe", {}, 2),
    ],
)
def test_two_ranks(
    family: str, settings: dict[str, object], num_kv_shares: int, tmp_path: Path
) -> None:
    """Twice, the second time from the prefix cache. Each rank has about half of the weights in large matrices, and of
    the KV cache. Afterwards the processes load no second model."""
    overrides = {"max_position_embeddings": 1024}
    model = write_checkpoint(tmp_path / "model", family, config_overrides=overrides)
    settings = dict(model=str(model), backend="cpu", num_threads=1, **settings)
    rng = np.random.default_rng(0)
    given = growing_requests(rng) if settings.get("swap_space") else requests(rng)
    (tmp_path / "requests").write_bytes(pickle.dumps(given))
    done = mpirun(
        *("-m", "support.divided_run", json.dumps({**settings, "tensor_parallel_size": 2})),
        *(str(tmp_path / "requests"), str(tmp_path / "answers")),
    )
    assert done.returncode == 0, done.stderr
    assert "load one model, and have done so; start others" in done.stdout
    found, identity, sizes = pickle.loads((tmp_path / "answers").read_bytes())
    weight_bytes, bytes_per_block = sizes
    whole = LLMEngine.from_config(EngineConfig(**settings))
    assert found == [answers(whole, given) for _ in range(2)]
    assert identity == whole.identity
    assert num_kv_shares * bytes_per_block == whole.memory_plan.bytes_per_block
    if settings.get("swap_space"):
        *_, num_preemptions, num_recomputed = zip(*found[0], strict=True)
        assert any(num_preemptions) and not any(num_recomputed)
    assert 0.45 < weight_bytes / whole.model.weight_bytes < 0.75  # small matrices are not divided


def test_the_command_line() -> None:
    """As a user starts it: rank 0 alone writes, and both ranks end."""
    words = ("run", "Once upon a time", "--max-tokens", "12", "--temperature", "0", "--quiet")
    done = mpirun("-m", "pellucid", *words, "--tensor-parallel-size", "2")
    assert done.returncode == 0, done.stderr
    assert command_line(*words).stdout.strip() in done.stdout  # mpirun makes it a terminal


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_is_lost(how: int, tmp_path: Path) -> None:
    """Its requests end with an error that names it, and so do later ones; then the process ends."""
    done = mpirun("-m", "support.divided_lost", str(int(how)), str(tmp_path), recovers=True)
    assert (tmp_path / "ends").exists(), done.stderr
    seconds, ends = json.loads((tmp_path / "ends").read_text())
    print(f"{seconds:.2f} s")
    for reason, error in ends:
        assert reason == "error"
        assert "rank 1 is away" in error


def test_what_ranks_need() -> None:
    """Another number of processes, fewer experts than ranks, another backend: a sentence says so."""
    alone = command_line("run", "Once", "--tensor-parallel-size", "2", "--quiet")
    assert alone.returncode == 2
    assert "tensor_parallel_size=2: MPI has started 1; start all of them by" in alone.stderr
    with pytest.raises(ValueError, match="tensor_parallel_size=2: needs backend='cpu'"):
        make_backend(EngineConfig(backend="numpy", tensor_parallel_size=2))
    with pytest.raises(ValueError, match="tensor_parallel_size=3: 2 experts cannot be divided"):
        divide(2, 3)
