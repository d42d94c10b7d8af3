"""Measured points of a profile: one kernel's work, the SMs that it held, and its time alone.

A point is held out by a seeded hash of what it is, so that the same points are held out in every
calibration and none is chosen by its time.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median

from models.dims import DIMS, FLOP_DTYPES
from models.errors import InputError, choices
from models.work import EXCHANGE_KINDS, Work

COLUMNS = (
    "kind", "dims", "flops", "read_bytes", "write_bytes", "sms", "ns", "spread", "mhz", "watts", "held",
)  # fmt: skip
# Columns that files of earlier calibrations lack: 0 there.
LAUNCH_COLUMNS = ("launches", "ctas", "tile_rows", "tile_columns")
HELD_SHARE = 0.2
# No kernel takes longer, and no GPU has more.
MOST_NS, MOST_SMS = 1e12, 100_000
# Kernels of one size that differ in what they read and write: their bytes are part of what they are.
BY_BYTES = ("norm",)


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """`ns` is the median time alone on `sms` SMs, `spread` the 10th to 90th percentile over it; `mhz`
    and `watts` are the GPU's SM clock and power while it was taken (0: not read). A `held` point
    takes part in no fit. `launches` kernels were launched, the longest of them with `ctas` CTAs that
    compute `tile` rows and columns at a time (0: not known)."""

    work: Work
    sms: int
    ns: float
    spread: float = 0.0
    mhz: int = 0
    watts: int = 0
    held: bool = False
    launches: int = 0
    ctas: int = 0
    tile: tuple[int, int] = (0, 0)

    @property
    def key(self) -> str:
        """What the point is, whatever its time."""
        return point_key(self.work, self.sms)


def percentile(values: Iterable[float], share: float) -> float:
    """The value that this share of all of them lie at or below, by nearest rank; ValueError for none."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values have no percentile")
    return ordered[max(0, ceil(round(share * len(ordered), 6)) - 1)]


def ranks_of(points: Iterable[MeasuredPoint]) -> tuple[int, ...]:
    """The numbers of ranks between which these points' exchanges took place, ascending."""
    sizes = (dict(p.work.dims) for p in points if p.work.kind in EXCHANGE_KINDS)
    known = (size.get("ep_size", size.get("ranks")) for size in sizes)
    return tuple(sorted({ranks for ranks in known if ranks is not None}))


def spread_of(values: Sequence[float]) -> float:
    """The 10th to 90th percentile over the median, as in `MeasuredPoint.spread`."""
    middle: float = median(values)
    return (percentile(values, 0.9) - percentile(values, 0.1)) / middle if middle else 0.0


def point_key(work: Work, sms: int) -> str:
    """The name of a point: kind, sizes and SMs, bytes where these do not say it all."""
    dims = ";".join(f"{name}={value}" for name, value in work.dims)
    nbytes = f"|{work.hbm_bytes}" if work.kind in BY_BYTES else ""
    return f"{work.kind}|{dims}|{sms}{nbytes}"


def is_held(key: str, seed: int, share: float = HELD_SHARE) -> bool:
    """Whether the point of this name is held out: a hash of seed and name, below `share`."""
    digest = hashlib.sha256(f"{seed}:{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def write_points(points: Iterable[MeasuredPoint], heading: Sequence[str] = ()) -> str:
    """A CSV text: `heading` as comment lines, a header, one line a point."""
    out = io.StringIO()
    for line in heading:
        out.write(f"# {line}\n")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS + LAUNCH_COLUMNS)
    for point in sorted(points, key=lambda p: p.key):
        work = point.work
        writer.writerow(
            (
                work.kind,
                _pairs(work.dims),
                _pairs(work.flops),
                work.read_bytes,
                work.write_bytes,
                point.sms,
                f"{point.ns:.1f}",
                f"{point.spread:.4f}",
                point.mhz,
                point.watts,
                int(point.held),
                point.launches,
                point.ctas,
                *point.tile,
            )
        )
    return out.getvalue()


def read_points(path: Path) -> tuple[MeasuredPoint, ...]:
    """The points of a file that `write_points` made; InputError names file, line and column."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(path), "points", str(error), "a readable CSV file") from error
    skipped = sum(1 for line in lines if line.startswith("#"))
    reader = csv.DictReader(line for line in lines if not line.startswith("#"))
    if tuple(reader.fieldnames or ()) not in (COLUMNS, COLUMNS + LAUNCH_COLUMNS):
        wanted = ",".join(COLUMNS + LAUNCH_COLUMNS)
        raise InputError(str(path), "header", reader.fieldnames, wanted, skipped + 1)
    points = tuple(
        _point(path, number, row) for number, row in enumerate(reader, start=skipped + 2)
    )
    if not points:
        raise InputError(str(path), "points", "no rows", "at least one point")
    return points


def _pairs(pairs: Iterable[tuple[str, int]]) -> str:
    return ";".join(f"{name}={value}" for name, value in pairs)


def _parsed(text: str) -> tuple[tuple[str, int], ...]:
    parts = (part.partition("=") for part in text.split(";") if part)
    return tuple(sorted((name, int(value)) for name, _, value in parts))


def _check_names(path: Path, line: int, row: dict[str, str], work: Work) -> None:
    """A size that the kind has not, or lacks, would make a series of its own that nobody asks for."""
    names, known = tuple(name for name, _ in work.dims), DIMS[work.kind]
    if names not in known:
        odd = next((name for name in names if not any(name in one for one in known)), None)
        allowed = " or ".join(";".join(f"{name}=" for name in one) for one in known)
        hint = f"{odd!r} is none of them; " if odd else ""
        raise InputError(str(path), "dims", row["dims"], f"{hint}{work.kind} has {allowed}", line)
    if not {name for name, _ in work.flops} <= set(FLOP_DTYPES):
        raise InputError(str(path), "flops", row["flops"], choices(FLOP_DTYPES), line)


def _point(path: Path, line: int, row: dict[str, str]) -> MeasuredPoint:
    column = ""
    values: dict[str, float] = {}
    try:
        for column in (name for name in row if name not in COLUMNS[:3]):
            values[column] = float(row[column])
        column = "dims"
        dims = _parsed(row["dims"])
        column = "flops"
        flops = _parsed(row["flops"])
        column = "kind"
        work = Work(row["kind"], dims, flops, int(values["read_bytes"]), int(values["write_bytes"]))
    except (TypeError, ValueError) as error:
        raise InputError(str(path), column, row.get(column), "see the header", line) from error
    _check_names(path, line, row, work)
    if not 0 < values["ns"] < MOST_NS or not 1 <= values["sms"] <= MOST_SMS:
        raise InputError(str(path), "ns", row, "a positive time on at least one SM", line)
    return MeasuredPoint(
        work,
        int(values["sms"]),
        values["ns"],
        values["spread"],
        int(values["mhz"]),
        int(values["watts"]),
        bool(values["held"]),
        int(values.get("launches", 0)),
        int(values.get("ctas", 0)),
        (int(values.get("tile_rows", 0)), int(values.get("tile_columns", 0))),
    )
