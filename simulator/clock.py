"""The clock: SimPy's environment with integer nanoseconds."""

from __future__ import annotations

from collections.abc import Callable

import simpy


class Clock(simpy.Environment):
    """Time in integer ns. SimPy orders what is due by (time, priority, sequence).

    It reads SimPy's own clock and heap, since a call for each would be a tenth of a run.
    """

    _now: int

    @property
    def ns(self) -> int:
        """The present."""
        return self._now

    @property
    def runs(self) -> bool:
        """Whether anything is still due."""
        return bool(self._queue)

    def ring(self, delay_ns: int, callback: Callable[[simpy.Event], None]) -> None:
        """Call `callback` after `delay_ns`."""
        timer = simpy.Timeout(self, delay_ns)
        assert timer.callbacks is not None
        timer.callbacks.append(callback)

    def pass_instant(self) -> int:
        """Let everything happen that is due at the earliest time; returns that time."""
        queue = self._queue
        now = queue[0][0]
        while queue and queue[0][0] <= now:
            self.step()
        return self._now

    @staticmethod
    def fire(event: simpy.Event) -> None:
        """Let an event happen at once, and not after what else is due at this instant."""
        callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
        event._ok = True
        event._value = None
        for callback in callbacks:
            callback(event)
