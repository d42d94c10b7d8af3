"""Records the answers that tests compare with: `python docs/record.py` after figures have changed.

Writes the output of the demo into README.md, and tests/golden/answers.json: for every scenario of the
library the winner, the verdict, refusals, and step times.
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
from schedules.files import write_beside

ROOT = Path(__file__).resolve().parent.parent
ANSWERS = ROOT / "tests" / "golden" / "answers.json"
DEMO = "deepseek-v3-h100-ep72-decode"
COMMAND = f"$ moe-overlap compare {DEMO}\n"
FENCE = "```"


def main() -> None:
    """Rewrite both files."""
    readme = ROOT / "README.md"
    before, _, after = readme.read_text().partition(COMMAND)
    rest = after[after.index(FENCE) :]
    write_beside(readme, before + COMMAND + demo_text() + rest)
    write_beside(ANSWERS, json.dumps(answers(), indent=1) + "\n")


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
    return {name: answer(mo.compare(mo.load(name)).document()) for name in mo.library()}


def answer(document: dict[str, Any]) -> dict[str, Any]:
    """Winner, verdict, and for each schedule its step time or the rule that refuses it."""
    rows = {
        row["name"]: row["refused"]["rule"] if row["refused"] else row["step_us"]
        for row in document["schedules"]
    }
    return {key: document[key] for key in ("best", "runner_up", "verdict")} | {"schedules": rows}


if __name__ == "__main__":
    main()
