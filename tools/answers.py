"""Records what drawn configurations answer, and compares it with what another commit answered: CONTRIBUTING.md.

A configuration is a model, an engine's settings and calls, drawn by (seed, number). Only public names are used, so
that this file runs over any commit that has them: that of the environment whose Python runs it.
"""

import argparse
import asyncio
import hashlib
import json
import os
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pellucid import LLM, AsyncLLMEngine, BeamSearchParams, ChatPrompt, EngineConfig, SamplingParams
from pellucid import StructuredOutputsParams as Rule

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.checkpoints import FAMILIES, write_checkpoint

Draw = random.Random
Json = dict[str, Any]
TEXT = "the cat king and once upon a time was to be or not lazy dog daughter keys 42 {} é 你好"
STOPS = ["a", "e", "t", " ", "th", "the", "\n", " was", "."]
RULES: list[Json] = [
    {"regex": "[a-z ]{3,40}"}, {"regex": "(yes|no)[0-9]*"}, {"choice": ["cat", "dog", "a cat and a dog"]},
    {"json": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
    {"json_object": True}, {"grammar": 'start: "to " WORD+\nWORD: /[a-z]+ /'},
]  # fmt: skip
VOCAB_SIZE = 300  # of the tiny models' tokenizer; the bundled one has more
# What fields are drawn from. The first values of SAMPLING are the defaults, drawn seven times of eight.
SETTINGS: dict[str, list[Any]] = {
    "max_num_seqs": [1, 2, 3, 5, 16], "max_num_batched_tokens": [3, 7, 17, 40, 2048],
    "kv_cache_dtype": ["bf16", "bf16", "f32", "int8", "int4"],
    "quantization": ["none", "none", "none", "int8", "int4", "int8-channel", "int4-g128-zp"],
    "quantize_activations": [True, True, True, False], "num_threads": [1, 1, 2],
    "enable_prefix_caching": [True, True, True, False], "use_kv_cache": [True] * 9 + [False],
    "swap_space": [0, 0, 1 << 16, 1 << 18, 1 << 21], "speculation": ["off", "off", "auto", "ngram", "ngram", "draft"],
    "num_draft_tokens": [1, 2, 6, 32],
}  # fmt: skip
SAMPLING: dict[str, list[Any]] = {
    "top_k": [0, 1, 3, 20, -1], "top_p": [1.0, 0.3, 0.8, 0.95], "min_p": [0.0, 0.02, 0.3],
    "typical_p": [1.0, 0.4, 0.9], "repetition_penalty": [1.0, 0.8, 1.3], "presence_penalty": [0.0, -0.5, 0.5],
    "frequency_penalty": [0.0, -0.5, 0.7, 2.0], "logit_bias": [[], [[17, 4.0], [40, -3.0]]],
    "allowed_token_ids": [None, [*range(0, VOCAB_SIZE, 2)], [*range(90, 140)]],
    "bad_words": [[], ["a", "cat"], ["e", " the"]], "prompt_logprobs": [None, 0, 2],
    "stop": [[], *([it, " was"] for it in STOPS)], "include_stop_str_in_output": [False, True],
    "stop_in_reasoning": [True, False], "stop_token_ids": [[], [101, 102, 103, 104]],
    "skip_special_tokens": [True, False], "thinking_token_budget": [None, 0, 1, 3],
    "structured_outputs": [None, *RULES],
}  # fmt: skip
BEAMS: dict[str, list[Any]] = {
    "beam_width": [4, 3, 2], "n": [None, 1, 2], "length_penalty": [1.0, -0.5, 0.0],
    "early_stopping": [False, True, "never"], "repetition_penalty": [1.0, 1.0, 1.3],
    "stop_token_ids": [[], [*range(100, 120)]], "bad_words": [[], [], ["the"]], "max_tokens": [1, 3, 5, 9],
    "ignore_eos": [True, False],
}  # fmt: skip


def _settings(draw: Draw, family: str) -> Json:
    """The engine's. Few blocks beyond those of one context, so that requests preempt each other."""
    settings = {name: draw.choice(values) for name, values in SETTINGS.items()}
    size, length = draw.choice([16, 16, 16, 32, 64]), draw.choice([64, 80, 128])
    settings |= {"block_size": size, "max_model_len": length, "backend": "cpu"}
    settings["num_kv_blocks"] = -(-length // size) + draw.choice([0, 0, 1, 2, 4, 40])
    if family != "bundled" and draw.random() < 0.3:
        settings |= {"backend": "numpy", "quantization": "none", "num_threads": 1}
    if "moe" in family and draw.random() < 0.3:
        settings["experts"] = "mapped"
    if draw.random() < 0.15:  # a folder, which a second engine finds
        settings.update(prefix_store="", enable_prefix_caching=True, use_kv_cache=True)
    return settings


def _params(draw: Draw, kind: str) -> Json:
    if kind == "beam_search":
        return {name: draw.choice(values) for name, values in BEAMS.items()}
    drawn = {at: draw.choice(values[1:]) for at, values in SAMPLING.items() if draw.random() < 0.12}
    drawn["temperature"] = draw.choice([0.0, 0.0, 0.2, 0.7, 1.0, 1.5])
    drawn["logprobs"] = draw.choice([None, None, 0, 1, 3])
    drawn["ignore_eos"] = draw.choice([False, True])
    drawn["max_tokens"] = most = draw.randrange(1, draw.choice([4, 12, 24]))
    drawn["min_tokens"] = draw.choice([0, 0, 0, min(3, most)])
    drawn["n"] = n = draw.choice([1, 1, 1, 1, 2, 3])
    if kind == "generate" and draw.random() < 0.1:
        drawn["best_of"] = n + draw.randrange(3)
    # Without one, the k-th request of an LLM always gets the same seed; tasks add theirs in any order.
    drawn["seed"] = draw.choice([None] * (kind != "async") + [draw.randrange(1000)])
    if draw.random() < 0.02:  # forbids the only token that it allows: it fails, and no other
        drawn |= {"allowed_token_ids": [5], "stop_token_ids": [5], "min_tokens": 1}
    return drawn


def _prompts(draw: Draw, longest: int) -> Iterator[Json]:
    """Prompts that share blocks: they begin with parts of two trunks."""
    trunks = [[draw.randrange(4, VOCAB_SIZE) for _ in range(longest)] for _ in range(2)]
    words = draw.choices(TEXT.split(), k=longest)
    while True:
        kind, prompt = draw.random(), {}
        if kind < 0.03:
            prompt["chat"] = " ".join(words[: draw.randrange(1, 5)])
        elif kind < 0.2:
            prompt["prompt"] = " ".join(words[: draw.randrange(1, longest // 8)])
        else:
            length = draw.choice([0, draw.randrange(longest), 16, 33, longest - 6])
            tail = draw.choices(range(4, VOCAB_SIZE), k=draw.randrange(not length, 6))
            prompt["prompt_token_ids"] = draw.choice(trunks)[:length] + tail
            prompt.update({"cache_salt": "a"} if draw.random() < 0.1 else {})
        yield from [prompt] * draw.choice([1, 1, 1, 2])


def configuration(seed: int, number: int) -> Json:
    """Everything that `answers` needs: the same for the same numbers, whatever the commit."""
    draw = Draw(f"{seed} {number}")
    family = "bundled" if draw.random() < 0.2 else draw.choice(FAMILIES)
    settings = _settings(draw, family)
    prompts, calls = _prompts(draw, settings["max_model_len"] * 2 // 3), []
    for _ in range(draw.randrange(1, 4)):
        kind = draw.choice(["generate"] * 5 + ["async", "stream", "beam_search"])
        count = draw.randrange(1, draw.choice([3, 8]))
        call = {"kind": kind, "prompts": [next(prompts) for _ in range(count)]}
        call["params"] = [_params(draw, kind) for _ in range(count)]
        call["priorities"] = [draw.choice([0, 0, 0, -2, 1, 3]) for _ in range(count)]
        calls.append(call)
    own = {"family": family, "dtype": draw.choice(["float32", "bfloat16", "float16"])}
    return own | {"settings": settings, "calls": calls}


def _given(fields: Json) -> Any:
    rule = fields.get("structured_outputs")
    fields = fields | ({"structured_outputs": Rule(**rule)} if rule else {})
    return BeamSearchParams(**fields) if "beam_width" in fields else SamplingParams(**fields)


def _prompt(prompt: Json) -> Any:
    return ChatPrompt([{"role": "user", "content": prompt["chat"]}]) if "chat" in prompt else prompt


def _positions(logprobs: Any) -> list[str] | None:
    """A digest of each position's log-probabilities: token ids, values, ranks and texts, in order."""

    positions = []
    for at in logprobs or ():
        said: list[Any] = []
        for token, it in (at or {}).items():
            final = it.final_logprob if it.final_logprob is None else it.final_logprob.hex()
            said += [[token, it.logprob.hex(), final, it.rank, it.decoded_token]]
        positions.append(hashlib.sha256(json.dumps(said).encode()).hexdigest()[:12])
    return None if logprobs is None else positions


def _completion(it: Any) -> Json:
    said = {"index": it.index, "token_ids": list(it.token_ids), "text": it.text}
    said |= {"finish": [it.finish_reason, it.stop_reason], "logprobs": _positions(it.logprobs)}
    sums = (it.cumulative_logprob, it.score)
    return said | {"sums": [None if each is None else each.hex() for each in sums]}


def _answer(output: Any, counts_work: bool) -> Json:
    said: Json = {
        "prompt_token_ids": list(output.prompt_token_ids),
        "seed": output.seed,
        "outputs": [_completion(it) for it in output.outputs],
        "prompt_logprobs": _positions(output.prompt_logprobs),
        "sequences": [it.text for it in output.sequences or ()],
    }
    if counts_work:
        it = output.metrics
        counted = [it.num_processed_tokens, it.num_preemptions, it.kv_cache_bytes]
        said["work"] = [output.num_cached_tokens, *counted]
    return said


async def _in_tasks(config: EngineConfig, call: Json) -> list[Any]:
    """The deltas of each request, all of them under way together."""

    async def read(engine: AsyncLLMEngine, given: Json, params: Json, priority: int) -> Any:
        prompt = given.get("prompt") or given.get("prompt_token_ids") or _prompt(given)
        salt, said = given.get("cache_salt"), {}
        try:
            deltas = engine.generate(prompt, _given(params), priority=priority, cache_salt=salt)
            async for delta in deltas:
                one = said.setdefault(delta.index, {"ids": [], "text": "", "logprobs": []})
                one["ids"] += delta.token_ids
                one["text"] += delta.text
                one["logprobs"] += _positions(delta.logprobs) or []
                one["finish"] = [delta.finish_reason, delta.stop_reason]
        except ValueError as error:
            return {"refused": str(error)}
        return sorted(said.items())

    each = zip(call["prompts"], call["params"], call["priorities"], strict=True)
    async with AsyncLLMEngine.from_config(config) as engine:
        return await asyncio.gather(*(read(engine, *one) for one in each))


def _streamed(llm: LLM, prompts: list[Any], params: list[Any]) -> Iterator[Any]:
    for stream in [llm.stream(*one) for one in zip(prompts, params, strict=True)]:
        deltas = [[delta.index, delta.text, delta.token_ids] for delta in stream]
        for index in range(len(stream.output.outputs)):
            own = [delta[1:] for delta in deltas if delta[0] == index]
            yield ["".join(text for text, _ in own), [it for _, ids in own for it in ids]]
        yield _answer(stream.output, False)


def _call(llm: LLM, call: Json, counts_work: bool) -> list[Any]:
    if call["kind"] == "async":
        return asyncio.run(_in_tasks(llm.config, call))
    try:
        params = [_given(it) for it in call["params"]]
        prompts = [_prompt(it) for it in call["prompts"]]
        if call["kind"] == "stream":
            return list(_streamed(llm, prompts, params))
        if call["kind"] == "beam_search":
            return [_answer(it, counts_work) for it in llm.beam_search(prompts, params)]
        outputs = llm.generate(prompts, params, use_tqdm=False, priority=call["priorities"])
        return [_answer(it, counts_work) for it in outputs]
    except ValueError as error:
        return [{"refused": str(error)}]


def _model(folder: Path, family: str, dtype: str, **overrides: int) -> str:
    if not (path := folder / f"{family} {dtype} {len(overrides)}").exists():
        write_checkpoint(path, family, dtype=dtype, config_overrides=overrides)
    return str(path)


def answers(drawn: Json, folder: Path) -> list[Any]:
    """What the calls of a configuration get, in turn; with blocks on disk, from one engine and from another after it.
    `folder` holds checkpoints."""
    settings, family, dtype = dict(drawn["settings"]), drawn["family"], drawn["dtype"]
    if family != "bundled":
        settings["model"] = _model(folder, family, dtype)
        if settings["speculation"] == "draft":
            settings["draft_model"] = _model(folder, "llama3", dtype, num_hidden_layers=1)
    # Times decide how many tokens are drafted, and which blocks are read from disk.
    counts_work = settings["speculation"] != "auto" and "prefix_store" not in settings
    said: list[Any] = []
    with tempfile.TemporaryDirectory() as blocks:
        if "prefix_store" in settings:
            settings["prefix_store"] = blocks
        for _ in range(1 if counts_work else 2):
            try:
                llm = LLM(seed=0, on_note=said.append, **settings)
            except ValueError as error:  # windows and states need blocks of their own
                said.append({"refused": str(error)})
                if not (needed := re.search(r"num_kv_blocks=(\d+) would fit", str(error))):
                    break
                settings["num_kv_blocks"] = int(needed[1])
                llm = LLM(seed=0, on_note=said.append, **settings)
            with llm:
                said += [_call(llm, call, counts_work) for call in drawn["calls"]]
    return json.loads(json.dumps(said).replace(str(folder), "").replace(blocks, ""))


def _first_difference(before: Any, now: Any, place: str = "") -> str | None:
    if isinstance(before, dict) and isinstance(now, dict):
        pairs = [(f"{place}.{key}", before.get(key), now.get(key)) for key in before | now]
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = [(f"{place}[{i}]", *pair) for i, pair in enumerate(zip(before, now, strict=True))]
    else:
        return None if before == now else f"{place}: {before!r}\n    -> {now!r}"
    return next(filter(None, (_first_difference(old, new, at) for at, old, new in pairs)), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--count", type=int, default=1000, help="configurations")
    add("--first", type=int, default=0, help="the number of the first one")
    add("--seed", type=int, default=1)
    add("--out", type=Path, help="write what they answer")
    add("--compare", type=Path, help="what --out wrote over another commit")
    options = parser.parse_args()
    lines = options.compare.read_text().splitlines() if options.compare else []
    recorded = {(it["seed"], it["number"]): it for it in map(json.loads, lines)}
    counts = Counter[str]()
    with (
        tempfile.TemporaryDirectory() as folder,
        (options.out or Path(os.devnull)).open("w") as out,
    ):
        for number in range(options.first, options.first + options.count):
            drawn = configuration(options.seed, number)
            said = answers(drawn, Path(folder))
            counts["configurations"] += 1
            counts["answers"] += sum(len(call) for call in said if isinstance(call, list))
            now = {"seed": options.seed, "number": number, "configuration": drawn, "said": said}
            print(json.dumps(now), file=out, flush=True)
            before = recorded[options.seed, number] if recorded else now
            assert before["configuration"] == drawn, "drawn by another version of this file"
            if difference := _first_difference(before["said"], said, "said"):
                counts["different"] += 1
                print(f"{number}: {json.dumps(drawn)[:600]} ...\n    {difference}", flush=True)
    print(dict(counts))
    sys.exit(counts["different"] > 0)


if __name__ == "__main__":
    main()
