"""BeamGroup: which request computes which beam."""

from pellucid.inputs.beam_search_params import BeamSearchParams
from pellucid.inputs.sampling_params import SamplingParams
from pellucid.scheduling.beam_search import BeamGroup, BeamSearch
from pellucid.scheduling.request import EndRule, Request
from pellucid.scheduling.scheduler_output import BeamCandidate


def candidates(**logprobs: float) -> list[BeamCandidate]:
    """Best first; a token's name is its id."""
    best = sorted(logprobs.items(), key=lambda item: -item[1])
    return [BeamCandidate(int(name[1:]), logprob, logprob) for name, logprob in best]


def group(width: int) -> BeamGroup:
    requests = [
        Request(f"r/{index}", (1, 2), SamplingParams(), 0, 0.0, max_tokens=9)
        for index in range(width)
    ]
    return BeamGroup(
        BeamSearch(BeamSearchParams(beam_width=width), EndRule(frozenset(), 9, "max_tokens")),
        requests,
    )


def names(requests: tuple[Request, ...]) -> list[str]:
    return [request.request_id for request in requests]


def test_the_first_request_computes_the_prompt_for_all() -> None:
    beams = group(3)
    assert not beams.is_ready
    beams.deliver(beams.requests[0], candidates(t5=-1, t6=-2, t7=-3))
    assert beams.is_ready
    step = beams.advance()
    assert (names(step.requests), step.parents) == (["r/0", "r/1", "r/2"], (0, 0, 0))
    assert step.token_ids == (5, 6, 7)
    assert not beams.is_ready


def test_a_beam_stays_with_its_request_and_only_further_children_move() -> None:
    beams = group(3)
    first, second, third = beams.requests
    beams.deliver(first, candidates(t5=-1, t6=-2, t7=-3))
    beams.advance()
    beams.deliver(second, candidates(t1=-0.1, t2=-0.2))  # two children, the best of all
    beams.deliver(third, candidates(t3=-9))  # none
    assert not beams.is_ready
    beams.deliver(first, candidates(t4=-1.5))  # one child
    step = beams.advance()
    assert step.token_ids == (1, 2, 4)
    assert names(step.requests) == ["r/1", "r/2", "r/0"]
    assert step.parents == (0, 0, 2)


def test_requests_without_a_beam_are_left_alone_until_there_is_one() -> None:
    beams = group(3)
    beams.deliver(beams.requests[0], candidates(t5=-1))
    assert names(beams.advance().requests) == ["r/0"]
    assert not beams.is_ready
    beams.deliver(beams.requests[2], candidates(t8=-1))  # not a beam's: of no consequence
    assert not beams.is_ready
    beams.deliver(beams.requests[0], candidates(t5=-1, t6=-2))
    step = beams.advance()
    assert (names(step.requests), step.parents, step.token_ids) == (["r/0", "r/1"], (0, 0), (5, 6))
