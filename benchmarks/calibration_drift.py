"""Two calibrations against each other, kind by kind.

    python -m benchmarks.calibration_drift first.points.csv second.points.csv

The last row's 90th percentile is what `moe-overlap calibrate --against first.points.csv` states as the
least uncertainty of a point.
"""

from __future__ import annotations

import sys
from pathlib import Path

from models.drift import drifts
from models.measured import read_points


def main() -> None:
    """Print the table."""
    first, second = (read_points(Path(name)) for name in sys.argv[1:3])
    print(f"{'kind':<26}{'points':>7}{'ratio':>8}{'median':>9}{'p90':>9}{'covered':>9}")
    for row in drifts(first, second):
        print(
            f"{row.kind:<26}{row.count:>7}{row.ratio:>8.3f}{row.median:>9.1%}{row.p90:>9.1%}"
            f"{row.covered:>9.0%}"
        )


if __name__ == "__main__":
    main()
