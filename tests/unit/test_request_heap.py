"""RequestHeap: its order, and removal from the middle."""

import random

import pytest

from pellucid.scheduling.request import Request
from pellucid.scheduling.request_queues import RequestHeap
from support.scheduling import make_request


def drain(heap: RequestHeap) -> list[Request]:
    drained = []
    while (first := heap.first) is not None:
        heap.remove(first)
        drained.append(first)
    return drained


def test_the_smallest_key_comes_first() -> None:
    heap = RequestHeap()
    requests = [make_request(name) for name in "abc"]
    for key, request in zip([(2.0, 0), (1.0, 2), (1.0, 1)], requests, strict=True):
        heap.push(key, request)
    assert list(heap) == [requests[2], requests[1], requests[0]]
    assert drain(heap) == [requests[2], requests[1], requests[0]]


def test_one_that_left_may_come_back_with_the_same_key() -> None:
    heap = RequestHeap()
    request, other = make_request("a"), make_request("b")
    heap.push((1.0, 0), request)
    heap.push((2.0, 1), other)
    heap.remove(request)
    heap.push((1.0, 0), request)
    assert len(heap) == 2
    assert drain(heap) == [request, other]


@pytest.mark.parametrize("seed", range(20))
def test_it_is_a_sorted_list(seed: int) -> None:
    rng = random.Random(seed)
    heap = RequestHeap()
    model: dict[Request, tuple[float, int]] = {}
    for number in range(300):
        if model and rng.random() < 0.5:
            leaving = rng.choice(list(model))
            heap.remove(leaving)
            del model[leaving]
        else:
            request = make_request(f"{number}")
            model[request] = (rng.choice([0.0, 1.0, 5.0]), number)
            heap.push(model[request], request)
        assert heap.first is min(model, key=lambda r: model[r], default=None)
        assert len(heap) == len(model)
        assert len(heap._entries) <= 2 * len(model) + 8
    assert drain(heap) == sorted(model, key=lambda r: model[r])
