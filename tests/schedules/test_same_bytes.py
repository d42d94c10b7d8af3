"""A program is the same in every process: ranks that build it by themselves must agree on it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PRINT = """
import json, sys
from scenarios import load
from scenarios.resolve import resolve
from schedules.builders import build
from schedules.json_form import program_to_json
found = resolve(load("tiny"))
made = build(sys.argv[1], found.deployment, found.batch, found.routing, layers=1, allow_refused=True)
print(json.dumps(program_to_json(made)))
"""


def text(schedule: str, seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PRINT, schedule],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONHASHSEED": seed},
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("schedule", ["sbo.v1", "tbo"])
def test_hashing_leaves_no_trace(schedule: str) -> None:
    assert text(schedule, "1") == text(schedule, "2")
