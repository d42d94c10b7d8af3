"""Progress at a rate that others change: the one clockwork of everything that takes time."""

from __future__ import annotations

from collections.abc import Callable

import simpy

from simulator.clock import Clock


class Fluid:
    """`left` units of work that flow at `rate` units per ns from `since` on.

    `on_end` is called once, at the integer ns nearest to the moment when nothing is left. A rate of 0
    stops the flow. A `since` in the future is a start that is already fixed (a reaction time).
    """

    __slots__ = ("_clock", "eta", "left", "on_end", "rate", "since")

    def __init__(
        self, clock: Clock, left: float, since: int, on_end: Callable[[Fluid], None]
    ) -> None:
        self._clock = clock
        self.left = left
        self.rate = 0.0
        self.since = since
        self.eta: int | None = None
        self.on_end = on_end

    def advance(self, now: int) -> None:
        """Bring `left` up to date at the present rate."""
        if now > self.since:
            self.left = max(0.0, self.left - (now - self.since) * self.rate)
            self.since = now

    def flow(self, now: int, rate: float) -> None:
        """Go on at `rate`; sets the timer of the end anew when that moves it."""
        if now > self.since:
            self.advance(now)
        self.rate = rate
        self.due(now, None if rate <= 0.0 else self.since + round(self.left / rate))

    def due(self, now: int, eta: int | None) -> None:
        """End at `eta` ns unless told otherwise before; None: not in sight."""
        if eta != self.eta:
            self.eta = eta
            if eta is not None:
                self._clock.ring(eta - now, self._ring)

    def stop(self) -> None:
        """End without telling anybody."""
        self.eta = None
        self.left = self.rate = 0.0

    def _ring(self, _: simpy.Event) -> None:
        if self.eta == self._clock.ns:  # else a timer that a later rate has overtaken
            self.stop()
            self.on_end(self)
