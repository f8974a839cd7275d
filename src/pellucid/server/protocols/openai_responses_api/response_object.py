"""The response object of /v1/responses, from the deltas of an answer."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from pellucid.inputs.conversation import argument_object
from pellucid.outputs import CompletionDelta, RequestOutput
from pellucid.server.generation import Generation, whole_delta
from pellucid.server.protocols.answers import Block, BlockEvent, BlockKind
from pellucid.server.protocols.ask import Ask
from pellucid.server.protocols.cache_comparison import CacheComparison, CacheOutcome, compare_with
from pellucid.server.protocols.logprobs import TokenLogprob
from pellucid.server.protocols.openai_responses_api.fields import ResponsesBody
from pellucid.server.protocols.openai_responses_api.item_events import ItemEvents
from pellucid.server.protocols.openai_responses_api.kept_items import KeptItems
from pellucid.server.protocols.openai_responses_api.text_logprobs import TextLogprobs
from pellucid.server.protocols.openai_responses_api.tools import INPUT, CalledTool
from pellucid.server.request_records import RequestRecords

# In the place of encrypted reasoning, without which some clients send a reasoning item never back
PLACEHOLDER = "pellucid"


def custom_input(arguments: str) -> str:
    """The text for a custom tool, of the arguments that the model wrote."""
    given = argument_object(arguments).get(INPUT)
    return given if isinstance(given, str) else arguments


class ResponseObject:
    """Reads the deltas of one answer, and writes the response object and its items.

    Args:
        generation: the request that has begun.
        ask: what the call asks for.
        records: where an earlier response is looked for, to compare its prompt with.
        tools: what the client calls its tools, by the names that the model uses.
        kept: gets the items.

    Attributes:
        blocks: of the deltas that were read; each block is an item.
        has_logprobs: whether texts have the log-probabilities of their tokens.
    """

    def __init__(
        self,
        generation: Generation,
        ask: Ask[ResponsesBody],
        records: RequestRecords,
        tools: Mapping[str, CalledTool],
        kept: KeptItems,
    ) -> None:
        self.blocks = ask.form.blocks(generation)
        self._generation = generation
        self._records = records
        self._tools = tools
        self._kept = kept
        self._body = body = ask.body
        self._model = ask.name
        self._params = generation.request.params
        self._created = int(time.time())
        self._logprobs = (
            TextLogprobs(ask.form.tokenizer, generation) if body.wants_logprobs else None
        )

    @property
    def has_logprobs(self) -> bool:
        return self._logprobs is not None

    def read(self, delta: CompletionDelta) -> list[tuple[BlockEvent, Sequence[TokenLogprob]]]:
        """The changes of a delta, with the log-probabilities of the tokens of added text."""
        if self._logprobs is None:
            return [(event, ()) for event in self.blocks.read(delta)]
        return self._logprobs.read(delta, self.blocks)

    def whole(self, output: RequestOutput) -> dict[str, Any]:
        """The object of an answer that has ended, none of whose deltas were read."""
        (completion,) = output.outputs
        self.read(whole_delta(output.request_id, completion))
        return self.ended(completion.finish_reason)

    def ended(self, finish_reason: str | None) -> dict[str, Any]:
        """The object of an answer that has ended."""
        response = self.without_output("completed" if finish_reason == "stop" else "incomplete")
        if finish_reason == "length":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        elif finish_reason == "abort":
            response["status"] = "cancelled"
        response["output"] = [self.item(block, "completed") for block in self.blocks.blocks]
        if self._body.store is not False:
            self._kept.keep(self._generation.call.caller.name, response["output"])
        response["completed_at"] = int(time.time())
        options = self._body.prompt_cache_options
        if options is not None and options.comparison_response_id is not None:
            compared = compare_with(options.comparison_response_id, self._generation, self._records)
            response["prompt_cache_diagnostics"] = _diagnostics(compared)
        (output,) = self._generation.outputs
        num_prompt_tokens, num_tokens = len(output.prompt_token_ids), self.blocks.num_tokens
        response["usage"] = {
            "input_tokens": num_prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": output.num_cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": num_tokens,
            "output_tokens_details": {"reasoning_tokens": self.blocks.num_reasoning_tokens},
            "total_tokens": num_prompt_tokens + num_tokens,
        }
        return response

    def without_output(self, status: str) -> dict[str, Any]:
        """The object of an answer that has not ended yet, or that failed."""
        body = self._body
        return {
            "id": f"resp_{self._generation.id}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self._model,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {
                "effort": body.effort,
                "summary": body.reasoning.summary if body.reasoning is not None else None,
            },
            "service_tier": "default",
            "store": False,
            "temperature": self._params.temperature,
            "text": {"format": body.text_format or {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": [tool for tool in body.tools or () if tool.get("type") == "function"],
            "top_p": self._params.top_p,
            "truncation": "disabled",
            "usage": None,
            "warnings": self._generation.call.warnings,
        }

    def item(self, block: Block, status: str) -> dict[str, Any]:
        """The item of a block; with its text if it is completed."""
        text = block.text if status == "completed" else ""
        if block.kind is BlockKind.CALL:
            return self._call_item(block, status, text)
        content = [self.content(block, text)] if status == "completed" else []
        if block.kind is BlockKind.REASONING:
            is_summary = self._body.wants_summary
            item = {
                "id": self.item_id(block),
                "type": "reasoning",
                "status": status,
                "summary": content if is_summary else [],
                "content": [] if is_summary else content,
            }
            return item | ({"encrypted_content": PLACEHOLDER} if self._body.wants_encrypted else {})
        return {
            "id": self.item_id(block),
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def content(self, block: Block, text: str) -> dict[str, Any]:
        """The content part of an item of text or reasoning."""
        if block.kind is BlockKind.REASONING:
            kind = "summary_text" if self._body.wants_summary else "reasoning_text"
            return {"type": kind, "text": text}
        logprobs: Sequence[TokenLogprob] = ()
        if text and self._logprobs is not None:
            logprobs = self._logprobs.of_block[block.index]
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def called(self, block: Block) -> CalledTool:
        """The tool that a call's block names."""
        return self._tools.get(block.name or "", CalledTool(block.name or ""))

    def _call_item(self, block: Block, status: str, text: str) -> dict[str, Any]:
        called = self.called(block)
        named = {"call_id": block.call_id, "name": called.name}
        if called.namespace is not None:
            named["namespace"] = called.namespace
        item = {"id": self.item_id(block), "status": status, **named}
        if called.is_custom:
            return {**item, "type": "custom_tool_call", "input": custom_input(text)}
        return {**item, "type": "function_call", "arguments": text}

    def events_of(self, block: Block) -> ItemEvents:
        """The events by which a stream brings the item of a block."""
        if block.kind is BlockKind.TEXT:
            return ItemEvents.TEXT
        if block.kind is BlockKind.REASONING:
            return ItemEvents.SUMMARY if self._body.wants_summary else ItemEvents.REASONING
        return ItemEvents.INPUT if self.called(block).is_custom else ItemEvents.ARGUMENTS

    def item_id(self, block: Block) -> str:
        prefix = self.events_of(block).value.item_prefix
        return f"{prefix}_{self._generation.id}_{block.index}"


def _diagnostics(compared: CacheComparison) -> dict[str, Any]:
    if compared.outcome is CacheOutcome.REUSED:
        return {"type": "cache_hit"}
    if compared.outcome is CacheOutcome.NOT_FOUND:
        return {"type": "comparison_response_not_found"}
    if compared.outcome is CacheOutcome.EVICTED:
        return {"type": "unavailable"}
    return {
        "type": "cache_miss",
        "reason": f"{compared.changed or 'input'}_changed",
        "cache_missed_tokens": compared.missed_tokens,
        "comparison_reusable_tokens": compared.reusable_tokens,
    }
