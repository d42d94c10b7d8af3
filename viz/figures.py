"""The columns of the comparison: one definition for the HTML table and for the terminal's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A column of one number per row (`keys` has one dotted key of the document's row) or of a range (two).

    `form` writes one number; the unit is in the title. `brief` says whether the column also has a place on
    a terminal of 80 characters, under the title `short`.
    """

    keys: tuple[str, ...]
    title: str
    form: Callable[[float], str]
    short: str = ""

    def values(self, row: Row) -> tuple[float, ...]:
        """The numbers in this row, as the document has them; empty when one is missing."""
        found = tuple(lookup(row, key) for key in self.keys)
        return () if None in found else found

    def text(self, row: Row) -> str:
        """The number or the range as written in tables; a dash when there is none."""
        return "–".join(self.form(value) for value in self.values(row)) or "–"


def lookup(row: Row, key: str) -> Any:
    """The value under a dotted key (`bounds_us.chain`, `band_us.0`); None when any part is missing."""
    found: Any = row
    for part in key.split("."):
        if found is None:
            return None
        found = found[int(part)] if part.isdigit() else found.get(part)
    return found


def micro(us: float) -> str:
    """Microseconds as text with their unit: µs below ten thousand, else ms."""
    if abs(us) >= 10_000:
        return f"{us / 1000:,.2f} ms"
    return f"{us:,.1f} µs"


def gflop(flops: int) -> str:
    """Floating-point operations in units of 1e9, without the unit."""
    value = flops / 1e9
    return f"{value:,.1f}" if value >= 1 else f"{value:.3g}"


def signed_percent(ratio: float) -> str:
    """A ratio to a reference as a signed percentage: 1.08 is +8.0 %."""
    return f"{100 * (ratio - 1):+.1f} %".replace("-", "−")


def gain_words(row: Row) -> str:
    """How the row compares with the baseline, in words; empty when it has no such figure."""
    speedup = row.get("speedup_vs_baseline")
    if speedup is None:
        return ""
    if row["name"] == "baseline":
        return "the baseline itself"
    return f"{signed_percent(speedup)} speed against baseline"


def _milli(us: float) -> str:
    return f"{us / 1000:,.2f}" if us < 1e6 else f"{us / 1000:,.1f}"


def _tenth(value: float) -> str:
    return f"{value:,.1f}"


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %"


COLUMNS: tuple[Column, ...] = (
    Column(("step_us",), "step, ms", _milli, "step ms"),
    Column(("band_us.0", "band_us.1"), "band, ms", _milli, "band ms"),
    Column(("speedup_vs_baseline",), "speed against baseline", signed_percent, "speed"),
    Column(("layer_us",), "one layer, µs", _tenth, "layer µs"),
    Column(("tokens_per_s_per_gpu",), "tokens/s per GPU", _whole, "tok/s/GPU"),
    Column(("exposed_comm_us",), "exposed comm. per layer, µs", _tenth, "exposed µs"),
    Column(("sm_resident_fraction",), "SMs resident", _percent),
    Column(("sm_spinning_fraction",), "SMs spinning", _percent),
    Column(("bounds_us.compute",), "compute bound, ms", _milli),
    Column(("bounds_us.communication",), "comm. bound, ms", _milli),
    Column(("bounds_us.chain",), "chain bound, ms", _milli),
    Column(("memory_gib",), "memory, GiB", _tenth, "GiB"),
    Column(("max_batch_per_rank",), "batch per rank that memory holds", _whole),
)
