"""Two calibrations against each other, kind by kind.

    python -m benchmarks.calibration_drift first.points.csv second.points.csv

Each is a file of points, or the profile (.yaml) that its `.points.csv` lies beside. The largest ratio
of a kind of ten points or more is what `moe-overlap calibrate --against first.points.csv` states of all
points together (`repeat`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from models.drift import Drift, drifts
from models.errors import InputError
from models.measured import MeasuredPoint, read_points
from models.profile import POINTS_SUFFIX

PROFILES = (".yaml", ".yml")


def points_of(file: Path) -> tuple[MeasuredPoint, ...]:
    """The points of a file, or those beside a profile; InputError names file and line."""
    if file.suffix in PROFILES:
        file = file.with_name(f"{file.stem}{POINTS_SUFFIX}")
    return read_points(file)


def lines(rows: Iterable[Drift]) -> Iterator[str]:
    """The table."""
    yield f"{'kind':<26}{'points':>7}{'ratio':>8}{'median':>9}{'p90':>9}{'covered':>9}"
    for row in rows:
        yield (
            f"{row.kind:<26}{row.count:>7}{row.ratio:>8.3f}{row.median:>9.1%}{row.p90:>9.1%}"
            f"{row.covered:>9.0%}"
        )


def main(given: Sequence[str] | None = None) -> None:
    """Parse, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    arguments = parser.parse_args(given)
    try:
        rows = drifts(points_of(arguments.first), points_of(arguments.second))
    except InputError as error:
        parser.error(str(error))
    if not rows:
        parser.error(f"no point of {arguments.first} is in {arguments.second}")
    print("\n".join(lines(rows)))


if __name__ == "__main__":
    main()
