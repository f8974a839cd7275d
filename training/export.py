"""Writes a checkpoint in Hugging Face layout, weights in bf16.

python training/export.py target --run /tmp/pellucid/target --tokenizer /tmp/pellucid/tokenizer
"""

import argparse
import hashlib
import json
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file
from train import load_model

from model import Llama

CARDS = Path(__file__).parent / "cards"
ASSETS = Path(__file__).parents[1] / "src" / "pellucid" / "assets"
NAMES = {"target": "pellucid-5m", "draft": "pellucid-1m-draft"}
BEGIN, END_OF_TEXT, END_OF_TURN = 0, 1, 5


def config(model: Llama) -> dict:
    shape = asdict(model.shape)
    rope = {"rope_type": "default", "rope_theta": shape["rope_theta"]}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **shape,
        "rope_parameters": rope,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": BEGIN,
        "eos_token_id": END_OF_TEXT,
        "torch_dtype": "bfloat16",
    }


GENERATION = {
    "bos_token_id": BEGIN,
    "eos_token_id": [END_OF_TEXT, END_OF_TURN],
    "do_sample": True,
    "temperature": 0.8,
    "top_p": 0.95,
}


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def hashes(directory: Path) -> str:
    files = sorted(path for path in directory.iterdir() if path.name != "SHA256SUMS")
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files
    )


def export(kind: str, run: Path, tokenizer: Path, assets: Path = ASSETS) -> Path:
    model = load_model(kind, run)
    directory = assets / NAMES[kind]
    directory.mkdir(parents=True, exist_ok=True)
    # Written beside and moved in file by file: nobody ever opens half a model.
    with tempfile.TemporaryDirectory(dir=assets, prefix=".export-") as name:
        new = Path(name)
        tensors = {
            f"model.{key}": value.to(torch.bfloat16) for key, value in model.state_dict().items()
        }
        save_file(tensors, new / "model.safetensors", metadata={"format": "pt"})
        write_json(new / "config.json", config(model))
        write_json(new / "generation_config.json", GENERATION)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tokenizer / file, new / file)
        shutil.copy(CARDS / f"{NAMES[kind]}.md", new / "README.md")
        for path in new.iterdir():
            path.chmod(0o644)
            path.replace(directory / path.name)
    (directory / "SHA256SUMS").write_text(hashes(directory))
    return directory


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=list(NAMES))
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    args = parser.parse_args()
    print(export(args.kind, args.run, args.tokenizer))
