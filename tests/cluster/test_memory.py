"""A process takes the memory that was planned for it: alone, as a rank, as a stage, and as the engine of stages."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.checkpoints import write_checkpoint
from support.mpi import HAS_MPI, TESTS, TIMEOUT, mpirun

# Much of each part: a large vocabulary has rows of logits, wide heads have KV cache and scratch.
SHAPE = {
    "vocab_size": 100_000,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "intermediate_size": 512,
    "tie_word_embeddings": True,
}
SETTINGS = {
    "backend": "cpu",
    "num_threads": 1,
    "kv_cache_dtype": "f32",
    "max_model_len": 128,
    "max_num_seqs": 24,
    "skip_tokenizer_init": True,
}


@pytest.mark.parametrize("how", ["alone", "ranks", "stage"])
def test_what_is_planned_is_taken(how: str, tmp_path: Path) -> None:
    """With a full batch, a full cache and as many rows of logits as a step may have. What modules take is not planned:
    a stage imports most of them before its engine comes, the others take some megabytes."""
    if how == "ranks" and not HAS_MPI:
        pytest.skip("needs mpirun")
    model = write_checkpoint(tmp_path / "model", "llama", dtype="bfloat16", config_overrides=SHAPE)
    settings = {**SETTINGS, "model": str(model)}
    if how == "ranks":
        settings["tensor_parallel_size"] = 2
    words = ("-m", "support.memory_run", json.dumps(settings), str(int(how == "stage")))
    if how == "ranks":
        done = mpirun(*words)
    else:
        done = subprocess.run(
            [sys.executable, *words], cwd=TESTS, capture_output=True, text=True, timeout=TIMEOUT
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == (1 if how == "alone" else 2)
    for name, planned, taken in found:
        print(f"{name}: {planned} {taken / planned - 1:+.1%}")
        assert abs(taken / planned - 1) < 0.05, (name, planned, taken)
