"""Beam searches that are also run by transformers, for tests/golden and tests/oracle."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pellucid.inputs.beam_search_params import BeamSearchParams
from pellucid.outputs import RequestOutput
from support.golden_prompts import VOCAB_SIZE

Found = list[tuple[list[int], float]]  # token ids and score, best first

GOLDEN_SEEDS = range(5)
# A search sees logits alone: a few families are enough.
FAMILIES = ("llama", "llama-yarn", "mistral", "gpt2", "gemma2", "phi3-longrope")


@dataclass(frozen=True)
class BeamCase:
    prompt_token_ids: list[int]
    params: BeamSearchParams

    @staticmethod
    def drawn(seed: int) -> "BeamCase":
        """A prompt and parameters, within the original length (32) of the tiny checkpoints.

        Their random weights hardly ever choose the model's own end tokens, so some other tokens end
        a sequence.
        """
        rng = np.random.default_rng(seed)
        beam_width = int(rng.integers(2, 9))
        max_tokens = int(rng.integers(1, 13))
        length_penalty = float(rng.choice([-1.0, 0.0, 0.5, 1.0, 2.0]))
        stop_token_ids = rng.choice(VOCAB_SIZE, int(rng.integers(0, 40)), replace=False).tolist()
        extra: dict[str, Any] = {}
        if rng.random() < 0.3:
            extra["min_tokens"] = int(rng.integers(0, max_tokens + 1))
        if rng.random() < 0.3:
            extra["repetition_penalty"] = float(rng.choice([0.8, 1.3]))
        if rng.random() < 0.3:
            extra["logit_bias"] = dict(
                zip(rng.integers(0, VOCAB_SIZE, 3).tolist(), rng.normal(0, 3, 3), strict=True)
            )
        if rng.random() < 0.3:
            extra["allowed_token_ids"] = rng.choice(VOCAB_SIZE, 160, replace=False).tolist()
        params = BeamSearchParams(
            beam_width=beam_width,
            n=int(rng.integers(1, beam_width + 1)),
            length_penalty=length_penalty,
            early_stopping=(True, False, "never")[int(rng.integers(3))],
            stop_token_ids=stop_token_ids,
            max_tokens=max_tokens,
            ignore_eos=True,
            **extra,
        )
        prompt_token_ids = rng.integers(0, VOCAB_SIZE, int(rng.integers(1, 20))).tolist()
        return BeamCase(prompt_token_ids, params)

    def transformers_options(self, end_token_ids: Sequence[int] = ()) -> dict[str, Any]:
        """The same search, in the words of `generate`.

        Args:
            end_token_ids: the model's own, unless the search ignores them.
        """
        params = self.params
        stop_token_ids = [*end_token_ids, *params.stop_token_ids]
        options: dict[str, Any] = {
            "num_beams": params.beam_width,
            "num_return_sequences": params.num_results,
            "length_penalty": params.length_penalty,
            "early_stopping": params.early_stopping,
            "max_new_tokens": params.max_tokens,
            "repetition_penalty": params.repetition_penalty,
            "do_sample": False,
            "pad_token_id": 0,
            "return_dict_in_generate": True,
            "output_scores": True,
        }
        if stop_token_ids:
            options["eos_token_id"] = stop_token_ids
            options["min_new_tokens"] = params.min_tokens
        if params.logit_bias:
            options["sequence_bias"] = [[[token_id], bias] for token_id, bias in params.logit_bias]
        if (allowed := params.allowed_token_ids) is not None:
            options["prefix_allowed_tokens_fn"] = lambda batch_id, input_ids: list(allowed)
        return options

    def transformers_answer(self, model: Any, end_token_ids: Sequence[int] = ()) -> Found:
        """What transformers' `model` finds. Arguments are those of `transformers_options`."""
        import torch

        model.generation_config.eos_token_id = None  # ours alone count
        prompt = torch.tensor([self.prompt_token_ids])
        with torch.no_grad():
            output = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                **self.transformers_options(end_token_ids),
            )
        lengths = (output.beam_indices >= 0).sum(dim=1).tolist()
        start = prompt.shape[1]
        rows = zip(
            output.sequences.tolist(), lengths, output.sequences_scores.tolist(), strict=True
        )
        return [(row[start : start + length], score) for row, length, score in rows]


def found(output: RequestOutput) -> Found:
    """What an engine of ours found."""
    scored = [(completion.token_ids, completion.score) for completion in output.outputs]
    return [(token_ids, score) for token_ids, score in scored if score is not None]
