"""The quality of each weight format: how far the distributions of the next token move.

    python benchmarks/quantization_quality.py [MODEL] [--documents N] [--backend numpy|cpu]

Prints the mean over all tokens of KL(reference || quantized) in nats, the share of tokens whose
likeliest successor stays the same, and the perplexity of both. The reference is the checkpoint's own
weights with float32 arithmetic. The texts are documents that the bundled model was not trained on.
"""

import argparse
import sys
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pellucid.backends.base import Backend
from pellucid.backends.choice import make_backend
from pellucid.backends.numpy.backend import NumpyBackend
from pellucid.backends.ops import Decoder, ForwardBatch
from pellucid.facts.kv_groups import kv_groups
from pellucid.facts.model_config import ModelConfig
from pellucid.inputs.config import QUANTIZATIONS, EngineConfig
from pellucid.loading.decoder import make_decoder
from pellucid.loading.hub import find_model
from pellucid.loading.open_model import open_stored_model
from pellucid.text.tokenizer import Tokenizer

sys.path.append(str(Path(__file__).parents[1] / "training"))
from corpus.mixture import documents  # the scripts of training/ are no package

SEED = 7  # of the texts
MAX_TOKENS = 512  # of a text
BLOCK_SIZE = 32

LogProbs = npt.NDArray[np.float64]  # [tokens, V]


@dataclass(frozen=True)
class Quality:
    """Means over tokens."""

    divergence: float  # nats
    agreement: float
    perplexity: float


def next_token_log_probs(
    decoder: Decoder,
    config: ModelConfig,
    backend: Backend,
    token_ids: list[int],
    kv_dtype: str = "f32",
) -> LogProbs:
    """Of each token's successor, computed as one prefill."""
    num_tokens = len(token_ids)
    num_blocks, num_groups = -(-num_tokens // BLOCK_SIZE), len(kv_groups(config))
    positions = np.arange(num_tokens)
    batch = ForwardBatch(
        token_ids=np.array(token_ids),
        positions=positions,
        rope_lens=np.full(num_tokens, num_tokens),
        slot_mapping=np.array([positions + g * num_blocks * BLOCK_SIZE for g in range(num_groups)]),
        query_start=np.array([0, num_tokens]),
        seq_lens=np.array([num_tokens]),
        block_tables=np.arange(num_groups * num_blocks).reshape(num_groups, 1, num_blocks),
        logits_indices=positions,
        state_slots=np.zeros(1, np.int32),
    )
    kv_cache = backend.make_kv_cache(config, num_groups * num_blocks, BLOCK_SIZE, kv_dtype)
    logits = np.asarray(decoder.forward(batch, kv_cache), np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def compare(
    references: list[LogProbs], quantized: list[LogProbs], texts: list[list[int]]
) -> Quality:
    divergences, agreements, losses = [], [], []
    for p, q, token_ids in zip(references, quantized, texts, strict=True):
        divergences.append((np.exp(p) * (p - q)).sum(axis=-1))
        agreements.append(p.argmax(axis=-1) == q.argmax(axis=-1))
        losses.append(-q[np.arange(len(q) - 1), token_ids[1:]])
    return Quality(
        float(np.concatenate(divergences).mean()),
        float(np.concatenate(agreements).mean()),
        float(np.exp(np.concatenate(losses).mean())),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", nargs="?", help="as `pellucid run`; left out, the bundled model")
    parser.add_argument("--documents", type=int, default=40, help="texts to read (40)")
    parser.add_argument(
        "--backend", default="numpy", help="who computes the quantized model (numpy)"
    )
    arguments = parser.parse_args()
    path = find_model(arguments.model).path
    reference = NumpyBackend()
    stored = open_stored_model(path)
    config, decoder = stored.config, make_decoder(stored, reference).decoder
    tokenizer = Tokenizer.load(path, config.vocab_size)
    held_out = documents(SEED, held_out=True, longest_recall=3000)
    texts = [
        tokenizer.encode(text)[:MAX_TOKENS] for _, text in islice(held_out, arguments.documents)
    ]

    def log_probs(decoder: Decoder, backend: Backend) -> list[LogProbs]:
        return [next_token_log_probs(decoder, config, backend, text) for text in texts]

    expected = log_probs(decoder, reference)
    own = compare(expected, expected, texts)
    print(f"{path.name}: {len(texts)} texts, {sum(map(len, texts))} tokens")
    print(f"{'quantization':>14} {'KL (nats)':>10} {'same best':>10} {'perplexity':>11}")
    print(f"{'none':>14} {0:10.2e} {1:10.2%} {own.perplexity:11.4f}")
    for quantization in QUANTIZATIONS[1:]:
        backend = make_backend(EngineConfig(backend=arguments.backend, quantization=quantization))
        decoder = make_decoder(stored, backend, quantization=quantization).decoder
        decoder = backend.compile(decoder, config)
        quality = compare(expected, log_probs(decoder, backend), texts)
        print(
            f"{quantization:>14} {quality.divergence:10.2e} {quality.agreement:10.2%} "
            f"{quality.perplexity:11.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
