"""Holds an engine between its steps, so that a test can act while requests are known to be unfinished."""

import time

from pellucid.engine import LLMEngine
from pellucid.outputs import CompletionDelta


class StepGate:
    """An engine behind it takes a number of steps and no more until `open`. While it is held, the thread of an
    `AsyncLLMEngine` still answers calls: requests are added and aborted.

    Args:
        engine: takes no step at this moment.
        num_steps: that it may take before it is held.
    """

    def __init__(self, engine: LLMEngine, num_steps: int = 0) -> None:
        self._take_step = engine.step
        self._num_left = num_steps
        self._is_open = False
        engine.step = self._step  # type: ignore[method-assign]

    def let(self, num_steps: int) -> None:
        """Lets the engine, which has taken its steps so far, take this many more. From any thread."""
        self._num_left = num_steps

    @property
    def num_left(self) -> int:
        """Steps that the engine may still take while it is held."""
        return self._num_left

    def open(self) -> None:
        """Lets the engine take all further steps. From any thread."""
        self._is_open = True

    def _step(self) -> list[CompletionDelta]:
        if not self._is_open:
            if self._num_left == 0:
                time.sleep(0.001)  # the loop of the engine's thread asks again
                return []
            self._num_left -= 1
        return self._take_step()
