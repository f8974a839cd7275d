"""A clock for tests, which advances by a fixed time at each reading."""

TICK = 1 / 1024  # seconds; exact in binary, so that sums are exact too


class TickingClock:
    """Time goes on by a tick whenever somebody looks."""

    def __init__(self) -> None:
        self.now = 5.0

    def __call__(self) -> float:
        self.now += TICK
        return self.now
