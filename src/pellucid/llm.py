"""LLM, the interface for scripts: prompts in, complete or streamed answers out."""

import random
import re
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple, final

from pellucid.engine import LLMEngine
from pellucid.engine.shared_engine import SharedEngine
from pellucid.engine.turns import DeferredInterrupt
from pellucid.inputs.beam_search_params import BeamSearchParams, RequestParams
from pellucid.inputs.config import EngineConfig
from pellucid.inputs.llm_inputs import (
    GivenPrompt,
    PromptInput,
    chat_prompts,
    given_prompts,
    params_for_each,
    priority_of_each,
)
from pellucid.inputs.parameter_checks import Interval
from pellucid.inputs.prompts import EncodedPrompt, Message, Tool
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.inputs.vllm_arguments import engine_settings
from pellucid.observing.event_bus import EventBus
from pellucid.outputs import BeamSearchSequence, CompletionDelta, RequestOutput
from pellucid.progress import progress as progress_bar
from pellucid.text.tokenizer import Tokenizer

_SEED = Interval(0, 2**64 - 1)
_SEED_BITS = 48


@final
class LLM:
    """A model that is ready to generate. Names and meanings follow vLLM's `LLM`.

    Any thread may call any method at any time: requests of all threads are computed together.

    Args:
        model: directory in Hugging Face layout, a GGUF file or a hub id; None is the bundled model.
        seed: makes answers repeatable whose parameters have no seed: the k-th request always gets the
            same one. None draws seeds. 0..2**64 - 1.
        on_progress: called with (bytes read, bytes in total) while weights are downloaded, and while they load.
        bus: carries the engine's events; None makes one, `llm.engine.events`.
        on_note: called with each sentence on what the model's files hold and was left out; None: each is
            a RuntimeWarning.
        **settings: the fields of `EngineConfig`, and arguments of vLLM's that mean the same.

    Raises:
        ValueError: a setting or the model cannot be used; the message names it.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        seed: int | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        bus: EventBus | None = None,
        on_note: Callable[[str], None] | None = None,
        **settings: Any,
    ) -> None:
        seed = None if seed is None else _SEED.integer("seed", seed)
        self._seeds = None if seed is None else random.Random(seed)
        self.config = EngineConfig(model=model, **engine_settings(settings))
        self._shared = SharedEngine(LLMEngine.from_config(self.config, on_progress, bus, on_note))

    @property
    def engine(self) -> LLMEngine:
        """The engine itself. Raises ValueError after `close`."""
        return self._shared.engine

    @property
    def tokenizer(self) -> Tokenizer:
        return self.engine.tokenizer

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer: `encode`, `decode`, `apply_chat_template`."""
        return self.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The sampling parameters that the checkpoint recommends, in its generation_config.json.

        `generate`, `chat` and `stream` take them where no parameters are given.
        """
        return self.engine.model.default_sampling_params

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: int | Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Completes prompts, as many at a time as the engine's limits allow.

        Args:
            prompts: one prompt or a list of any length. A prompt is a string, a list or array of token
                ids, {"prompt": ...}, {"prompt_token_ids": ...} or a `ChatPrompt`.
            sampling_params: for all prompts, or one for each; None takes
                `get_default_sampling_params()`.
            use_tqdm: show progress on stderr: a bar on a live terminal, else a line after a second and every 5 s.
            priority: for all prompts, or one for each; lower is sooner, None is 0.

        Returns:
            One output for each prompt, in their order. A request that fails while it runs has
            finish_reason "error" and says why; the others are not affected.

        Raises:
            ValueError: a prompt or parameter cannot be served; nothing was computed.
        """
        given = given_prompts(prompts)
        params = params_for_each(
            sampling_params, len(given), self.get_default_sampling_params(), SamplingParams
        )
        seeded = [self._with_seed(each) for each in params]
        return self._run(given, seeded, priority_of_each(priority, len(given)), use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        chat_template: str | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        tools: Sequence[Tool] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation or several, through the model's chat template.

        Args:
            messages: a list of {"role": ..., "content": ...}, the oldest first, or a list of such lists.
                Contents are text or lists of text parts; messages may have tool calls and their results.
            sampling_params: as in `generate`. An answer without `max_tokens` may fill the context.
            use_tqdm: as in `generate`.
            chat_template: a template in place of the model's own, in Jinja.
            add_generation_prompt: end with the text that opens the assistant's answer; None: unless the final
                message is continued.
            continue_final_message: let the answer continue the final message.
            tools: functions that the model may call, in OpenAI's form.
            chat_template_kwargs: variables for the template, such as {"enable_thinking": False}.

        Returns:
            One output for each conversation, in their order.

        Raises:
            ValueError: as in `generate`; a message or tool has the wrong form; or the model has no chat
                template.
        """
        conversations = chat_prompts(
            messages,
            tools=tools,
            chat_template=chat_template,
            chat_template_kwargs=chat_template_kwargs or {},
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        return self.generate(conversations, sampling_params, use_tqdm=use_tqdm)

    def beam_search(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        params: BeamSearchParams | Sequence[BeamSearchParams],
        *,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """Searches for likely completions of prompts.

        Arguments and errors are those of `generate`, except for the class of `params`.

        Returns:
            One output for each prompt, in their order. `outputs` has the completions found, best first,
            each with its `score`; `sequences` has the same with their prompts in front, as in vLLM.
        """
        given = given_prompts(prompts)
        each = params_for_each(params, len(given), None, BeamSearchParams)
        outputs = self._run(given, each, [0] * len(given), use_tqdm)
        for output in outputs:
            output.sequences = [
                BeamSearchSequence.of(output.prompt_token_ids, completion, self.tokenizer.decode)
                for completion in output.outputs
            ]
        return outputs

    def stream(
        self, prompt: PromptInput, sampling_params: SamplingParams | None = None
    ) -> "TokenStream":
        """Starts one request, and returns its completion piece by piece.

        Several streams may be open; reading one of them advances all of them.

        Raises:
            ValueError: as `generate`; more than one prompt; or `best_of` above n, since the best
                completions are known only when all have ended.
        """
        [given, *others] = given_prompts(prompt)
        if others:
            raise ValueError(f"prompt: {1 + len(others)} prompts given; a stream takes one")
        [params] = params_for_each(
            sampling_params, 1, self.get_default_sampling_params(), SamplingParams
        )
        if params.ranks:
            raise ValueError(f"best_of={params.best_of!r}: a stream allows at most n={params.n}")
        encoded = self.engine.encode(given.prompt)
        return TokenStream(self._shared, encoded, self._with_seed(params), given.cache_salt)

    def close(self) -> None:
        """Aborts unfinished requests, writes the blocks that wait for `prefix_store`, and frees the model.

        Later calls of other methods raise ValueError. A second `close` does nothing.
        """
        with DeferredInterrupt(), self._shared as shared:
            shared.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _with_seed(self, params: SamplingParams) -> SamplingParams:
        if self._seeds is None or params.seed is not None:
            return params
        return replace(params, seed=self._seeds.getrandbits(_SEED_BITS))

    def _run(
        self,
        given: Sequence[GivenPrompt],
        params: Sequence[RequestParams],
        priorities: Sequence[int],
        shows_progress: bool,
    ) -> list[RequestOutput]:
        """Checks requests, then runs them to their ends."""
        batch = _Batch(self.config.max_num_seqs)
        for (name, prompt, salt), own, priority in zip(given, params, priorities, strict=True):
            try:
                encoded = self.engine.encode(prompt)
            except ValueError as error:
                if len(given) == 1:
                    raise
                raise ValueError(re.sub(r"^prompt\b", name, str(error))) from error
            self.engine.check_request(encoded, own, name, priority, salt)
            batch.waiting.append(_UnqueuedRequest(encoded, own, priority, salt))
        bar = progress_bar("generate", batch.describe) if shows_progress else nullcontext()
        with bar as show, DeferredInterrupt() as interrupt:
            try:
                while not batch.is_done:
                    with self._shared as shared:
                        batch.add_to(shared)
                        if not batch.is_done:  # another thread's step may have ended the last one
                            shared.step()
                    interrupt.check()
                    if show is not None:
                        show(batch.num_finished, len(given))
            finally:
                if batch.unfinished:
                    with self._shared as shared:
                        for request_id in list(batch.unfinished):
                            shared.abort(request_id)
        return batch.outputs


class _UnqueuedRequest(NamedTuple):
    """A request that is not queued yet."""

    prompt: EncodedPrompt
    params: RequestParams
    priority: int
    cache_salt: str | None


class _Batch:
    """The requests of one call, of which the engine holds a limited number at a time.

    Twice as many as may run: the scheduler always has a request to admit, and memory is needed for
    these alone. A prompt arrives when the engine gets it. So a long list of one thread delays the requests of
    others only by what the engine has of it, and `max_time` does not pass while a prompt waits for the list's others:
    a request with `max_time` comes when there is a seat for it.
    """

    def __init__(self, max_num_seqs: int) -> None:
        self._max_num_seqs = max_num_seqs
        self._num_tokens = 0
        self.waiting: deque[_UnqueuedRequest] = deque()
        self.unfinished: dict[str, RequestOutput] = {}  # by request id
        self.outputs: list[RequestOutput] = []

    @property
    def is_done(self) -> bool:
        return not (self.waiting or self.unfinished)

    @property
    def num_finished(self) -> int:
        return len(self.outputs) - len(self.unfinished)

    def add_to(self, shared: SharedEngine) -> None:
        engine = shared.engine
        while self.waiting and self._has_place(self.waiting[0].params, engine):
            prompt, params, priority, salt = self.waiting.popleft()
            now = engine.clock()
            prompt = replace(prompt, arrival_time=now, encoded_time=now)
            output = shared.add(self, prompt, params, priority, salt)
            self.unfinished[output.request_id] = output
            self.outputs.append(output)

    def _has_place(self, params: RequestParams, engine: LLMEngine) -> bool:
        if isinstance(params, SamplingParams) and params.max_time is not None:
            num_seats = min(params.num_results, self._max_num_seqs)
            return engine.num_unfinished_sequences + num_seats <= self._max_num_seqs
        return len(self.unfinished) < 2 * self._max_num_seqs

    def receive(self, delta: CompletionDelta) -> None:
        self._num_tokens += len(delta.token_ids)
        output = self.unfinished.get(delta.request_id)
        if output is not None and output.finished:
            del self.unfinished[delta.request_id]

    def describe(self, done: int, total: int, elapsed: float) -> str:
        """The numbers beside a progress bar."""
        return f"{done} of {total} prompts, {self._num_tokens / elapsed:,.0f} tok/s"


@final
class TokenStream:
    """Iterates over what each step adds to one request.

    Leaving its `with` block, `close`, or dropping the last reference to it aborts the request.

    Attributes:
        output: the request so far.
    """

    def __init__(
        self,
        shared: SharedEngine,
        prompt: EncodedPrompt,
        params: SamplingParams,
        cache_salt: str | None,
    ) -> None:
        self._shared = shared
        self._unread: deque[CompletionDelta] = deque()
        with DeferredInterrupt(), shared:
            self.output = shared.add(self, prompt, params, cache_salt=cache_salt)
            self._abandon = weakref.finalize(self, shared.abandon, self.output.request_id)
            self._abandon.atexit = False

    def receive(self, delta: CompletionDelta) -> None:
        self._unread.append(delta)

    def close(self) -> None:
        """Aborts the request, if it has not ended."""
        if not self.output.finished:
            with DeferredInterrupt(), self._shared as shared:
                shared.abort(self.output.request_id)

    def __iter__(self) -> Iterator[CompletionDelta]:
        return self

    def __next__(self) -> CompletionDelta:
        if not self._unread and not self.output.finished:
            with DeferredInterrupt() as interrupt:
                while not self._unread and not self.output.finished:
                    with self._shared as shared:
                        if not self._unread and not self.output.finished:
                            shared.step()
                    interrupt.check()
        if not self._unread:
            self._abandon.detach()  # the request has ended
            raise StopIteration
        return self._unread.popleft()

    def __enter__(self) -> "TokenStream":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
