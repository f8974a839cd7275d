"""The offline facade: prompts in, finished or streamed answers out."""

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import final

from pellucid.beam_search_params import BeamSearchParams, RequestParams
from pellucid.config import EngineConfig
from pellucid.engine import LLMEngine
from pellucid.event_bus import EventBus
from pellucid.outputs import CompletionDelta, RequestOutput
from pellucid.progress import is_live
from pellucid.progress import progress as progress_bar
from pellucid.prompts import ChatPrompt, EncodedPrompt, Message, Prompt
from pellucid.sampling_params import SamplingParams


class LLM:
    """A model that is ready to generate.

    Args:
        model: directory in Hugging Face layout, a GGUF file or a hub id; left out, the bundled model.
        on_progress: called with (bytes read, bytes in all) while weights load.
        bus: carries the engine's events; left out, `llm.engine.events` is one, once it has loaded.
        **knobs: the fields of `EngineConfig`, by name.

    Raises:
        ValueError: a knob or the model cannot be used; the message names it.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        on_progress: Callable[[int, int], None] | None = None,
        bus: EventBus | None = None,
        **knobs: object,
    ) -> None:
        unknown = knobs.keys() - EngineConfig.__dataclass_fields__.keys()
        if unknown:
            known = ", ".join(name for name in EngineConfig.__dataclass_fields__ if name != "model")
            raise ValueError(f"LLM({min(unknown)}=...): no such parameter; there are {known}")
        self.config = EngineConfig(model=model, **knobs)  # type: ignore[arg-type]
        self.engine = LLMEngine.from_config(self.config, on_progress, bus)
        self.tokenizer = self.engine.tokenizer
        self._streams: dict[str, TokenStream] = {}

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """Completes prompts, as many at a time as the engine's limits allow.

        Args:
            prompts: one prompt or a list of any length; each is text, token ids or a `ChatPrompt`.
            params: for all of them, or one for each; left out, `SamplingParams()`.
            progress: whether stderr shows how far it has come; None: if it is a live terminal.

        Returns:
            One output for each prompt, in their order. A request that fails on its way has
            finish_reason "error" and says why; the others are not touched.

        Raises:
            ValueError: a prompt or parameter cannot be served; nothing was generated.
        """
        return self._run(prompts, params or SamplingParams(), SamplingParams, progress)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams | Sequence[BeamSearchParams],
        *,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """Searches for likely completions of prompts.

        Arguments and errors are those of `generate`, but for the kind of parameters.

        Returns:
            One output for each prompt, in their order. Its `outputs` are the sequences found, best
            first, each with its `score`.
        """
        return self._run(prompts, params, BeamSearchParams, progress)

    def chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None
    ) -> RequestOutput:
        """Answers a conversation, through the model's chat template.

        Args:
            messages: {"role": ..., "content": ...}, the oldest first.
        """
        return self.generate([ChatPrompt(messages)], params)[0]

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's generation_config.json recommends; `generate` does not take it by itself."""
        return self.engine.model.default_sampling_params

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> "TokenStream":
        """Starts one request, whose text is then read as it is made.

        Several streams may be open; reading one of them moves all of them on.

        Raises:
            ValueError: as `generate`, and for a `best_of` above n: which answers are the best is
                known when all have ended.
        """
        params = params or SamplingParams()
        _check_kind(params, SamplingParams)
        if params.ranks:
            raise ValueError(f"best_of={params.best_of!r}: a stream allows at most n={params.n}")
        output = self.engine.add_request(prompt, params)
        self._streams[output.request_id] = TokenStream(output, self._step, self._close)
        return self._streams[output.request_id]

    def _run(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: RequestParams | Sequence[RequestParams],
        kind: type[RequestParams],
        progress: bool | None,
    ) -> list[RequestOutput]:
        """Checks requests, then runs them to their ends.

        The engine is given as many as may run and as many more: its scheduler always has somebody to
        admit, and what it keeps of a request, it keeps of these alone.
        """
        batch = _as_batch(prompts)
        queue: deque[tuple[EncodedPrompt, RequestParams]] = deque()
        for index, (prompt, own) in enumerate(
            zip(batch, _for_each(params, len(batch)), strict=True)
        ):
            _check_kind(own, kind)
            encoded = self.engine.encode(prompt)
            self.engine.check_request(encoded, own, f"prompts[{index}]")
            queue.append((encoded, own))
        outputs: list[RequestOutput] = []
        unfinished: dict[str, RequestOutput] = {}
        num_prompts, num_tokens = len(queue), 0

        def describe(done: int, total: int, elapsed: float) -> str:
            return f"{done} of {total} prompts, {num_tokens / elapsed:,.0f} tok/s"

        shown = is_live(sys.stderr) if progress is None else progress
        with progress_bar("generate", describe) if shown else nullcontext() as show:
            try:
                while queue or unfinished:
                    while queue and len(unfinished) < 2 * self.config.max_num_seqs:
                        outputs.append(self.engine.add_request(*queue.popleft()))
                        unfinished[outputs[-1].request_id] = outputs[-1]
                    for delta in self._step():
                        output = unfinished.get(delta.request_id)
                        if output is not None:
                            num_tokens += len(delta.token_ids)
                            if output.finished:
                                del unfinished[output.request_id]
                    if show is not None:
                        show(len(outputs) - len(unfinished), num_prompts)
            finally:  # Ctrl-C: leave the engine empty
                for output in unfinished.values():
                    self._close(output)
        return outputs

    def _step(self) -> list[CompletionDelta]:
        deltas = self.engine.step()
        for delta in deltas:
            if (stream := self._streams.get(delta.request_id)) is not None:
                stream.unread.append(delta)
        return deltas

    def _close(self, output: RequestOutput) -> None:
        self._streams.pop(output.request_id, None)
        self.engine.abort(output.request_id)


@final
class TokenStream:
    """Iterates over what each step adds to one request. Leaving its `with` block aborts the request.

    Attributes:
        output: the request so far.
        unread: what steps have added and the iterator has not given yet.
    """

    def __init__(
        self,
        output: RequestOutput,
        step: Callable[[], object],
        close: Callable[[RequestOutput], None],
    ) -> None:
        self._step = step
        self._close = close
        self.output = output
        self.unread: deque[CompletionDelta] = deque()

    def __iter__(self) -> Iterator[CompletionDelta]:
        while self.unread or not self.output.finished:
            while self.unread:
                yield self.unread.popleft()
            if not self.output.finished:
                self._step()

    def __enter__(self) -> "TokenStream":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._close(self.output)


def _as_batch(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """A single prompt is text, a conversation or a list that begins with a token id."""
    if isinstance(prompts, str | ChatPrompt) or (len(prompts) > 0 and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return prompts  # type: ignore[return-value]


def _for_each(
    params: RequestParams | Sequence[RequestParams], num_prompts: int
) -> Sequence[RequestParams]:
    if isinstance(params, RequestParams):
        return [params] * num_prompts
    if len(params) != num_prompts:
        raise ValueError(f"params: {len(params)} given for {num_prompts} prompts")
    return params


def _check_kind(params: RequestParams, kind: type[RequestParams]) -> None:
    """Sampling draws one token after the other; of a beam search nothing is known before its end."""
    if not isinstance(params, kind):
        verbs = {
            SamplingParams: "generate() and stream() take",
            BeamSearchParams: "beam_search() takes",
        }
        raise ValueError(f"params: {type(params).__name__} given; {verbs[kind]} {kind.__name__}")
