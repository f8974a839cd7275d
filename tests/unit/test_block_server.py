"""The block server while its values are away."""

from pellucid.execution.block_server import BlockServer, ServerAwayError


class _Away:
    address = "there:1"

    def __init__(self, now: list[float]) -> None:
        self._now = now
        self.asked_at: list[float] = []
        self.is_away = True

    def has(self, name: str) -> bool:
        self.asked_at.append(self._now[0])
        if self.is_away:
            raise ServerAwayError("no answer")
        return True


def test_calls_pause_after_a_failure_for_longer_each_time() -> None:
    now, reports = [0.0], []
    values = _Away(now)
    blocks = BlockServer(values, b"f" * 32, 100, reports.append, clock=lambda: now[0])
    for second in range(40):
        now[0] = float(second)
        assert not blocks.has(b"h" * 32)
    assert values.asked_at == [0, 1, 3, 7, 15, 31]
    assert reports == ["there:1: no answer: no blocks are shared until it answers"]
    values.is_away, now[0] = False, 63.0
    assert blocks.has(b"h" * 32) and reports[1:] == ["there:1: answers again"]
