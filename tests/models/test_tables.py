"""Point tables: reading, interpolation in log space, and what they refuse."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import InputError
from models.tables import LogTable, Point, read_table

# A value that is linear in the logs of key and x is read back anywhere inside.
GRID = LogTable(
    {
        ((key,), x): 2 * math.log(key) + 3 * math.log(x)
        for key in (2.0, 8.0, 32.0)
        for x in (1.0, 10.0, 50.0)
    }
)


@given(st.floats(2.0, 32.0), st.floats(1.0, 50.0))
def test_log_linear_values_are_read_back(key: float, x: float) -> None:
    reading = GRID.at((key,), x)
    assert reading.value == pytest.approx(2 * math.log(key) + 3 * math.log(x), abs=1e-6)
    assert reading.where in ("point", "inside")


def test_beyond_the_points_the_nearest_value_holds() -> None:
    assert GRID.at((8.0,), 500.0) == GRID.at((8.0,), 5000.0)
    assert GRID.at((8.0,), 500.0).where == "outside"
    assert GRID.at((64.0,), 10.0).where == "outside"
    assert GRID.at((64.0,), 10.0).value == GRID.at((32.0,), 10.0).value


def test_two_part_keys_read_between_neighbours() -> None:
    corners: dict[tuple[tuple[float, ...], float], float] = {
        ((n, k), 1.0): n + k for n in (1.0, 4.0) for k in (1.0, 4.0)
    }
    table = LogTable(corners)
    assert table.at((4.0, 1.0), 1.0).where == "point"
    middle = table.at((2.0, 2.0), 1.0)
    assert middle.value == pytest.approx(5.0)
    assert middle.where == "inside"
    assert table.at((100.0, 2.0), 1.0).where == "outside"


def test_a_file_gives_its_points(tmp_path: Path) -> None:
    path = tmp_path / "gemm.csv"
    path.write_text("# source\nn,k,m,us\n128,256,1,5.5\n")
    assert read_table(path, ("n", "k"), "m") == (Point((128.0, 256.0), 1.0, 5.5),)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("n,m,us\n1,1,0\n", 2),
        ("# note\nn,m,us\n1,1,4\n1,2,nan\n", 4),
        ("n,m,us\n1,-1,3\n", 2),
        ("n,us\n1,3\n", 2),
        ("n,m,us\n", 0),
        ("n,m,us\n1,x,3\n", 2),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_table(path, ("n",), "m")
    assert caught.value.line == line
    assert str(path) in str(caught.value)
