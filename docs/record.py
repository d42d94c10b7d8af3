"""Records the answers that tests compare with: `python docs/record.py` after figures have changed.

Writes the output of the demo into README.md, and tests/golden/answers.json: for every scenario of the
library the winner, the verdict, refusals, and step times; and docs/library.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import moe_overlap as mo
from moe_overlap.outcome import predict
from moe_overlap.verdict import judge
from schedules.files import write_beside

ROOT = Path(__file__).resolve().parent.parent
ANSWERS = ROOT / "tests" / "golden" / "answers.json"
DEMO = "deepseek-v3-h100-ep72-decode"
COMMAND = f"$ moe-overlap compare {DEMO}\n"
FENCE = "```"


def main() -> None:
    """Rewrite all three files."""
    readme = ROOT / "README.md"
    before, _, after = readme.read_text().partition(COMMAND)
    rest = after[after.index(FENCE) :]
    write_beside(readme, before + COMMAND + demo_text() + rest)
    write_beside(ANSWERS, json.dumps(answers(), indent=1) + "\n")
    subprocess.run([sys.executable, "-m", "benchmarks.library_tables"], cwd=ROOT, check=True)


def demo_text() -> str:
    """What the demo prints on a terminal of 100 columns, without the report's line."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", "NO_COLOR": "1"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "moe_overlap", "compare", DEMO],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
    lines = [line.rstrip() for line in done.stdout.splitlines() if not line.startswith("report:")]
    return "\n".join(lines) + "\n"


def answers() -> dict[str, Any]:
    """The answer for every library scenario, in few words."""
    return {name: answer(name) for name in mo.library()}


def answer(name: str) -> dict[str, Any]:
    """Winner, verdict, and for each schedule its step in us or the rule that refuses it; without what
    a comparison looks for around them, which takes longer."""
    resolved = mo.resolve(mo.load(name))
    rows = [
        predict(resolved, choice, allow_refused=False, fidelity="fast")
        for choice in resolved.schedules
    ]
    verdict = judge(rows)
    steps = {
        row.name: round(row.figures.step_ns / 1000, 1)
        for row in rows
        if row.figures is not None and row.refused is None
    }
    rules = {row.name: row.refused.rule for row in rows if row.refused is not None}
    return {
        "best": verdict.best,
        "runner_up": verdict.runner_up,
        "verdict": verdict.verdict,
        "schedules": {row.name: (steps | rules)[row.name] for row in rows},
    }


if __name__ == "__main__":
    main()
