"""The columns of the comparison: one definition for the HTML table and for the terminal's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """`key` is the dotted key of the document's row; `form` writes its number; `brief` says whether the
    column also has a place on a terminal of 100 characters."""

    key: str
    title: str
    form: Callable[[float], str]
    brief: bool = False

    def value(self, row: Row) -> float | None:
        """The number in this row, None when the row has none."""
        found: Any = row
        for part in self.key.split("."):
            if part.isdigit():
                found = found[int(part)] if found else None
            else:
                found = (found or {}).get(part)
        return None if found is None else float(found) if isinstance(found, float) else found

    def text(self, row: Row) -> str:
        """The number as written in tables; a dash when there is none."""
        value = self.value(row)
        return "–" if value is None else self.form(value)


def micro(us: float) -> str:
    """Microseconds as text: us below ten thousand, else ms."""
    if abs(us) >= 10_000:
        return f"{us / 1000:,.2f} ms"
    return f"{us:,.1f} µs"


def signed_percent(ratio: float) -> str:
    """A ratio to a reference as a signed percentage: 1.08 is +8.0 %."""
    return f"{100 * (ratio - 1):+.1f} %".replace("-", "−")


def percent(fraction: float) -> str:
    """A fraction as a percentage."""
    return f"{100 * fraction:.1f} %"


def gain_words(row: Row) -> str:
    """How the row compares with the baseline, in words."""
    speedup = row.get("speedup_vs_baseline")
    if speedup is None:
        return ""
    if row["name"] == "baseline":
        return "the baseline itself"
    return f"{signed_percent(speedup)} speed against baseline"


def _plain(value: float) -> str:
    return f"{value:,.0f}"


def _gib(value: float) -> str:
    return f"{value:,.1f}"


COLUMNS: tuple[Column, ...] = (
    Column("step_us", "step", micro, brief=True),
    Column("band_us.0", "band, low", micro),
    Column("band_us.1", "band, high", micro),
    Column("speedup_vs_baseline", "speed against baseline", signed_percent, brief=True),
    Column("layer_us", "one layer", micro, brief=True),
    Column("tokens_per_s_per_gpu", "tokens/s per GPU", _plain, brief=True),
    Column("exposed_comm_us", "exposed comm. per layer", micro, brief=True),
    Column("sm_resident_fraction", "SMs resident", percent),
    Column("sm_spinning_fraction", "SMs spinning", percent),
    Column("bounds_us.compute", "bound: compute", micro),
    Column("bounds_us.communication", "bound: comm.", micro),
    Column("bounds_us.chain", "bound: chain", micro),
    Column("memory_gib", "memory, GiB", _gib, brief=True),
    Column("max_batch_per_rank", "largest batch per rank", _plain),
)
