"""What a comparison knows about one schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import hypot

from models.sglang_rules import Refusal
from schedules.merit import PathItem
from schedules.program import Program
from schedules.timeline import Timeline


@dataclass(frozen=True)
class Figures:
    """A predicted schedule in numbers; times in ns.

    `step_ns` is the whole forward pass, `layer_ns` one MoE layer in steady state. `exposed_ns`,
    `critical_path`, `bubbles_ns` and the SM fractions are of one layer, on the rank that the path
    ends on; `bounds_ns` are of the step. `doubt_ns` is, by kind of kernel, how much of the step would
    change if that kind's cost were off by its stated uncertainty. `phase` are the least and the most
    that the step is multiplied by when ranks start apart (1 and 1 where that was not looked at);
    `shortcuts` is the relative error that folded ranks may have.
    """

    step_ns: float
    layer_ns: float
    exposed_ns: float
    sm_resident: float | None
    sm_spinning: float | None
    bounds_ns: Mapping[str, float]
    critical_path: tuple[PathItem, ...]
    bubbles_ns: Mapping[str, float]
    cost_shares: Mapping[str, float]
    doubt_ns: Mapping[str, float]
    phase: tuple[float, float] = (1.0, 1.0)
    shortcuts: float = 0.0

    @property
    def noise_ns(self) -> float:
        """Half width of the step's band: kinds err independently, one kernel kind errs alike."""
        return hypot(*self.doubt_ns.values(), self.shortcuts * self.step_ns)

    @property
    def band_ns(self) -> tuple[float, float]:
        """The step's band; it never goes below the largest bound."""
        low, high = (self.step_ns * factor for factor in self.phase)
        floor = min(low, max(self.bounds_ns.values(), default=0.0))
        return max(floor, low - self.noise_ns), high + self.noise_ns

    @property
    def spread_ns(self) -> float:
        """Half of what the phase between ranks moves the step by."""
        return self.step_ns * (self.phase[1] - self.phase[0]) / 2

    def noise_against(self, other: Figures) -> float:
        """Uncertainty of the difference of two steps: what both share of a kind's error cancels."""
        kinds = {*self.doubt_ns, *other.doubt_ns}
        gaps = (self.doubt_ns.get(kind, 0.0) - other.doubt_ns.get(kind, 0.0) for kind in kinds)
        folded = (one.shortcuts * one.step_ns for one in (self, other))
        return hypot(*gaps, self.spread_ns, other.spread_ns, *folded)


@dataclass(frozen=True)
class Row:
    """One schedule of a comparison: refused, or predicted, or (when allowed) both. `shortcut_error` is
    the relative error that folded ranks may have: 0 without shortcuts, None where nobody looked."""

    name: str
    variant: str
    launch: str | None
    refused: Refusal | None = None
    figures: Figures | None = None
    memory_gib: float | None = None
    max_batch_per_rank: int | None = None
    shortcut_error: float | None = None
    program: Program | None = field(default=None, repr=False)
    timeline: Timeline | None = field(default=None, repr=False)

    @property
    def can_win(self) -> bool:
        """Whether the row stands for the best: it has figures and nobody refuses it."""
        return self.figures is not None and self.refused is None
