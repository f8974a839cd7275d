"""Requests that another engine has begun: this one goes on where that one stopped, to the same bits."""

from collections.abc import Sequence
from dataclasses import replace

from pellucid.inputs.sampling_params import SamplingParams
from pellucid.outputs import CompletionOutput, RequestOutput
from pellucid.scheduling.request import Request


def check_resumable(so_far: RequestOutput, requests: Sequence[Request], vocab_size: int) -> None:
    """Checks that an answer so far belongs to what is asked for again.

    Args:
        so_far: the request as another engine left it.
        requests: the scheduler's, one for each completion, as if nothing had been computed.

    Raises:
        ValueError: names what does not fit.
    """
    first = requests[0]
    if first.is_beam:
        raise ValueError("resumes: a beam search gives nothing before its end; begin it again")
    if tuple(so_far.prompt_token_ids) != first.prompt_token_ids:
        raise ValueError("resumes: the prompt has other tokens than the one that was begun")
    if first.params.seed not in (None, so_far.seed):
        raise ValueError(f"resumes: seed={first.params.seed}: the answers have seed {so_far.seed}")
    if len(so_far.outputs) != len(requests):
        raise ValueError(
            f"resumes: has {len(so_far.outputs)} completions, and the parameters ask for {len(requests)}"
        )
    if so_far.finished:
        raise ValueError("resumes: all completions have ended")
    for completion in so_far.outputs:
        for token_id in completion.token_ids:
            if not 0 <= token_id < vocab_size:
                raise ValueError(f"resumes: token id {token_id} is not in 0 .. {vocab_size - 1}")
        if _lacks_logprobs(completion, first.params):
            raise ValueError(
                f"resumes: completion {completion.index} lacks log-probabilities of its tokens"
            )
    needs_prompt = first.params.prompt_logprobs is not None and has_begun(so_far)
    num_told = len(so_far.prompt_logprobs or (None,))  # of a prompt of one token nothing is told
    if needs_prompt and num_told != len(so_far.prompt_token_ids):
        raise ValueError("resumes: prompt_logprobs: lacks some of the prompt's tokens")


def _lacks_logprobs(completion: CompletionOutput, params: SamplingParams) -> bool:
    num_tokens = len(completion.token_ids)
    if params.logprobs is not None and len(completion.logprobs or ()) != num_tokens:
        return True
    needs_sum = params.num_logprobs is not None and num_tokens > 0
    return needs_sum and completion.cumulative_logprob is None


def has_begun(so_far: RequestOutput) -> bool:
    """Whether a completion has tokens: then the prompt's log-probabilities are complete."""
    return any(completion.token_ids for completion in so_far.outputs)


def resumed_requests(so_far: RequestOutput, requests: Sequence[Request]) -> list[Request]:
    """The requests of the completions that have not ended, with their tokens so far.

    Each is as if it had been preempted and had lost all of its blocks: what it computes again, and what it then
    computes, does not depend on that.
    """
    resumed = []
    for request, completion in zip(requests, so_far.outputs, strict=True):
        if completion.finish_reason is not None:
            continue
        request = replace(request, seed=so_far.seed, output_token_ids=[*completion.token_ids])
        if has_begun(so_far):
            # Of a completion without tokens: the log-probabilities of its prompt have been given.
            num_computed = request.num_known_tokens - bool(completion.token_ids)
            request.max_computed_tokens = num_computed
        resumed.append(request)
    return resumed


def resumed_output(completion: CompletionOutput) -> CompletionOutput:
    """A completion to begin with: one that has ended as it is, any other without its tokens, which are replayed."""
    if completion.finish_reason is None:
        return CompletionOutput(completion.index)
    return replace(completion)
