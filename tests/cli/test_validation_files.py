"""Files of predictions and measurements that do not fit, or are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.validation import main
from benchmarks.validation_files import matched, read
from models.errors import InputError


def predicted(group: str, schedule: str) -> dict[str, Any]:
    return {"group": group, "schedule": schedule, "ranks": 2, "layers": 1, "overlapped": False,
            "profile": "p", "sha256": "0", "ns": 100, "low_ns": 90, "high_ns": 110,
            "doubt_ns": {}, "others": {}, "unseen": True}  # fmt: skip


def measured(group: str, **times: list[int]) -> dict[str, Any]:
    return {"group": group, "makespans_ns": times}


PREDICTED = [
    predicted("a", "tbo"),
    predicted("b", "tbo"),
    predicted("b", "sbo"),
    predicted("c", "tbo"),
]
A, B = measured("a", tbo=[100]), measured("b", tbo=[100], sbo=[90])


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_records_of_the_same_cases_are_read_whole(tmp_path: Path) -> None:
    file = write(tmp_path / "predicted", *PREDICTED[:3])
    entries = [A, {"group": "a", "hidden": {"tbo": [1, 1]}}, B]
    assert matched(file, write(tmp_path / "measured", *entries)) == (PREDICTED[:3], entries, "")


def test_groups_that_were_predicted_only_are_named(tmp_path: Path) -> None:
    file, other = write(tmp_path / "predicted", *PREDICTED), write(tmp_path / "measured", A)
    told = matched(file, other)[2]
    assert told == f"{file}:2: group 'b' and 1 more: not measured in {other}"
    assert matched(file, write(other, A, B))[2] == f"{file}:4: group 'c': not measured in {other}"


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([A, measured("d", tbo=[1])], ":2: group: 'd' is not usable"),
        ([A, {"hidden": {}}], ":2: group: is missing"),
        ([A, measured("b", tbo=[1])], ":2: makespans_ns: ['tbo'] is not usable"),
        ([measured("a", tbo=[1], sbo=[1])], ":1: makespans_ns: ['sbo', 'tbo'] is not usable"),
        ([A, measured("b", tbo=[1], sbo=[])], ":2: makespans_ns.sbo: [] is not usable"),
        ([{"group": "a", "hidden": {}}], "measured: makespans_ns: is missing"),
        ([], "measured: records: is missing"),
        ([A, [1]], ":2: record: [1] is not usable"),
    ],
)
def test_what_does_not_fit_is_told_with_its_line(
    tmp_path: Path, entries: list[object], said: str
) -> None:
    with pytest.raises(InputError) as error:
        matched(write(tmp_path / "predicted", *PREDICTED), write(tmp_path / "measured", *entries))
    assert str(error.value).startswith(f"{tmp_path / 'measured'}:")
    assert said in str(error.value)


def test_a_file_of_something_else_is_told_with_its_line(tmp_path: Path) -> None:
    file = write(tmp_path / "file", A, B)
    with pytest.raises(InputError, match=r"file:1: schedule: is missing"):
        matched(file, file)
    file.write_text('{"group": "a"}\n\n{"group": "a"\n')
    with pytest.raises(InputError, match=r"file:3: record: .*a JSON object"):
        read(file)
    file.write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"file: records: "):
        read(file)
    with pytest.raises(InputError, match=r"absent: records: "):
        read(tmp_path / "absent")


@pytest.mark.parametrize("what", ["predict", "compare", "again"])
def test_the_command_ends_with_one_message(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "measured")
    with pytest.raises(SystemExit) as ended:
        main([what, str(file), "--predicted", str(write(tmp_path / "predicted", *PREDICTED))])
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert not told.out
    assert [line for line in told.err.splitlines() if f"error: {file}: records" in line]


def test_a_group_of_no_file_of_cases_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = write(tmp_path / "predicted", *PREDICTED), write(tmp_path / "measured", A, B)
    with pytest.raises(SystemExit):
        main(["again", str(given[1]), "--predicted", str(given[0])])
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"warning: {given[0]}:4: group 'c': not measured in {given[1]}"
    assert "groups: 'a' is not usable" in lines[-1]
