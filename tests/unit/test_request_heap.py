"""RequestHeap: its order, and removal from the middle."""

import random

import pytest

from pellucid.scheduling.request import Request
from pellucid.scheduling.request_queues import RequestHeap
from support.scheduling import make_request


@pytest.mark.parametrize("seed", range(20))
def test_it_is_a_sorted_list(seed: int) -> None:
    rng = random.Random(seed)
    heap = RequestHeap()
    model: dict[Request, tuple[float, int]] = {}
    for number in range(300):
        if model and rng.random() < 0.5:
            leaving = rng.choice(list(model))
            heap.remove(leaving)
            if rng.random() < 0.3:  # and comes back
                heap.push(model[leaving], leaving)
            else:
                del model[leaving]
        else:
            request = make_request(f"{number}")
            model[request] = (rng.choice([0.0, 1.0, 5.0]), number)
            heap.push(model[request], request)
        assert heap.first is min(model, key=lambda r: model[r], default=None)
        assert len(heap) == len(model)
        assert {*heap} == model.keys()
        assert len(heap._entries) <= 2 * len(model) + 8
    for request in sorted(model, key=lambda r: model[r]):
        assert heap.first is request
        heap.remove(request)
    assert heap.first is None
