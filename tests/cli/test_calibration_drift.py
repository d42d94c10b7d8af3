"""The command that sets two calibrations side by side: what it takes, and how it ends on bad input."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.calibration_drift import main
from models.counts import elementwise
from models.measured import MeasuredPoint, write_points


def points(*rows: int, ns: float) -> str:
    return write_points(
        MeasuredPoint(elementwise("quantise", n, 7168, n * 14336, n * 7168), 132, ns) for n in rows
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for profile in ("first.yaml", "second.yaml"):
        (tmp_path / profile).write_text("points: {}\n")
    (tmp_path / "first.points.csv").write_text(points(8, 16, 32, ns=100.0))
    (tmp_path / "second.points.csv").write_text(points(16, 32, 64, ns=110.0))
    (tmp_path / "other.csv").write_text(points(128, ns=1.0))
    (tmp_path / "broken.csv").write_text(points(8, ns=100.0).replace("quantise", "quantize"))
    return tmp_path


@pytest.mark.parametrize("ending", [".points.csv", ".yaml"])
def test_points_are_those_of_the_file_or_beside_the_profile(
    folder: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(folder / f"{name}{ending}") for name in ("first", "second")])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[-1] == ["all", "2", "1.100", "10.0%", "10.0%", "0%"]


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ("absent.yaml", "absent.points.csv: points: "),
        ("broken.csv", "broken.csv:2: kind: 'quantize'"),
        ("other.csv", "no point of "),
    ],
)
def test_bad_input_ends_with_one_message(
    folder: Path, second: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(folder / "first.yaml"), str(folder / second)])
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert not told.out
    assert [line for line in told.err.splitlines() if "error: " in line and said in line]
