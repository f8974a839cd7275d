"""/v1/page/fork: continues a completion from one of its positions with another token."""

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from pellucid.server.completion_lookup import find_completion
from pellucid.server.endpoint import Call, GeneratedReply
from pellucid.server.errors import error_of, refused
from pellucid.server.generation import Generation, GenerationRequest
from pellucid.server.run_bodies import FORK_FIELDS, ForkBody
from pellucid.server.serving import Serving
from pellucid.server.streaming import SSE_KEEPALIVE, sse


@dataclass(frozen=True)
class ForkRoutes:
    """The handler of the route."""

    serving: Serving

    async def fork(self, call: Call) -> GeneratedReply:
        """The text up to the position and the other token are the prompt of a new request. While the
        completion runs, the new request shares its blocks, the one in which they part too: the first of
        both to write into that one gets a copy."""
        body = FORK_FIELDS.decode(call.body, call.warnings)
        body.check()
        service = self.serving.service
        parent = find_completion(service, call.caller, body.req)
        if not 1 <= body.position <= parent.num_tokens:
            raise refused(
                f"position={body.position}: must be in 1..{parent.num_tokens}, the tokens of {parent.name}",
                "position",
            )
        vocab_size = service.engine.model_config.vocab_size
        if not 0 <= body.token_id < vocab_size:
            raise refused(f"token_id={body.token_id}: must be in 0..{vocab_size - 1}", "token_id")
        if body.position + 2 > service.engine.max_model_len:
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
        request = GenerationRequest([prompt], params, continues=(parent.name, body.position))
        generation = await service.start(request, call)
        frames = self._frames(generation, body, parent.name)
        return GeneratedReply(frames, lambda: SSE_KEEPALIVE)

    async def _frames(
        self, generation: Generation, body: ForkBody, parent: str
    ) -> AsyncGenerator[bytes, None]:
        def frame(**fields: Any) -> bytes:
            return sse(msgspec.json.encode({"req": f"{generation.id}/0", **fields}))

        text = self.serving.model.tokenizer.token_text(body.token_id)
        yield frame(ev="fork", parent=parent, pos=body.position, id=body.token_id, text=text)
        (stream,) = generation.streams
        try:
            async for delta in stream:
                yield frame(ev="fork.tok", ids=delta.token_ids, text=delta.text)
            output = stream.output
            yield frame(
                ev="fork.end",
                cached_tok=output.num_cached_tokens,
                n_tok=len(output.outputs[0].token_ids),
                text=output.outputs[0].text,
                finish=output.outputs[0].finish_reason,
            )
        except Exception as error:
            yield frame(ev="fork.failed", msg=error_of(error).message)
