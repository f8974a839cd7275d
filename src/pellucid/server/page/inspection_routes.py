"""What the engine holds and why it chose: the logits and the attention of one token, the contents of a
block, the prefix tree."""

import asyncio
import base64
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from pellucid.async_engine import AnswerSoFar, Inspector, NoBlocksError
from pellucid.facts.model_config import AttentionConfig
from pellucid.inputs.sampling_params import STAGE_NUMBERS, SamplingParams
from pellucid.server.endpoint import Call, Reply, json_reply
from pellucid.server.errors import not_serving, refused
from pellucid.server.page.completion_lookup import RememberedCompletion, find_completion
from pellucid.server.serving import OneEngineHandlers

MAX_CANDIDATES = 200
MAX_ATTENDED = 4096  # positions whose weights a reply has one by one
MAX_NUMBERED = 512  # positions whose keys and values a reply has
DIGITS = 6  # of numbers in a reply; bf16 has 3

Result = TypeVar("Result")


@dataclass
class InspectionRoutes(OneEngineHandlers):
    """The handlers of the routes. A caller sees its own requests; blocks are for admins."""

    _one_look: asyncio.Lock = field(default_factory=asyncio.Lock)  # at a time: each delays a step

    async def logits(self, call: Call) -> Reply:
        """The candidates for the token at a position, after each sampling stage.

        They are computed again, from the blocks that the cache still has: bit for bit the logits of the
        step. `top` candidates of each stage (20); with `logits=1` the logits of the whole vocabulary, from
        which every stage can be computed for other parameters.
        """
        self._take_place(call)
        completion = self._completion(call)
        top = _whole(call, "top", 20, 1, MAX_CANDIDATES)
        wants_all = _whole(call, "logits", 0, 0, 1)
        position = self._position(call, completion, 1, completion.num_tokens)
        known = completion.tokens(position)
        outputs = known[len(completion.prompt_token_ids) :]
        answer = await self._answer(completion, position)
        seen = await self._look(lambda inspector: inspector.logits(answer))
        text = self.tokenizer.token_text

        def describe() -> dict[str, Any]:
            stages = []
            for stage in seen.stages():
                candidates = stage.candidates
                order = np.argsort(-candidates.logits, kind="stable")[:top]
                likeliest = candidates.token_ids[order].tolist()
                probabilities = candidates.probabilities[order]
                stages.append(
                    {
                        "stage": stage.name,
                        "kept": len(candidates),
                        "mass_frac": stage.kept_mass,
                        "ent_bits": candidates.entropy / float(np.log(2)),
                        "rest_frac": max(0.0, 1 - float(probabilities.sum())),
                        "cand": [
                            [token_id, text(token_id), logit, probability]
                            for token_id, logit, probability in zip(
                                likeliest,
                                candidates.logits[order].tolist(),
                                probabilities.tolist(),
                                strict=True,
                            )
                        ],
                    }
                )
            found: dict[str, Any] = {"stages": stages}
            if wants_all:
                data = np.ascontiguousarray(seen.logits, "<f4").tobytes()
                found["logits_f32"] = base64.b64encode(data).decode()
            return found

        chosen = completion.tokens(position + 1)[position:]
        return json_reply(
            {
                **self._looked_at(completion, position, seen.cost),
                "id": chosen[0] if chosen else None,
                "text": text(chosen[0]) if chosen else None,
                "drawn": seen.drawn,
                "vocab": len(seen.logits),
                "params": _stage_parameters(completion.params),
                "prompt_ids": sorted(set(known) - set(outputs)),
                "output_counts": sorted(Counter(outputs).items()),
                **await asyncio.to_thread(describe),
            }
        )

    async def attention(self, call: Call) -> Reply:
        """What the token at a position attends to: computed again, for this token alone, from its query and
        the keys in the cache.

        `layer` and `head` choose one (left out: the mean over all); `top` positions with the largest weights
        (16). With `numbers=1` the query, keys and values of one head.
        """
        self._take_place(call)
        completion = self._completion(call)
        layer, attentions = self._layers(call)
        num_heads = min(attention.num_heads for attention in attentions.values())
        head = _choice(call, "head", num_heads)
        top = _whole(call, "top", 16, 1, MAX_ATTENDED)
        wants_numbers = _whole(call, "numbers", 0, 0, 1)
        if wants_numbers and (layer is None or head is None):
            raise refused("numbers=1: must come with layer and head", "numbers")
        last = min(completion.num_tokens, MAX_NUMBERED if wants_numbers else sys.maxsize) - 1
        position = self._position(call, completion, 0, last)
        known = completion.tokens(position + 1)
        answer = await self._answer(completion, position + 1)
        seen = await self._look(lambda inspector: inspector.attention(answer))
        text = self.tokenizer.token_text
        block_size = self.engine.config.block_size

        def describe() -> dict[str, Any]:
            rows, errors = [], []
            for number in attentions:
                weights, error = seen.weights(number)
                rows.append(weights.mean(axis=0) if head is None else weights[head])
                errors.append(error)
            row = np.mean(rows, axis=0)
            order = 1 + np.argsort(-row[1:], kind="stable")[:top]
            blocks = np.add.reduceat(row, np.arange(0, len(row), block_size))
            found: dict[str, Any] = {}
            if wants_numbers and layer is not None and head is not None:
                query, keys, values = seen.numbers_of(layer, head)
                (found["query"],) = _numbers(query[None])
                found |= {
                    "keys": _numbers(keys),
                    "values": _numbers(values),
                    "scale": seen.calls[layer].scale,
                }
            return {
                **found,
                "sink": float(row[0]),
                "top": [[at, known[at], text(known[at]), float(row[at])] for at in order.tolist()],
                "other": float(max(0.0, 1 - row[0] - row[order].sum())),
                "blocks": blocks.tolist(),
                "output_error_frac": max(errors),
            }

        return json_reply(
            {
                **self._looked_at(completion, position, seen.cost),
                "id": known[position],
                "text": text(known[position]),
                "layer": layer,
                "head": head,
                "n_layers": self.engine.model_config.num_layers,
                "n_heads": num_heads,
                **await asyncio.to_thread(describe),
            }
        )

    async def block(self, call: Call) -> Reply:
        """Keys and values of one block in one layer and kv-head, beside what 8 and 4 bits would make of them."""
        name = call.path_params["block_id"]
        if not (name.isascii() and name.isdigit() and len(name) < 12):
            raise refused(f"block_id={name[:64]!r}: must be the number of a block", "block_id")
        layer, attention = next(iter(self._layers(call)[1].items()))
        head = _choice(call, "head", attention.num_kv_heads) or 0
        block_id = int(name)
        block = await self._look(lambda inspector: inspector.block(block_id, layer))
        text = self.tokenizer.token_text

        def describe() -> dict[str, Any]:
            exact = (block.k[:, head], block.v[:, head])
            found: dict[str, Any] = {"k": _numbers(exact[0]), "v": _numbers(exact[1])}
            for bits in (8, 4):
                rounded = [half[:, head] for half in block.rounded(bits)] if block.filled else exact
                found[f"int{bits}"] = {
                    side: {
                        "numbers": _numbers(own),
                        "rms_error_frac": _rms_error(own, true),
                        "max_error": float(np.abs(own - true).max(initial=0.0)),
                    }
                    for side, own, true in zip("kv", rounded, exact, strict=True)
                }
            return found

        return json_reply(
            {
                "block": block.block_id,
                "layer": layer,
                "head": head,
                "n_layers": self.engine.model_config.num_layers,
                "n_kv": attention.num_kv_heads,
                "head_dim": attention.head_dim,
                "block_tok": self.engine.config.block_size,
                "filled_tok": block.filled,
                "owners": block.owners,
                "hash": block.block_hash,
                "dtype": block.dtype,
                "ids": block.token_ids,
                "texts": [text(token_id) for token_id in block.token_ids],
                **await asyncio.to_thread(describe),
            }
        )

    async def tree(self, call: Call) -> Reply:
        """The prefix tree: every sealed block, and the one that it follows."""
        nodes = await self._look(lambda inspector: inspector.prefix_tree())
        text = self.tokenizer.token_text
        block_ids = {node.block_hash: node.block_id for node in nodes}
        return json_reply(
            {
                "block_tok": self.engine.config.block_size,
                "nodes": [
                    {
                        "block": node.block_id,
                        "hash": node.block_hash,
                        "parent": block_ids.get(node.parent_hash),
                        "group": node.group,
                        "index": node.index,
                        "refs": len(node.owners),
                        "owners": node.owners,
                        "by": node.sealed_by,
                        "ids": node.token_ids,
                        "text": "".join(map(text, node.token_ids)),
                    }
                    for node in nodes
                ],
            }
        )

    async def _look(self, look: Callable[[Inspector], Result]) -> Result:
        async with self._one_look:
            try:
                return await self.engine.inspect(look)
            except NoBlocksError as error:
                raise not_serving(str(error)) from None

    def _take_place(self, call: Call) -> None:
        """Raises an ApiError if too many calls wait for the engine to compute something again."""
        admission = self.service.admission
        call.resources.enter_context(admission.hold(admission.looks, call.caller))

    def _completion(self, call: Call) -> RememberedCompletion:
        """The completion that the path names; completions of other callers are not found."""
        return find_completion(self.service, call.caller, call.path_params["id"])

    def _layers(self, call: Call) -> tuple[int | None, Mapping[int, AttentionConfig]]:
        """The layer that a call chooses, if it does, and the attention of this layer or of all that have one."""
        layers = self.engine.model_config.layers
        layer = _choice(call, "layer", len(layers))
        found = {
            number: each.attention
            for number, each in enumerate(layers)
            if each.attention is not None and layer in (None, number)
        }
        if not found:
            raise refused(f"layer={layer}: has no attention; it is recurrent", "layer")
        return layer, found

    async def _answer(self, completion: RememberedCompletion, num_tokens: int) -> AnswerSoFar:
        """A completion when it had so many tokens, those of its prompt included."""
        return await self.engine.answer_so_far(
            completion.prompt(num_tokens),
            completion.params,
            completion.seed,
            completion.index,
            completion.tokens(num_tokens)[len(completion.prompt_token_ids) :],
            completion.record.cache_salt,
        )

    def _position(self, call: Call, completion: RememberedCompletion, low: int, high: int) -> int:
        name = call.path_params["position"]
        if name.isascii() and name.isdigit() and len(name) < 12 and low <= int(name) <= high:
            return int(name)
        raise refused(
            f"position={name[:64]!r}: must be in {low}..{high}: {completion.id} has"
            f" {len(completion.prompt_token_ids)} prompt tokens and {len(completion.output_token_ids)} of"
            " output",
            "position",
        )

    def _looked_at(
        self, completion: RememberedCompletion, position: int, cost: Any
    ) -> dict[str, Any]:
        return {
            "req": str(completion.id),
            "pos": position,
            "prompt_tok": len(completion.prompt_token_ids),
            "recomputed": {
                "cached_tok": cost.num_cached,
                "computed_tok": cost.num_computed,
                "dur_us": round(cost.seconds * 1e6),
            },
        }


def _stage_parameters(params: SamplingParams) -> dict[str, float]:
    return {name: getattr(params, name) for name in STAGE_NUMBERS}


def _whole(call: Call, name: str, default: int, low: int, high: int) -> int:
    text = call.query.get(name, str(default))
    if text.isascii() and text.isdigit() and len(text) < 12 and low <= int(text) <= high:
        return int(text)
    raise refused(f"{name}={text[:64]!r}: must be in {low}..{high}", name)


def _choice(call: Call, name: str, count: int) -> int | None:
    """None: left out."""
    return _whole(call, name, 0, 0, count - 1) if name in call.query else None


def _numbers(rows: Any) -> list[list[float]]:
    """Rows [T, D], each number with `DIGITS` digits."""
    return [[float(f"{number:.{DIGITS}g}") for number in row] for row in rows.tolist()]


def _rms_error(rounded: Any, true: Any) -> float:
    """Root mean square of the error over that of the numbers; 0 where there is nothing."""
    power = float(np.square(true).sum())
    return float(np.sqrt(np.square(rounded - true).sum() / power)) if power else 0.0
