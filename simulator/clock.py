"""The clock: SimPy's environment with integer nanoseconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import simpy


class Clock(simpy.Environment):
    """Time in integer ns. SimPy orders what is due by (time, priority, sequence)."""

    @property
    def ns(self) -> int:
        """The present."""
        return cast(int, self._now)

    @property
    def runs(self) -> bool:
        """Whether anything is still due."""
        return bool(self._queue)

    def ring(self, delay_ns: int, callback: Callable[[simpy.Event], None]) -> None:
        """Call `callback` after `delay_ns`."""
        timer = self.timeout(delay_ns)
        assert timer.callbacks is not None
        timer.callbacks.append(callback)

    def pass_instant(self) -> None:
        """Let everything happen that is due at the earliest time."""
        now = self.peek()
        while self.peek() <= now:
            self.step()
