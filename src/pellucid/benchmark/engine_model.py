"""What is measured, as an engine takes it."""

from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from pellucid.benchmark.bench_model import BenchModel
from pellucid.loaded_model import LoadedModel
from pellucid.text.tokenizer import Tokenizer


def engine_model(model: BenchModel) -> LoadedModel:
    """The same weights with a tokenizer that knows no token: prompts are ids, and answers have no text."""
    tokenizer = Tokenizer(Backend(BPE()), model.config.vocab_size, {})
    return LoadedModel(
        model.name,
        Path(model.name),
        model.config,
        model.decoder,
        tokenizer,
        model.backend,
        weight_bytes=model.weight_bytes,
    )
