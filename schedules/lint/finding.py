"""What lint reports, and the list of its rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "info"]

RULES: dict[str, tuple[Severity, str]] = {
    "malformed": ("error", "ranks, matrices or thresholds that fit nothing"),
    "unknown-name": (
        "error",
        "a stream, exchange, signal or buffer that the program does not have",
    ),
    "duplicate-op": ("error", "two ops of one rank with the same name"),
    "regions": ("error", "regions that are not closed, or closed in another order"),
    "never-recorded": ("error", "an event waited for and never recorded"),
    "recorded-later": ("error", "an event recorded only after the wait: the wait does nothing"),
    "recorded-twice": ("error", "an event recorded twice: a wait may mean either"),
    "never-awaited": ("warning", "an event recorded and never waited for"),
    "record-after-yield": ("warning", "a record that captures the other child's work"),
    "missing-wait": ("error", "a write and another access that nothing orders"),
    "excess-wait": ("info", "a wait without which every access is still ordered"),
    "low-latency-buffer": ("error", "more live low-latency results than buffers"),
    "graph-capture": ("error", "what the capture of a graph forbids"),
    "exchange-join": ("error", "an exchange that a rank does not join as the others do"),
    "exchange-order": ("error", "exchanges that ranks join in different orders"),
    "cycle": ("error", "ops that wait for each other"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of a program. `rank` is the first rank of the class concerned and `step` the index
    of the step in its host order (None: the program as a whole). `cycle` lists the waits of a cycle,
    one line an op."""

    rule: str
    severity: Severity
    message: str
    rank: int | None = None
    step: int | None = None
    cycle: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = "" if self.rank is None else f" rank {self.rank}"
        place += "" if self.step is None else f" step {self.step}"
        lines = "".join(f"\n    {line}" for line in self.cycle)
        return f"{self.severity} [{self.rule}]{place}: {self.message}{lines}"


def finding(
    rule: str,
    message: str,
    rank: int | None = None,
    step: int | None = None,
    cycle: tuple[str, ...] = (),
) -> Finding:
    """A finding with the severity of its rule."""
    return Finding(rule, RULES[rule][0], message, rank, step, cycle)
