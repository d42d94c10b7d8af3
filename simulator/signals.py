"""Completion signals: a polling kernel goes no further than the raising kernel has come (rule 8)."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.held import Held
    from simulator.kernel import Kernel

_ROUNDING = 1e-9


class Poll:
    """The bound on one polling kernel. It takes `blocks` one after another, each once it is complete:
    in order when `by_index`, else in the order of their completion."""

    __slots__ = ("_blocks", "_by_index", "_idle_ns", "_kernel", "_pace", "_upcoming", "starved")

    def __init__(self, kernel: Held, blocks: int, *, by_index: bool) -> None:
        self._kernel = kernel
        self._blocks = blocks
        self._by_index = by_index
        self._idle_ns = 0.0
        self._pace = 0.0  # share of the raiser's work per ns since rates last changed
        self._upcoming: tuple[int, float] | None = None  # the next block, and when it is complete
        self.starved = True  # whether the raiser, not its own pace, sets its end

    @property
    def raiser(self) -> Kernel | None:
        """The kernel that raises the signals; None until the host has launched it."""
        return self._kernel.device.raisers.get(self._kernel.op.polls or "")

    def flow(self, now: int, rate: float) -> None:
        """Go on at `rate` where blocks are complete; between two calls both kernels' rates hold."""
        fluid = self._kernel.fluid
        before, since, old_rate = fluid.left, fluid.since, fluid.rate
        done, pace, newest_ns = self._raised(now)
        if newest_ns > now - since:
            newest_ns = inf  # complete before rates last changed: it bounded the kernel then
        fluid.advance(now)
        fluid.left = max(fluid.left, 1.0 - self._reachable(now, done, newest_ns, old_rate))
        self._pace = pace
        if old_rate > 0.0 and now > since:
            self._idle_ns += (now - since) - (before - fluid.left) / old_rate
        fluid.rate = rate
        fluid.due(now, self._eta(now, done, pace))

    def idle_ns(self) -> int:
        """Time spent spinning on incomplete blocks so far."""
        return round(self._idle_ns)

    def _raised(self, now: int) -> tuple[float, float, float]:
        """Share of the blocks' work done, more of it per ns from now on, and ns since the newest block, at
        the pace up to now: the raiser may have changed its own already."""
        raiser = self.raiser
        if raiser is None or raiser.start < 0:
            return 0.0, 0.0, 0.0
        if raiser.end >= 0:
            return 1.0, 0.0, now - raiser.end
        done, pace = raiser.progress(now, by_index=self._by_index)
        newest = done - int(done * self._blocks + _ROUNDING) / self._blocks
        return done, pace, max(0.0, newest) / self._pace if self._pace > 0.0 else inf

    def _reachable(self, now: int, done: float, newest_ns: float, rate: float) -> float:
        """The most that can be done now. Since both kernels go linearly, the block that limits it is
        either the newest complete one or the one that was next when rates last changed."""
        complete = int(done * self._blocks + _ROUNDING)
        if not complete:
            return 0.0
        newest = newest_ns * rate if rate > 0.0 else 0.0
        reach = (complete - 1) / self._blocks + min(1.0 / self._blocks, newest)
        if self._upcoming is not None and self._upcoming[0] <= complete:
            block, raised = self._upcoming
            reach = min(reach, (block - 1) / self._blocks + max(0.0, now - raised) * rate)
        return reach

    def _eta(self, now: int, done: float, pace: float) -> int | None:
        """When the last block will be done, None if the raiser stands still. Both kernels go linearly, so
        the wait for some block is longest for the next one or for the last one."""
        fluid = self._kernel.fluid
        self.starved, self._upcoming = True, None
        if fluid.rate <= 0.0 or (done < 1.0 and pace <= 0.0):
            return None
        ends = [fluid.since + fluid.left / fluid.rate]
        if done < 1.0:
            upcoming = int(done * self._blocks + _ROUNDING) + 1
            for block in (self._blocks, upcoming):
                raised = now + (block / self._blocks - done) / pace
                self._upcoming = (block, raised)
                ends.append(raised + (self._blocks - block + 1) / self._blocks / fluid.rate)
        self.starved = max(ends) > ends[0]
        return max(now, round(max(ends)))
