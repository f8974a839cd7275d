"""The damage of each format of the KV cache: how far the distributions of the next token move.

    python benchmarks/kv_divergence.py MODEL --text FILE [--max-tokens N]

Prints, for each format, the mean over all tokens of KL(f32 || format) in nats, what it adds to bf16's,
and the share of tokens whose likeliest successor stays the same. The text is read in pieces of N tokens
(512) by the native backend, with the checkpoint's weights and without rounded activations, so that the
format of the cache alone differs.
"""

import argparse
from pathlib import Path

from quantization_quality import compare, next_token_log_probs

from pellucid.facts.kv_formats import KV_FORMATS
from pellucid.inputs.config import EngineConfig
from pellucid.loaded_model import load_model


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", help="as `pellucid run`")
    parser.add_argument("--text", type=Path, required=True, help="UTF-8 text to read")
    parser.add_argument("--max-tokens", type=int, default=512, help="of a piece (512)")
    parser.add_argument("--pieces", type=int, default=4, help="at most (4)")
    arguments = parser.parse_args()
    model = load_model(
        EngineConfig(model=arguments.model, backend="cpu", quantize_activations=False)
    )
    token_ids = list(model.tokenizer.encode(arguments.text.read_text(encoding="utf-8")))
    size = arguments.max_tokens
    texts = [token_ids[i * size : (i + 1) * size] for i in range(arguments.pieces)]
    texts = [text for text in texts if len(text) > 1]
    if not texts:
        parser.error(f"--text {arguments.text}: has fewer than two tokens")
    print(f"{model.name}: {sum(map(len, texts))} tokens of {arguments.text}")
    references = [
        next_token_log_probs(model.decoder, model.config, model.backend, text) for text in texts
    ]
    print(
        f"{'KV cache':>10} {'KL (nats)':>10} {'over bf16':>10} {'same best':>10} {'perplexity':>11}"
    )
    of_bf16 = 0.0
    for name in KV_FORMATS:
        own = [
            next_token_log_probs(model.decoder, model.config, model.backend, text, name)
            for text in texts
        ]
        quality = compare(references, own, texts)
        if name == "bf16":
            of_bf16 = quality.divergence
        print(
            f"{name:>10} {quality.divergence:10.5f} {quality.divergence - of_bf16:+10.5f} "
            f"{quality.agreement:10.2%} {quality.perplexity:11.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
