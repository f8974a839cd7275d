"""A request as the front knows it: what was asked, and what its caller has been given so far."""

from dataclasses import dataclass, field

from pellucid.async_engine import AsyncTokenStream
from pellucid.cluster.messages import Add, CompletionSoFar, Delta, Progress
from pellucid.inputs.prompts import EncodedPrompt
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.outputs import CompletionDelta, CompletionOutput, RequestMetrics, RequestOutput

# Replicas that may crash, one after the other, before a request gets its next token: if it is the cause, it must not
# end all replicas for ever.
MAX_CRASHES = 3


@dataclass(eq=False)
class RequestOnReplica:
    """A request, and the replica that computes it.

    Args:
        prompt: encoded.
        params: with a seed.
        stream: to the caller.
        priority, cache_salt, caller, caller_weight: as in `AsyncLLMEngine.add_request`.
        keys: labels of the full blocks of its prompt.

    Attributes:
        output: what the caller has been given.
        replica: None: it waits for one.
        identity: of the engine that has computed it last.
        is_aborted: the caller does not want it any more.
        num_crashes: of replicas that computed it, since its last token.
    """

    request_id: str
    prompt: EncodedPrompt
    params: SamplingParams
    stream: AsyncTokenStream
    priority: int
    cache_salt: str | None
    caller: str
    caller_weight: float
    keys: list[int]
    output: RequestOutput = field(init=False)
    replica: int | None = None
    identity: dict[str, object] | None = None
    is_aborted: bool = False
    num_crashes: int = 0
    _before: Progress | None = None  # on replicas that have ended
    _latest: Progress | None = None  # on this one

    def __post_init__(self) -> None:
        assert self.params.seed is not None
        self.output = RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt.text,
            prompt_token_ids=list(self.prompt.token_ids),
            seed=self.params.seed,
            outputs=[self._new_completion(index) for index in range(self.params.num_results)],
            metrics=RequestMetrics(self.prompt.arrival_time),
        )

    @property
    def num_tokens(self) -> int:
        """Prompt and output: what another replica would have to compute."""
        so_far = sum(len(each.token_ids) for each in self.output.outputs)
        return len(self.prompt.token_ids) + so_far

    @property
    def has_begun(self) -> bool:
        """Whether its caller has some of its answer."""
        return self.output.prompt_logprobs is not None or any(
            each.token_ids for each in self.output.outputs
        )

    def message(self, clock_lead: float = 0.0) -> Add:
        """What a replica needs to compute it, or to go on with it.

        Args:
            clock_lead: seconds by which this clock is ahead of the replica's.
        """
        prompt, output = self.prompt, self.output
        return Add(
            self.request_id,
            prompt.text,
            prompt.is_chat,
            output.prompt_token_ids,
            sorted(prompt.end_token_ids),
            prompt.arrival_time - clock_lead,
            prompt.encoded_time - clock_lead,
            self.params,
            self.priority,
            self.cache_salt,
            self.caller,
            self.caller_weight,
            [
                CompletionSoFar(
                    each.token_ids,
                    each.logprobs,
                    each.cumulative_logprob,
                    each.finish_reason,
                    each.stop_reason,
                )
                for each in output.outputs
            ],
            output.prompt_logprobs,
        )

    def take(self, delta: Delta, now: float) -> CompletionDelta:
        """Adds what a step has brought.

        Args:
            now: seconds, on the clock of `metrics`.
        """
        outputs = self.output.outputs
        if self.params.ranks and len(outputs) > self.params.n:  # the best ones come whole
            outputs[:] = [self._new_completion(index) for index in range(self.params.n)]
        completion = outputs[delta.index]
        completion.append_text(delta.text)
        completion.token_ids += delta.token_ids
        if completion.logprobs is not None and completion.cumulative_logprob is not None:
            for token_id, at in zip(delta.token_ids, delta.logprobs or (), strict=True):
                completion.logprobs.append(at)
                completion.cumulative_logprob += at[token_id].logprob
        if delta.finish_reason is not None:
            completion.cumulative_logprob = delta.cumulative_logprob
            completion.finish_reason = delta.finish_reason
            completion.stop_reason = delta.stop_reason
        self.output.metrics.token_times += [now] * len(delta.token_ids)
        if delta.token_ids:
            self.num_crashes = 0
        return CompletionDelta(
            self.request_id,
            delta.index,
            delta.text,
            delta.token_ids,
            delta.logprobs,
            delta.finish_reason,
            delta.stop_reason,
        )

    def note(self, progress: Progress, clock_lead: float = 0.0) -> None:
        """Takes note of what a replica says of it.

        Args:
            clock_lead: as for `message`.
        """
        self._latest = progress
        output, metrics, before = self.output, self.output.metrics, self._before
        if metrics.first_scheduled_time is None and progress.first_scheduled_time is not None:
            metrics.first_scheduled_time = progress.first_scheduled_time + clock_lead
            output.num_cached_tokens = progress.num_cached_tokens
        if progress.prompt_logprobs is not None:
            output.prompt_logprobs = progress.prompt_logprobs
        metrics.num_processed_tokens = progress.num_processed_tokens
        metrics.flops = progress.flops
        metrics.num_preemptions = progress.num_preemptions
        metrics.kv_cache_bytes = max(metrics.kv_cache_bytes, progress.kv_cache_bytes)
        if before is not None:
            metrics.num_processed_tokens += before.num_processed_tokens
            metrics.flops += before.flops
            metrics.num_preemptions += before.num_preemptions

    def lose_replica(self, *, was_killed: bool) -> None:
        """Its replica has ended.

        Args:
            was_killed: by somebody else, so no request is the cause.
        """
        self.replica = None
        self.num_crashes += not was_killed
        if self._latest is not None:
            before, metrics = self._latest, self.output.metrics
            before.num_processed_tokens = metrics.num_processed_tokens
            before.flops, before.num_preemptions = metrics.flops, metrics.num_preemptions
            self._before, self._latest = before, None

    def end(self, finish_reason: str, stop_reason: str | None = None) -> list[CompletionDelta]:
        """Ends the completions that have not ended; the deltas that say so."""
        deltas = []
        for each in self.output.outputs:
            if each.finish_reason is None:
                each.finish_reason, each.stop_reason = finish_reason, stop_reason
                deltas.append(
                    CompletionDelta(
                        self.request_id, each.index, "", [], None, finish_reason, stop_reason
                    )
                )
        return deltas

    def _new_completion(self, index: int) -> CompletionOutput:
        return CompletionOutput(
            index,
            logprobs=None if self.params.logprobs is None else [],
            cumulative_logprob=None if self.params.num_logprobs is None else 0.0,
        )
