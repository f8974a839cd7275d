"""/v1/requests: which requests run, what they wait for, why one was slow or missed the cache; ends a request."""

from array import array
from collections.abc import Iterable
from typing import Any

from pellucid.observing.events import PrefixMatched
from pellucid.server.completion_id import CompletionId, call_id_of
from pellucid.server.endpoint import Call, Reply, json_reply
from pellucid.server.errors import ApiError
from pellucid.server.generation import Generation
from pellucid.server.request_records import CallRecord, CompletionRecord, completion_facts
from pellucid.server.serving import Handlers
from pellucid.server.waiting_line import RequestsAhead

TOKENS_AROUND = 8  # of a prompt, shown on both sides of where it parts from another one


class RequestRoutes(Handlers):
    """The handlers of the routes. A caller sees its own requests, an admin all of them."""

    async def under_way(self, call: Call) -> Reply:
        """The unfinished requests: their place in the queue, their state, and what they wait for."""
        line = self.service.waiting_line()
        found = [
            self._line(generation, call, generation.requests_ahead(line, call.caller))
            for generation in self.service.under_way.values()
            if call.caller.may_see(generation.call.caller)
        ]
        return json_reply({"object": "list", "data": found})

    async def cancel(self, call: Call) -> Reply:
        """Ends a request of the caller's. Callers cannot end requests of others."""
        name = call.path_params["id"]
        generation = self.service.under_way.get(call_id_of(name))
        if generation is None or not call.caller.may_see(generation.call.caller):
            raise ApiError(404, f"{name[:64]!r}: no such request is under way", code="not_found")
        generation.cancel()
        return json_reply({"id": generation.id, "cancelled": True})

    async def explain(self, call: Call) -> Reply:
        """Where a request's time went, and why its prompt was not found in the cache."""
        record = self.service.records.get(call.path_params["id"], call.caller)
        completions = {
            name: {
                **self._facts(completion, call),
                "cache": self._cache(record, name, completion.prefix, call),
            }
            for name, completion in record.completions.items()
        }
        return json_reply(
            {
                "id": record.id,
                "path": record.path,
                "prompt_tokens": record.num_prompt_tokens,
                "completions": completions,
            }
        )

    async def kv(self, call: Call) -> Reply:
        """The blocks of the KV cache: used, cached and empty."""
        usage = await self.engine.kv_cache_usage()
        block_size = self.engine.config.block_size
        num_empty = usage.num_blocks - usage.num_used_blocks - usage.num_cached_blocks
        return json_reply(
            {
                "block_size": block_size,
                "num_blocks": usage.num_blocks,
                "num_used_blocks": usage.num_used_blocks,
                "num_cached_blocks": usage.num_cached_blocks,
                "num_empty_blocks": num_empty,
                "share_used": usage.share_used,
            }
        )

    def _line(
        self, generation: Generation, call: Call, ahead: RequestsAhead | None
    ) -> dict[str, Any]:
        record = self.service.records.find(generation.id, call.caller)
        records = {} if record is None else record.completions
        completions = {name: self._facts(each, call) for name, each in records.items()}
        started = generation.outputs if ahead is None else ()  # no step computes what waits
        return {
            "id": generation.id,
            "path": generation.call.path,
            "caller": generation.call.caller.name,
            "state": "running" if ahead is None else "waiting",
            "queue_position": None if ahead is None else ahead.num,
            "waits": _waits(ahead, completions.values()),
            "prompt_tokens": generation.place.num_tokens,
            "cached_tokens": sum(output.num_cached_tokens for output in started),
            "output_tokens": sum(
                len(completion.token_ids) for output in started for completion in output.outputs
            ),
            "completions": completions,
        }

    def _facts(self, completion: CompletionRecord, call: Call) -> dict[str, Any]:
        visibility = self.service.visibility
        return completion_facts(visibility.shown_record(completion, call.caller))

    def _cache(
        self, record: CallRecord, name: str, prefix: PrefixMatched | None, call: Call
    ) -> dict[str, Any] | None:
        """Where the prompt parts from the one that agrees with it longest, and the tokens around."""
        named = CompletionId.parse(name)
        if named is None or prefix is None or prefix.diff_at_tok is None:
            return None
        own = record.prompts[named.prompt_index].token_ids
        found: dict[str, Any] = {
            "parts_at_token": prefix.diff_at_tok,
            "tokens": self._around(own, prefix.diff_at_tok),
            "missed_tokens": len(own) - prefix.hit_tok,
        }
        near = CompletionId.parse(prefix.near_req or "")
        if near is not None:
            other = self.service.records.find(near.call_id, call.caller)
            if other is not None:  # another caller's prompt is never shown
                theirs = other.prompts[near.prompt_index].token_ids
                found |= {
                    "other": other.id,
                    "other_tokens": self._around(theirs, prefix.diff_at_tok),
                }
        return found

    def _around(self, token_ids: "array[int]", position: int) -> list[str]:
        text = self.tokenizer.token_text
        around = token_ids[max(0, position - TOKENS_AROUND) : position + TOKENS_AROUND]
        return [text(token_id) for token_id in around]


def _waits(
    ahead: RequestsAhead | None, completions: Iterable[dict[str, Any]]
) -> dict[str, Any] | None:
    """Behind how many requests one waits, and why, in words; None: it does not wait.

    Args:
        completions: what the scheduler says of each.
    """
    if ahead is None:
        return None
    cause = ahead.cause or f"next: {_lacks(next(iter(completions), {}))}"
    return {"own_ahead": ahead.own, "others_ahead": ahead.others, "cause": cause}


def _lacks(facts: dict[str, Any]) -> str:
    """What the first request in the queue waits for."""
    match facts.get("reason"):
        case "no_seats":
            return "no seat is free"
        case "no_blocks":
            num = facts["need_blocks"]
            return f"lacks {num} block{'' if num == 1 else 's'}"
        case "reading_prefix":
            return "its blocks are read from the prefix store"
        case _:
            return "the coming step"
