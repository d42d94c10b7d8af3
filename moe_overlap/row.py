"""What a comparison knows about one schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from models.sglang_rules import Refusal
from moe_overlap.uncertain import IN_PHASE, Prediction
from schedules.merit import PathItem
from schedules.program import Program
from schedules.timeline import Timeline


@dataclass(frozen=True)
class Figures:
    """A predicted schedule in numbers; times in ns.

    `step_ns` is the whole forward pass, `layer_ns` one MoE layer in steady state. `exposed_ns`,
    `critical_path`, `bubbles_ns` and the SM fractions are of one layer, on the rank that the path
    ends on; `bounds_ns` are of the step, as are `doubt_ns`, `phase` and `shortcuts`, which are those of
    `moe_overlap.uncertain.Prediction`.
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
    phase: tuple[float, float] = IN_PHASE
    shortcuts: float = 0.0

    @property
    def step(self) -> Prediction:
        """The step with what it leaves open."""
        return Prediction(self.step_ns, self.doubt_ns, self.phase, self.shortcuts)

    @property
    def noise_ns(self) -> float:
        """See `Prediction`, as for the next two."""
        return self.step.noise_ns

    @property
    def band_ns(self) -> tuple[float, float]:
        """The step's band."""
        return self.step.band_ns

    def noise_against(self, other: Figures) -> float:
        """Uncertainty of the difference of two steps."""
        return self.step.noise_against(other.step)


@dataclass(frozen=True)
class Row:
    """One schedule of a comparison: refused, or predicted, or (when allowed) both. `shortcut_error` is
    the relative error that folded ranks may have: 0 without shortcuts, None where nobody looked;
    `load_off` is that of `simulator.steady.Step`."""

    name: str
    variant: str
    launch: str | None
    refused: Refusal | None = None
    figures: Figures | None = None
    memory_gib: float | None = None
    max_batch_per_rank: int | None = None
    shortcut_error: float | None = None
    load_off: float = 0.0
    program: Program | None = field(default=None, repr=False)
    timeline: Timeline | None = field(default=None, repr=False)

    @property
    def can_win(self) -> bool:
        """Whether the row stands for the best: it has figures and nobody refuses it."""
        return self.figures is not None and self.refused is None
