"""The user's own schedules in docs/formats.md are built, and nothing is wrong with them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import moe_overlap as mo
from schedules.lint import lint

DOCS = Path(__file__).parents[2] / "docs" / "formats.md"
FENCE = "```"
Run = Callable[..., "subprocess.CompletedProcess[str]"]
SCENARIO = """name: documented
model: deepseek-v3
hardware: h200-8x-ib
parallel: {ep: 16}
phase:
  decode: {batch_per_rank: 128, kv_tokens: 2048}
routing: {distribution: uniform}
"""


def test_own_schedules(tmp_path: Path) -> None:
    file = _documented(tmp_path)
    resolved = mo.resolve(mo.load(file))
    own = [choice.name for choice in resolved.schedules if choice.ops or choice.lines]
    assert own == ["five-stages", "early-combine"]
    for name in own:
        program = mo.build(resolved, name)
        assert [found for found in lint(program) if found.severity == "error"] == []
    # the same list as the serving engine's, so the same steps
    assert mo.build(resolved, own[0]).classes == mo.build(resolved, "tbo").classes


def test_a_race_is_refused_by_simulate_as_by_compare(tmp_path: Path, run: Run) -> None:
    """Without its last wait the layer's end reads what the combine may not have written yet."""
    file = _documented(tmp_path)
    file.write_text(file.read_text().replace("      main: wait alt\n", ""))
    told = run("simulate", str(file), "--schedule", "early-combine")
    assert told.returncode == 1
    assert told.stderr.startswith("error: early-combine is refused (lint.missing-wait)")
    assert run("simulate", str(file), "-s", "early-combine", "--allow-refused").returncode == 0


def _documented(folder: Path) -> Path:
    start = f"{FENCE}yaml\nschedules:"
    documented = "schedules:" + DOCS.read_text().partition(start)[2].partition(FENCE)[0]
    file = folder / "documented.yaml"
    file.write_text(SCENARIO + documented)
    return file
