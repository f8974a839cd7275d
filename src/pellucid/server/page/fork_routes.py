"""/v1/page/fork: continues a completion from one of its positions with another token."""

import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from pellucid.server.completion_id import CompletionId
from pellucid.server.endpoint import Call, GeneratedReply
from pellucid.server.errors import refused
from pellucid.server.generation import Generation, GenerationRequest
from pellucid.server.page.completion_lookup import find_completion
from pellucid.server.page.fields import FORK_FIELDS, ForkBody
from pellucid.server.page.frames import event_frames
from pellucid.server.serving import Handlers


class ForkRoutes(Handlers):
    """The handler of the route."""

    async def fork(self, call: Call) -> GeneratedReply:
        """The text up to the position and the other token are the prompt of a new request. While the
        completion runs, the new request shares its blocks, the one in which they part too: the first of
        both to write into that one gets a copy."""
        body = await self.service.read_body(call, FORK_FIELDS)
        body.check()
        parent = find_completion(self.service, call.caller, body.req)
        if not 1 <= body.position <= parent.num_tokens:
            raise refused(
                f"position={body.position}: must be in 1..{parent.num_tokens}, the tokens of {parent.id}",
                "position",
            )
        vocab_size = self.engine.model_config.vocab_size
        if not 0 <= body.token_id < vocab_size:
            raise refused(f"token_id={body.token_id}: must be in 0..{vocab_size - 1}", "token_id")
        if body.position + 2 > self.engine.max_model_len:
            raise refused(f"position={body.position}: leaves no room in the context", "position")
        now = time.monotonic()
        prompt = replace(
            parent.prompt(body.position),
            token_ids=(*parent.tokens(body.position), body.token_id),
            arrival_time=now,
            encoded_time=now,
        )
        params = replace(
            parent.params,
            n=1,
            max_tokens=body.max_tokens,
            seed=parent.seed,
            structured_outputs=None,  # it would begin anew within the text
            logprobs=None,
            prompt_logprobs=None,
        )
        request = GenerationRequest([prompt], params, continues=(str(parent.id), body.position))
        generation = await self.service.start(request, call)
        about = {"req": str(CompletionId(generation.id, 0, 0))}
        events = self._events(generation, body, str(parent.id))
        return GeneratedReply(event_frames(about, "fork.failed", events))

    async def _events(
        self, generation: Generation, body: ForkBody, parent: str
    ) -> AsyncGenerator[dict[str, Any], None]:
        text = self.tokenizer.token_text(body.token_id)
        forked = {"parent": parent, "pos": body.position, "id": body.token_id, "text": text}
        yield {"ev": "fork", **forked}
        (stream,) = generation.streams
        async for delta in stream:
            yield {"ev": "fork.tok", "ids": delta.token_ids, "text": delta.text}
        (completion,) = stream.output.outputs
        yield {
            "ev": "fork.end",
            "cached_tok": stream.output.num_cached_tokens,
            "n_tok": len(completion.token_ids),
            "text": completion.text,
            "finish": completion.finish_reason,
        }
