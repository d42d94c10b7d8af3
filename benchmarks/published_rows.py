"""The published H100 rows: their scenarios, what ran in them, and their figures.

The rows are of May 2025 and of the development branch that their authors named for them (docs/published.md,
*What ran*). It differs from the version of the scenarios in three facts that matter here:

* without two-batch overlap the shared expert ran on the one compute stream, before the dispatch;
* the decode list of two-batch overlap had a yield more, after the layer's end;
* normal exchanges held 24 SMs, and DeepGEMM kept to the other 108 in prefill.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import moe_overlap as mo

DATA = Path(__file__).parent / "data"
DECODE, PREFILL = "deepseek-v3-h100-ep72-decode", "deepseek-v3-h100-ep32-prefill"
SIZE = {DECODE: "phase.decode.batch_per_rank", PREFILL: "phase.prefill.tokens_per_rank"}
GPUS_PER_NODE = 8
# One stream; where in it the shared expert stands changes nothing.
OFF = "sequential"
DECODE_OPS = "P Q | C M G T | Da S | Db X Ca | Cb O Z |"
ON = {DECODE: "tbo-2025-05", PREFILL: "tbo"}
NUM_SMS = {DECODE: 20, PREFILL: 24}  # low latency has no number of SMs
CASES = {"lmsys_pf_8192": PREFILL, "lmsys_dec_256": DECODE, "lmsys_dec_32": DECODE}
LAYERS = ((DECODE, OFF, 256, "noTBO_256"), (DECODE, ON[DECODE], 256, "TBO_256"),
          (PREFILL, OFF, 8192, "noTBO_8k"), (PREFILL, ON[PREFILL], 16384, "TBO_16k"))  # fmt: skip


class Published(NamedTuple):
    """One size of a deployment without and with two-batch overlap: milliseconds of a step."""

    scenario: str
    size: int
    off_ms: float
    on_ms: float

    @property
    def ratio(self) -> float:
        """Throughput with two-batch overlap over that without."""
        return self.off_ms / self.on_ms


def load(scenario: str, size: int, alpha: float, *sets: str) -> mo.Scenario:
    """The scenario at this size and imbalance, with what ran then and what would run today; `sets` are
    further overrides."""
    own = f"{{name: {ON[DECODE]}, ops: '{DECODE_OPS}', delta: 2}}"
    names = ["sequential", "baseline", "tbo"] + ([own] if scenario == DECODE else [])
    rows = [
        f"{SIZE[scenario]}={size}",
        f"routing.alpha={alpha}",
        f"a2a.num_sms={NUM_SMS[scenario]}",
        f"schedules=[{', '.join(names)}]",
    ]
    return mo.load(scenario, [*rows, *sets])


def published() -> Iterator[Published]:
    """The published H100 rows, prefill first."""
    for case, scenario in CASES.items():
        yield Published(scenario, _row(f"{case}_off")[0], *(published_ms(f"{case}_{state}") for state in ("off", "tbo")))  # fmt: skip


def published_ms(case: str) -> float:
    """Milliseconds of a step: its tokens over its published rate a node."""
    size, rate = _row(case)
    return 1e3 * size * GPUS_PER_NODE / rate


def _row(case: str) -> tuple[int, float]:
    with (DATA / "published_cases.csv").open() as lines:
        row = next(row for row in csv.DictReader(lines) if row["case_id"] == case)
    return int(row["tokens_or_batch_per_gpu"]), float(row["value"])


def published_classes(series: str, *, barriers: bool = True, phase: str = "") -> dict[str, float]:
    """Microseconds per kernel class of a layer in a published figure, both children together;
    `barriers` counts an exchange's barrier to it. Unit tests have a series in each `phase`."""
    totals: dict[str, float] = {}
    for name, us in _breakdown(series, phase):
        if name.endswith(" Barrier") and not barriers:
            continue
        kept = name.removesuffix(" Barrier")
        kept = kept if kept.startswith("Attention") else kept.removesuffix(" Core")
        totals[kept] = totals.get(kept, 0.0) + us
    return totals


def _breakdown(series: str, phase: str) -> Iterator[tuple[str, float]]:
    children = 2 if series.startswith("TBO") else 1
    with (DATA / "published_layer_breakdown.csv").open() as lines:
        for row in csv.DictReader(lines):
            if row["series"] == series and phase in ("", row["phase"]):
                yield row["category"], 1000 * children * float(row["ms_per_kernel_batch"])
