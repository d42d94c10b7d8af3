"""What `validate` is given and cannot use: profiles of other GPUs and edited by hand, missing libraries."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from models.errors import InputError
from moe_overlap.cli import app
from moe_overlap.errors import MachineLacks

RUN = CliRunner()
LIBRARY = Path(__file__).parents[2] / "models" / "library" / "hardware"
PROFILE = "h200-2x-nvlink-measured"
SCENARIO = "deepseek-v3-h200-ep2-decode"


@pytest.fixture
def edited(tmp_path: Path) -> Path:
    """A user's copy of a calibrated profile."""
    for name in (f"{PROFILE}.yaml", f"{PROFILE}.points.csv"):
        (tmp_path / name).write_text((LIBRARY / name).read_text(encoding="utf-8"))
    return tmp_path / f"{PROFILE}.yaml"


def refused(profile: Path | str) -> str:
    done = RUN.invoke(app, ["validate", SCENARIO, "-s", "baseline", "--profile", str(profile)])
    assert isinstance(done.exception, InputError), done.exception
    return str(done.exception)


def test_a_field_that_was_deleted_is_named_by_line_and_key(edited: Path) -> None:
    text = edited.read_text()
    found = re.search(r"\n  (\w+):\n    floor_us: [^\n]*\n", text)
    assert found is not None
    edited.write_text(text.replace(found[0], f"\n  {found[1]}:\n", 1))
    line = text[: found.start(1)].count("\n") + 1
    assert re.search(rf"{edited.name}:{line}: forms\.{found[1]}\.floor_us", refused(edited))


def test_a_field_without_a_number_is_named_by_line_and_key(edited: Path) -> None:
    text = edited.read_text()
    found = re.search(r"\n  (\w+):\n    floor_us: [^\n]*\n", text)
    assert found is not None
    edited.write_text(text.replace(found[0], f"\n  {found[1]}:\n    floor_us: short\n", 1))
    line = text[: found.start(1)].count("\n") + 2
    message = refused(edited)
    assert f"{edited.name}:{line}: forms.{found[1]}.floor_us: 'short'" in message


def test_a_point_without_a_field_is_named_by_line_and_column(edited: Path) -> None:
    points = edited.with_name(f"{PROFILE}.points.csv")
    lines = points.read_text().splitlines()
    ns = lines[1].split(",").index("ns")
    cells = lines[4].split(",")
    lines[4] = ",".join([*cells[:ns], "", *cells[ns + 1 :]])
    points.write_text("\n".join(lines) + "\n")
    assert f"{points.name}:5: ns: ''" in refused(edited)


def test_a_profile_without_its_points_is_named(edited: Path) -> None:
    edited.with_name(f"{PROFILE}.points.csv").unlink()
    assert f"{PROFILE}.points.csv" in refused(edited)


def test_another_gpus_profile_is_refused_with_the_way_around_it() -> None:
    message = refused("h100-8x-ib")
    assert "'H100 SXM'" in message
    assert "--other-gpu" in message


def test_without_torch_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    done = RUN.invoke(app, ["validate", SCENARIO, "-s", "baseline"])
    assert isinstance(done.exception, MachineLacks)
    assert "pip install 'moe-overlap[executor]'" in str(done.exception)
    assert "validate --measured FILE" in str(done.exception)


@pytest.mark.torch
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("library", ["deep_gemm", "deep_ep"])
def test_a_library_that_does_not_load_is_named_with_its_source(
    monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name in ("deep_gemm", "deep_ep"):
        stands = None if name == library else sys
        monkeypatch.setitem(sys.modules, name, stands)
    done = RUN.invoke(app, ["validate", SCENARIO, "-s", "baseline"])
    assert isinstance(done.exception, MachineLacks)
    assert f"needs {library}, which does not load" in str(done.exception)
    assert "https://github.com/deepseek-ai/" in str(done.exception)
