"""How often a draft model draws the model's own token, compared with the theoretical bounds.

    python benchmarks/draft_acceptance.py [--prompts 200] [--tokens 32] [--temperatures 0,0.7,1]

For the bundled pair, over held-out prompts, whose answers the model draws. At each token of an answer:

shared noise     whether the draft model draws the same token with the same noise: our rule
bound            (1 - TV) / (1 + TV) of the two distributions, the least that sharing noise promises
                 (Daliri, Musco, Suresh 2024, arXiv 2408.07978)
rejection        1 - TV = sum of min(p, q): what Leviathan's rule keeps of drafts drawn from q
"""

import argparse
import json
from pathlib import Path

import numpy as np

import pellucid
from pellucid.engine import LLMEngine
from pellucid.execution.model_runner import ModelRunner
from pellucid.execution.sampler import Sampler, SamplingRow
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.loaded_model import LoadedModel, load_draft_model, load_model
from pellucid.scheduling.request import Request
from pellucid.scheduling.scheduler_output import ScheduledRequest, SchedulerOutput

BLOCK_SIZE = 32
HELD_OUT = Path(pellucid.__file__).with_name("assets") / "held-out.json"


def logits_of(model: LoadedModel, token_ids: list[int]) -> np.ndarray:
    """[T, V] after each token of a text."""
    num_blocks = -(-len(token_ids) // BLOCK_SIZE)
    kv_cache = model.backend.make_kv_cache(model.config, num_blocks, BLOCK_SIZE, "bf16")
    rows = range(len(token_ids))
    tables = (tuple(range(num_blocks)),)
    scheduled = ScheduledRequest(
        "text", 0, rows.stop, token_ids, 0, 0, (), rows.stop, 0, prompt_logprob_rows=rows
    )
    started = Request("text", tuple(token_ids), SamplingParams(), 0, 0.0, max_tokens=1).started()
    runner = ModelRunner(model.decoder, kv_cache, BLOCK_SIZE, Sampler())
    runner.follow(SchedulerOutput(started=(started,)))
    batch = runner.send([scheduled], [tables])
    return np.asarray(runner.execute([scheduled], batch).rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--temperatures", default="0,0.7,1")
    args = parser.parse_args()
    config = EngineConfig(speculation="draft")
    model = load_model(config)
    draft = load_draft_model(config, model)
    assert draft is not None
    held_out = json.loads(HELD_OUT.read_text())
    texts = [*held_out["texts"], *(secret["prompt"] for secret in held_out["secrets"])]
    # Several beginnings of each text, so that the prompts differ.
    encoded = [model.tokenizer.encode(text) for text in texts]
    prompts = [
        token_ids[: 16 + 24 * round_]
        for round_ in range(-(-args.prompts // len(encoded)))
        for token_ids in encoded
    ][: args.prompts]
    print("temperature  shared noise   bound  rejection  tokens")
    for temperature in map(float, args.temperatures.split(",")):
        engine = LLMEngine(EngineConfig(speculation="off"), model)
        outputs = [
            engine.add_request(
                prompt,
                SamplingParams(temperature=temperature, seed=index, max_tokens=args.tokens),
            )
            for index, prompt in enumerate(prompts)
        ]
        while engine.has_unfinished_requests:
            engine.step()
        sampler, same, bound, kept = Sampler(), [], [], []
        for seed, output in enumerate(outputs):
            prompt, answer = output.prompt_token_ids, output.outputs[0].token_ids
            own = logits_of(model, [*prompt, *answer])
            drafts = logits_of(draft, [*prompt, *answer])
            params = SamplingParams(temperature=temperature)
            for index, token_id in enumerate(answer):
                place = len(prompt) - 1 + index
                row = SamplingRow(params, prompt, answer[:index], seed)
                p, q = np.zeros(own.shape[1]), np.zeros(own.shape[1])
                for logits, into in ((own[place], p), (drafts[place], q)):
                    final = sampler.distribution(logits, row)
                    into[final.token_ids] = final.probabilities
                common = np.minimum(p, q).sum()
                same.append(sampler.sample(drafts[place], row).token_id == token_id)
                kept.append(common)
                bound.append(common / (2 - common))
        print(
            f"{temperature:11.1f}  {np.mean(same):12.1%}  {np.mean(bound):6.1%}  {np.mean(kept):9.1%}"
            f"  {len(same):6d}"
        )


if __name__ == "__main__":
    main()
