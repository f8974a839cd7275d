"""Measures the quality and the size of each KV cache format."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pellucid.engine import LLMEngine
from pellucid.engine.kv_divergence import Divergence, measure_divergence
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loaded_model import LoadedModel
from pellucid.outputs import RequestOutput

REFERENCE_FORMAT = "f32"
KV_FORMATS = (REFERENCE_FORMAT, "bf16", "int8", "int8,int4", "int4")
HELD_OUT = Path(__file__).parents[1] / "assets" / "held-out.json"
NUM_CONTINUED_TOKENS = 64
LONGEST_WINDOW = 2048  # tokens: longer texts are read in pieces
# Needles in a text: the pass keys of Mohtashami & Jaggi 2023, arXiv 2305.16300.
NEEDLE = " The pass key is {key}. Remember it: {key} is the pass key. "
QUESTION = "\n\nWhat is the pass key? The pass key is"
PASS_KEYS = (" 71432", " 20958", " 86317", " 45091", " 93724")
_SPARE_TOKENS = 8  # of a window: where texts are cut and joined, tokens may be added

OnRequest = Callable[[int, int], None]  # (requests done, requests in all)


@dataclass(frozen=True)
class Secret:
    """A prompt that tells something and asks for it at its end.

    Args:
        depth: where in the prompt it is told: 0 at the beginning, 1 right before the question; None: anywhere.
    """

    prompt: str
    answer: str
    depth: float | None = None


@dataclass(frozen=True)
class Texts:
    """What is read; `secrets` may be empty."""

    texts: tuple[str, ...]
    secrets: tuple[Secret, ...]


@dataclass(frozen=True)
class KVQuality:
    """One format of the cache.

    Args:
        divergence: from the reference format.
        bytes_per_token: of all layers, K and V, scales and padding included.
        perplexity: exp of the mean surprise of the texts' tokens, in nats.
        num_tokens: over which that mean runs.
        recalled: for each secret, whether greedy decoding gives all of it.
        depths: of each secret.
        continuations: greedy tokens after the first half of each text.
    """

    kv_cache_dtype: str
    bytes_per_token: float
    divergence: Divergence
    perplexity: float
    num_tokens: int
    recalled: tuple[bool, ...]
    depths: tuple[float | None, ...]
    continuations: tuple[tuple[int, ...], ...]

    @property
    def missed_depths(self) -> list[float]:
        """Of the secrets that were not recalled and have a depth."""
        secrets = zip(self.recalled, self.depths, strict=True)
        return [depth for was, depth in secrets if not was and depth is not None]

    def first_changes(self, reference: "KVQuality") -> list[int]:
        """Of the continuations that are not the reference's, the index of the first other token."""
        pairs = zip(self.continuations, reference.continuations, strict=True)
        return [
            next(i for i, (a, b) in enumerate(zip(own, other, strict=True)) if a != b)
            for own, other in pairs
            if own != other
        ]


def held_out_texts() -> Texts:
    """Documents that the bundled model was not trained on; training/write_held_out.py made them."""
    held_out = json.loads(HELD_OUT.read_text(encoding="utf-8"))
    return Texts(
        tuple(held_out["texts"]), tuple(Secret(**secret) for secret in held_out["secrets"])
    )


def texts_with_needles(text: str, model: LoadedModel, max_model_len: int) -> Texts:
    """A text of the caller's, and secrets in it: a pass key at each of several depths, which the end asks for.

    Args:
        max_model_len: tokens; as much of the text stands around a pass key as fits.

    Raises:
        ValueError: nothing fits.
    """
    tokenizer = model.tokenizer
    told = tokenizer.encode(NEEDLE.format(key=PASS_KEYS[0]) + QUESTION + PASS_KEYS[0])
    longest = min(max_model_len, LONGEST_WINDOW) - len(told) - _SPARE_TOKENS
    if longest < 1:
        raise ValueError(f"max_model_len={max_model_len}: has no room for a pass key in a text")
    token_ids = tokenizer.encode(text)
    around = text if len(token_ids) <= longest else tokenizer.decode(token_ids[:longest])
    secrets = []
    for index, key in enumerate(PASS_KEYS):
        depth = index / (len(PASS_KEYS) - 1)
        at = round(depth * len(around))
        at = around.rfind(" ", 0, at) + 1 if 0 < at < len(around) else at  # between two words
        needle = NEEDLE.format(key=key.strip())
        secrets.append(Secret(around[:at] + needle + around[at:] + QUESTION, key, depth))
    return Texts((text,), tuple(secrets))


def measure_kv_quality(
    config: EngineConfig,
    model: LoadedModel,
    texts: Texts,
    kv_cache_dtype: str,
    on_request: OnRequest | None = None,
) -> KVQuality:
    """Reads the texts, asks for the secrets and goes on from half of each text, with one format.

    Everything goes through the engine, so keys and values are read from the cache as they are when a
    model serves.

    Args:
        config: `kv_cache_dtype` and prefix caching are set here.
        model: serves all formats in turn.

    Raises:
        ValueError: the backend has no such format, or the texts are too short.
    """
    engine = LLMEngine(
        replace(config, kv_cache_dtype=kv_cache_dtype, enable_prefix_caching=False), model
    )
    windows = [
        window
        for text in texts.texts
        for window in _windows(
            model.tokenizer.encode(text), min(engine.max_model_len, LONGEST_WINDOW)
        )
    ]
    if not windows:
        raise ValueError("text: has fewer than two tokens")
    answers = [_answer_tokens(model, secret) for secret in texts.secrets]

    read = [engine.add_request(window, _greedy(1, prompt_logprobs=0)) for window in windows]
    continued = [
        engine.add_request(
            window[: (len(window) + 1) // 2],
            _greedy(min(NUM_CONTINUED_TOKENS, len(window) // 2)),
        )
        for window in windows
    ]
    asked = [engine.add_request(prompt, _greedy(len(answer))) for prompt, answer in answers]
    _run(engine, [*read, *continued, *asked], on_request)
    surprise = [value for output in read for value in _surprise(output)]
    return KVQuality(
        kv_cache_dtype,
        engine.memory_plan.bytes_per_position,
        measure_divergence(model, windows, kv_cache_dtype, REFERENCE_FORMAT),
        math.exp(math.fsum(surprise) / len(surprise)),
        len(surprise),
        tuple(
            output.outputs[0].token_ids == answer
            for output, (_, answer) in zip(asked, answers, strict=True)
        ),
        tuple(secret.depth for secret in texts.secrets),
        tuple(tuple(output.outputs[0].token_ids) for output in continued),
    )


def _windows(token_ids: Sequence[int], longest: int) -> list[list[int]]:
    """Pieces with room for one more token; of one token there is nothing to predict."""
    size = longest - 1
    pieces = [list(token_ids[start : start + size]) for start in range(0, len(token_ids), size)]
    return [piece for piece in pieces if len(piece) > 1]


def _answer_tokens(model: LoadedModel, secret: Secret) -> tuple[list[int], list[int]]:
    """The prompt's tokens and the answer's, as they follow each other in one text."""
    prompt = list(model.tokenizer.encode(secret.prompt))
    return prompt, list(model.tokenizer.encode(secret.prompt + secret.answer))[len(prompt) :]


def _greedy(max_tokens: int, prompt_logprobs: int | None = None) -> SamplingParams:
    return SamplingParams(
        temperature=0, max_tokens=max_tokens, ignore_eos=True, prompt_logprobs=prompt_logprobs
    )


def _run(engine: LLMEngine, outputs: Sequence[RequestOutput], on_request: OnRequest | None) -> None:
    while engine.has_unfinished_requests:
        engine.step()
        if on_request is not None:
            on_request(sum(output.finished for output in outputs), len(outputs))
    for output in outputs:
        if output.outputs[0].finish_reason == "error":
            raise ValueError(f"request failed: {output.outputs[0].stop_reason}")


def _surprise(output: RequestOutput) -> list[float]:
    """-log p of each token of a prompt but the first, in nats."""
    assert output.prompt_logprobs is not None
    return [
        -at[token_id].logprob
        for token_id, at in zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
        if at is not None
    ]
