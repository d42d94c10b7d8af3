"""A program is the same in every process: ranks that build it by themselves must agree on it."""

from __future__ import annotations

import os
import subprocess
import sys

PRINT = """
import json, sys
from scenarios import load
from scenarios.resolve import resolve
from schedules.builders import build
from schedules.json_form import program_to_json
found = resolve(load("tiny"))
for name in ("sbo.v1", "tbo"):
    made = build(name, found.deployment, found.batch, found.routing, layers=1, allow_refused=True)
    print(json.dumps(program_to_json(made)))
"""


def text(seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PRINT],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONHASHSEED": seed},
        check=True,
    )
    return done.stdout


def test_hashing_leaves_no_trace() -> None:
    first, second = text("1"), text("2")
    assert len(first.splitlines()) == 2
    assert first == second
