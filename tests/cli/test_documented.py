"""The user's own schedules in docs/formats.md are built, and nothing is wrong with them."""

from __future__ import annotations

from pathlib import Path

import moe_overlap as mo
from schedules.lint import lint

DOCS = Path(__file__).parents[2] / "docs" / "formats.md"
FENCE = "```"
SCENARIO = """name: documented
model: deepseek-v3
hardware: h200-8x-ib
parallel: {ep: 16}
phase:
  decode: {batch_per_rank: 128, kv_tokens: 2048}
"""


def test_own_schedules(tmp_path: Path) -> None:
    start = f"{FENCE}yaml\nschedules:"
    documented = "schedules:" + DOCS.read_text().partition(start)[2].partition(FENCE)[0]
    file = tmp_path / "documented.yaml"
    file.write_text(SCENARIO + documented)
    resolved = mo.resolve(mo.load(file))
    own = [choice.name for choice in resolved.schedules if choice.ops or choice.lines]
    assert own == ["five-stages", "early-combine"]
    for name in own:
        program = mo.build(resolved, name)
        assert [found for found in lint(program) if found.severity == "error"] == []
    # the same list as the serving engine's, so the same steps
    assert mo.build(resolved, own[0]).classes == mo.build(resolved, "tbo").classes
